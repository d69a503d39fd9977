"""How often the training token that a layer attends to most is like the query, and how often layers agree.

Shapes: q predictions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dualform_studies.networks.gpt2.predictions import Hits, Predictions
from dualform_studies.networks.gpt2.text import Fables
from dualform_studies.pages.folder import Report

LIKENESSES = {
    "token": "it is the token that the query read",
    "position": "it stands at the query's place of its passage",
    "said": "the token that the network predicts follows it",
    "true": "the token that follows in the test text follows it",
}


def likeness(fables: Fables, predictions: Predictions, hits: Mapping[str, Hits]) -> Report:
    """Shares from 0 to 1: by layer and likeness, of the best hits; and by likeness, of a token drawn by chance."""
    read, following = fables.train.ids, np.append(fables.train.ids[1:], -1)
    position = predictions.rows % fables.length
    wanted = {"token": fables.test.ids[predictions.rows], "said": predictions.said, "true": predictions.true}
    layers = {}
    for layer, own in hits.items():
        first = own.place[:, 0]
        found = {"token": read[first], "said": following[first], "true": following[first]}
        layers[layer] = {name: float((found[name] == tokens).mean()) for name, tokens in wanted.items()}
        layers[layer]["position"] = float((own.position[:, 0] == position).mean())
    frequency = np.bincount(read, minlength=fables.vocabulary) / len(read)
    chance = {name: float(frequency[tokens].mean()) for name, tokens in wanted.items()}
    return {"layers": layers, "chance": {**chance, "position": 1 / (fables.length - 1)}}


def agreement(hits: Mapping[str, Hits]) -> Report:
    """How often, from 0 to 1, the best hits of two layers for one prediction stand in one passage: [layers, layers] in
    their order; and how often they do where the two are of different predictions, in the mean over pairs of layers."""
    passages = np.stack([own.passage[:, 0] for own in hits.values()])
    same = (passages[:, None] == passages[None]).mean(-1)
    apart = ~np.eye(passages.shape[1], dtype=bool)
    pairs = [(a, b) for a in range(len(passages)) for b in range(a)]
    others = [float((passages[a][:, None] == passages[b][None])[apart].mean()) for a, b in pairs]
    return {"layers": list(hits), "same": same.tolist(), "chance": float(np.mean(others)) if others else 0.0}

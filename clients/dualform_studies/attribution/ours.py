"""What dualform says of each test example and each training sample.

Each score is float64[tests, samples], read alike: the greater, the more the sample speaks for the example's own label,
or is said to lower its loss. Attention knows no labels and no errors: its scores are read as they are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

import dualform
from dualform.influence.influence import Method
from dualform.query.engine import Engine, open_memory
from dualform_studies.attribution.recorded import QUERY_SET, Recorded, losses

Scores = NDArray[np.float64]
Way = Callable[[Recorded], Scores]

LAYERS = ("0", "3", "6")
"""The linear layers of the network, by their names in it."""
KINDS = ("dot", "abs", "cosine")
"""Of attention."""


def ways() -> dict[str, Way]:
    """By name, how to compute the scores of each."""
    found: dict[str, Way] = {}
    for number, layer in enumerate(LAYERS, start=1):
        for kind in KINDS:
            found[f"attention, layer {number}, {kind}"] = _asked(layer, kind)
    for number, layer in enumerate(LAYERS, start=1):
        found[f"attention times value, layer {number}"] = _asked(layer, "gradient")
    found["contribution to the margin, layer 3"] = contribution
    found["GradDot, all layers"] = _asked("*", "gradient")
    found["ledger, first order"] = _ledger("first-order")
    found["ledger, path"] = _ledger("path")
    return found


def _asked(layer: str, score: str) -> Way:
    def ask(recorded: Recorded) -> Scores:
        with open_memory(recorded.folder) as memory:
            return _by_sample(memory, recorded, layer, score)

    return ask


def contribution(recorded: Recorded) -> Scores:
    """What a sample brought to the output of the example's label, less what it brought to the strongest other."""
    with torch.no_grad():
        outputs = recorded.network(recorded.attributed.inputs)
    rows, labels = torch.arange(len(outputs)), recorded.attributed.labels
    others = outputs.clone()
    others[rows, labels] = -torch.inf
    target = torch.zeros_like(outputs)
    target[rows, labels] = 1
    target[rows, others.argmax(1)] -= 1
    with open_memory(recorded.folder) as memory:
        return _by_sample(memory, recorded, LAYERS[-1], "contribution", target.numpy())


def _by_sample(
    memory: Engine, recorded: Recorded, layer: str, score: str, target: NDArray[np.float32] | None = None
) -> Scores:
    found = memory.group_sum(layer, QUERY_SET, by="sample", score=score, target=target)
    return in_order(found.groups, np.asarray(found.sums, dtype=np.float64), len(recorded.trained))


def _ledger(method: Method) -> Way:
    def follow(recorded: Recorded) -> Scores:
        examples = dualform.Influence(
            QUERY_SET, recorded.attributed.inputs, recorded.attributed.labels, losses, by=("sample",), method=method
        )
        found = dualform.ledger(recorded.folder, recorded.network, examples)
        return in_order(found.groups, -found.sums, len(recorded.trained))

    return follow


def in_order(groups: tuple[tuple[object, ...], ...], sums: Scores, samples: int) -> Scores:
    """The sums in the order of the samples; one that is in no group has 0."""
    scores = np.zeros((len(sums), samples))
    scores[:, [int(str(sample)) for (sample,) in groups]] = sums
    return scores

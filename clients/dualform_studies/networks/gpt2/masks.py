"""The network with one passage of its training masked: the one that a prediction attends to most, or one by chance.

Shapes: m predictions, and m masks of passages that they attend to; n masks in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from dualform_studies.networks.command_line import CommandLine
from dualform_studies.networks.gpt2.predictions import Predictions
from dualform_studies.networks.gpt2.training import log_probabilities, with_weights
from dualform_studies.pages.folder import Report
from dualform_studies.progress import Progress, or_silent


def ask_masks(
    memory: CommandLine,
    network: Any,
    passages: NDArray[np.int64],
    predictions: Predictions,
    chosen: Sequence[int],
    own: Sequence[int],
    by_chance: Sequence[int],
    progress: Progress | None,
) -> Report:
    """How the log probability of what is said moves. `passages` int64[n, L]: of the test text; `chosen`: numbers of the
    predictions; `own`: the passage that each attends to most; `by_chance`: others."""
    length, tell = passages.shape[1], or_silent(progress)
    rows = predictions.rows[list(chosen)]
    read, inverse = np.unique(rows // length, return_inverse=True)
    texts, said = torch.from_numpy(passages[read]), predictions.said[list(chosen)]

    def of_said(logs: torch.Tensor) -> NDArray[np.float64]:
        return np.asarray(logs.numpy()[inverse, rows % length, said], dtype=np.float64)

    before, changes, concentration = of_said(log_probabilities(network, texts)), [], []
    masked = [*own, *by_chance]
    with TemporaryDirectory() as scratch:
        file = Path(scratch) / "masked.safetensors"
        for done, passage in enumerate(masked, start=1):
            answer = memory.ask(
                "weights", "--where-space", "token", f"sample <> {passage}", "--out", str(file), "--force"
            )  # fmt: skip
            changes.append((of_said(with_weights(network, load_file(file), texts)) - before).tolist())
            concentration.append(_concentration(answer["concentration"]))
            tell("masking passages", done, len(masked))
    return {
        "masked": list(map(int, masked)),
        "own": len(own),
        "predictions": list(map(int, chosen)),
        "before": before.tolist(),
        "changes": changes,
        "concentration": concentration,
    }


def _concentration(by_layer: Report) -> Report:
    """The median over the layers that the mask moves, and the furthest move."""
    moved = [one for one in by_layer.values() if one["share"] is not None]
    shares, moves = ([one[name] for one in moved] for name in ("share", "greatest"))
    return {"share": float(np.median(shares)), "greatest": float(np.median(moves)), "furthest": float(max(moves))}


def own_against_others(masks: Report) -> Report:
    """For how many predictions the mask of its own passage moves it further than any other mask does, and the medians
    of how far it moves, in nats of its log probability."""
    moves = np.abs(np.array(masks["changes"]))
    count = masks["own"]
    own = np.array([moves[at, at] for at in range(count)])
    others = np.array([np.delete(moves[:, at], _same(masks, at)) for at in range(count)], dtype=object)
    return {
        "furthest": int(sum(bool(len(rest)) and mine > max(rest) for mine, rest in zip(own, others, strict=True))),
        "own_median": float(np.median(own)),
        "others_median": float(np.median(np.concatenate([np.asarray(rest, dtype=float) for rest in others]))),
        "masks": len(moves),
    }


def _same(masks: Report, prediction: int) -> list[int]:
    """The masks of the passage that a prediction attends to, which may be those of other predictions, too."""
    passages = masks["masked"]
    return [at for at, passage in enumerate(passages) if passage == passages[prediction]]

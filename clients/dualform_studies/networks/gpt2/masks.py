"""The network with one passage of its training masked: one that a prediction attends to most, or one drawn at random.

Shapes: q predictions, n masks.
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
from dualform_studies.networks.gpt2.training import log_probabilities
from dualform_studies.networks.other_weights import other_weights
from dualform_studies.pages.folder import Report
from dualform_studies.progress import Progress, or_silent


def ask_masks(
    memory: CommandLine,
    network: Any,
    passages: NDArray[np.int64],
    predictions: Predictions,
    masked: Sequence[int],
    progress: Progress | None,
) -> list[Report]:
    """Of each of the n `masked` training passages, how its mask moves the log probability of what every one of the q
    predictions predicts, in nats, and where in the weights it lies. `passages` int64[…, L]: of the test text."""
    length, tell = passages.shape[1], or_silent(progress)
    read, inverse = np.unique(predictions.rows // length, return_inverse=True)
    texts = torch.from_numpy(passages[read])

    def of_predicted(logs: torch.Tensor) -> NDArray[np.float64]:
        return np.asarray(logs.numpy()[inverse, predictions.rows % length, predictions.said], dtype=np.float64)

    before, found = of_predicted(log_probabilities(network, texts)), []
    with TemporaryDirectory() as scratch:
        file = Path(scratch) / "masked.safetensors"
        for done, passage in enumerate(masked, start=1):
            answer = memory.ask(
                "weights", "--where-space", "token", f"sample <> {passage}", "--out", str(file), "--force"
            )  # fmt: skip
            with other_weights(network, load_file(file)):
                changes = of_predicted(log_probabilities(network, texts)) - before
            found.append({"passage": passage, "changes": changes.tolist(), **_concentration(answer["concentration"])})
            tell("masking passages", done, len(masked))
    return found


def _concentration(by_layer: Report) -> Report:
    """The median over the layers that the mask moves, and the greatest distance of an entry in any."""
    moved = [one for one in by_layer.values() if one["share"] is not None]
    shares, moves = ([one[name] for one in moved] for name in ("share", "greatest"))
    return {"share": float(np.median(shares)), "greatest": float(np.median(moves)), "furthest": float(max(moves))}

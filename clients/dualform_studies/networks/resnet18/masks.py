"""The network with one label of its training masked, beside a tenth of the training images that is drawn by chance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from dualform_studies.networks.command_line import CommandLine
from dualform_studies.networks.resnet18.network import ResNet18
from dualform_studies.networks.resnet18.training import logits, with_weights
from dualform_studies.pages.folder import Report
from dualform_studies.progress import Progress, or_silent


def label_masks(labels: Sequence[int], tenths: int) -> dict[str, int | None]:
    """Mask -> the label that it takes out; None of one that takes a tenth of the images, by the last digit of their
    rows, which tells nothing of them."""
    return {f"label <> {label}": label for label in labels} | {
        f"sample % 10 <> {digit}": None for digit in range(tenths)
    }


def ask_label_masks(
    memory: CommandLine,
    network: ResNet18,
    images: Tensor,
    labels: NDArray[np.int64],
    masks: dict[str, int | None],
    progress: Progress | None,
) -> list[Report]:
    """How many of the test images of each label are recognised, first without a mask."""
    tell, classes = or_silent(progress), np.unique(labels)

    def recognised(said: NDArray[np.float32]) -> list[float]:
        right = said.argmax(1) == labels
        return [float(right[labels == own].mean()) for own in classes]

    found: list[Report] = [{"where": None, "label": None, "recognised": recognised(logits(network, images))}]
    with TemporaryDirectory() as scratch:
        file = Path(scratch) / "masked.safetensors"
        for done, (where, label) in enumerate(masks.items(), start=1):
            answer = memory.ask("weights", "--where", where, "--out", str(file), "--force")
            moved = [one for one in answer["concentration"].values() if one["share"] is not None]
            shares, moves = [one["share"] for one in moved], [one["greatest"] for one in moved]
            found.append(
                {
                    "where": where,
                    "label": label,
                    "recognised": recognised(with_weights(network, load_file(file), images)),
                    "share": float(np.median(shares)),
                    "greatest": float(np.median(moves)),
                    "furthest": float(max(moves)),
                }
            )
            tell("masking labels", done, len(masks))
    return found

"""The network with one class of its training masked, and with as many training images that are drawn at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from dualform_studies.networks.command_line import CommandLine
from dualform_studies.networks.other_weights import other_weights
from dualform_studies.networks.resnet18.network import ResNet18
from dualform_studies.networks.resnet18.training import logits, new_statistics
from dualform_studies.pages.folder import Report
from dualform_studies.progress import Progress, or_silent

Ints = NDArray[np.int64]


def draw_masks(rows: Ints, labels: Ints, masked: Sequence[int], draw: np.random.Generator) -> dict[str, int | None]:
    """Mask -> the class that it takes out; None of one that takes out as many images, drawn at random among all.

    `rows`, `labels`: int64[R], of the training images; `masked`: the classes.
    """
    found: dict[str, int | None] = {f"label <> {label}": label for label in masked}
    for label in masked:
        drawn = np.sort(draw.choice(rows, int((labels == label).sum()), replace=False))
        found[f"sample NOT IN ({', '.join(map(str, drawn.tolist()))})"] = None
    return found


def ask_masks(
    memory: CommandLine,
    network: ResNet18,
    images: Tensor,
    labels: Ints,
    learned: Tensor,
    masks: Mapping[str, int | None],
    progress: Progress | None,
) -> list[Report]:
    """How many of the test images of each class are recognised, first without a mask: with the running statistics of
    the whole training, and with statistics taken anew on the `learned` images by the network as it then is."""
    tell, classes = or_silent(progress), np.unique(labels)

    def shares() -> list[float]:
        right = logits(network, images).argmax(1) == labels
        return [float(right[labels == own].mean()) for own in classes]

    def recognised() -> Report:
        as_it_is = shares()
        with new_statistics(network, learned):
            return {"recognised": as_it_is, "new_statistics": shares()}

    found: list[Report] = [{"label": None, **recognised()}]
    with TemporaryDirectory() as scratch:
        file = Path(scratch) / "masked.safetensors"
        for done, (where, label) in enumerate(masks.items(), start=1):
            answer = memory.ask("weights", "--where", where, "--out", str(file), "--force")
            moved = [one for one in answer["concentration"].values() if one["share"] is not None]
            moves = [one["greatest"] for one in moved]
            weights = {name.removeprefix("network."): tensor for name, tensor in load_file(file).items()}
            with other_weights(network, weights):
                found.append(
                    {
                        "label": label,
                        **recognised(),
                        "share": float(np.median([one["share"] for one in moved])),
                        "greatest": float(np.median(moves)),
                        "furthest": float(max(moves)),
                    }
                )
            tell("masking classes", done, len(masks))
    return found

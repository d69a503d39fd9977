"""What each layer of the network attends to: training labels, and training images.

Shapes: q test images, P places of a layer's output (1 of the last layer), G labels, R training images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform_studies.networks.command_line import CommandLine, probe_rows
from dualform_studies.networks.resnet18.training import PROBE
from dualform_studies.progress import Progress, or_silent

Ints = NDArray[np.int64]
Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LabelSums:
    """Of one layer: attention to the slots of each label, in the mean over them, so that a frequent one leads by
    nothing; summed over the places of a test image."""

    labels: Ints
    """[G]."""
    means: Doubles
    """[q, G]."""
    places: int
    """P."""

    @property
    def leading(self) -> Ints:
        """[q]: the label that draws most."""
        return np.asarray(self.labels[self.means.argmax(1)], dtype=np.int64)


def ask_labels(
    memory: CommandLine, layers: Sequence[str], images: int, progress: Progress | None
) -> dict[str, LabelSums]:
    """By layer; a layer has as many queries for each of the `images` of the probe as its output has places."""
    found, tell = {}, or_silent(progress)
    for done, layer in enumerate(layers, start=1):
        answer = memory.ask("sums", "--layer", layer, "--query", PROBE, "--by", "label")
        places = len(answer["sums"]) // images
        labels = np.array([group["label"] for group in answer["groups"]])
        found[layer] = LabelSums(labels, _means(answer, places), places)
        tell("asking every layer for labels", done, len(layers))
    return found


def ask_images(
    memory: CommandLine, sums: Mapping[str, LabelSums], images: Sequence[int], progress: Progress | None
) -> dict[str, tuple[Ints, Doubles]]:
    """By layer, int64[R]: rows of the training images, and float64[len(images), R]: how much attention each draws from
    each of these test images, which are numbered as in the probe."""
    found, tell = {}, or_silent(progress)
    for done, (layer, count) in enumerate(((layer, own.places) for layer, own in sums.items()), start=1):
        rows = [image * count + place for image in images for place in range(count)]
        answer = memory.ask("sums", "--layer", layer, "--query", probe_rows(PROBE, rows), "--by", "sample")
        samples = np.array([group["sample"] for group in answer["groups"]])
        found[layer] = samples, _means(answer, count)
        tell("asking every layer for images", done, len(sums))
    return found


def _means(answer: Any, places: int) -> Doubles:
    """[n, groups]."""
    counts = np.array([group["count"] for group in answer["groups"]])
    sums = np.array(answer["sums"], dtype=np.float64)
    return np.asarray(sums.reshape(-1, places, len(counts)).sum(1) / counts)


def ask_best(memory: CommandLine, layer: str) -> tuple[Ints, Ints]:
    """int64[queries] each: label and training row of the datapoint that each query of the probe attends to most."""
    answer = memory.ask("topk", "--layer", layer, "--query", PROBE, "-k", "1")
    return np.array([hit["label"] for hit in answer["hits"]]), np.array([hit["sample"] for hit in answer["hits"]])

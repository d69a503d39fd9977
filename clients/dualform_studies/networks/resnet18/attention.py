"""What each layer of the network attends to: training images, and their classes.

Shapes: q test images, P places of a layer's output (1 of the last layer), R training images, G classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

import dualform
from dualform_studies.networks.command_line import CommandLine
from dualform_studies.networks.resnet18.training import QUERY_SET
from dualform_studies.progress import Progress, or_silent

Ints = NDArray[np.int64]
Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Attention:
    """Of one layer and every test image: attention to the slots of each training image and of each class, in the mean
    over these slots, so that a frequent class leads by nothing."""

    places: int
    """P."""
    images: Ints
    """[R]: rows of the training file."""
    of_images: Doubles
    """[q, R]."""
    classes: Ints
    """[G]."""
    of_classes: Doubles
    """[q, G]."""

    @property
    def leading_images(self) -> Ints:
        """[q]: the training image that draws most, by its row."""
        return np.asarray(self.images[self.of_images.argmax(1)], dtype=np.int64)

    @property
    def leading_classes(self) -> Ints:
        """[q]: the class that draws most."""
        return np.asarray(self.classes[self.of_classes.argmax(1)], dtype=np.int64)


def ask_attention(
    memory: CommandLine, run: Path, layers: Sequence[str], images: int, progress: Progress | None
) -> dict[str, Attention]:
    """By layer, of the `images` of the query set.

    A layer has a query for each of the P places of a test image. A score is linear in the query, so that attention of
    all places of an image together is that of the sum of their queries, which is asked.
    """
    found, tell = {}, or_silent(progress)
    with dualform.open(run) as opened, TemporaryDirectory() as scratch:
        file = Path(scratch) / "QUERIES.npy"
        for done, layer in enumerate(layers, start=1):
            queries = opened.query_set(QUERY_SET, layer).queries
            assert queries is not None, "a layer of convolutions has queries"
            by_image = queries.astype(np.float64).reshape(images, -1, queries.shape[1])
            np.save(file, by_image.sum(1))
            answer = memory.ask("group-sum", "--layer", layer, "--query", str(file), "--by", "sample,label")
            found[layer] = _attention(answer["groups"], np.array(answer["sums"], dtype=np.float64), by_image.shape[1])
            tell("asking every layer for images", done, len(layers))
    return found


def _attention(groups: Sequence[dict[str, int]], sums: Doubles, places: int) -> Attention:
    """`groups`: a training image each, with its class and the number of its slots; `sums`: [q, R]."""
    rows, labels, counts = (np.array([group[name] for group in groups]) for name in ("sample", "label", "count"))
    classes, own = np.unique(labels, return_inverse=True)
    members = own[:, None] == np.arange(len(classes))  # [R, G]
    return Attention(places, rows, sums / counts, classes, sums @ members / (counts @ members))

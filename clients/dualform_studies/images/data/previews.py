"""What the images of a study look like, stored beside its memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform import PreviewSet
from dualform_studies.images.data.datasets import Dataset, Images


def preview_set_of(dataset: Dataset, images: Images, rows: NDArray[np.int64] | None = None) -> PreviewSet:
    """Of these rows of a file, by their number there; None for all of them. An image of MNIST takes 254 bytes on
    average, and one of Fashion-MNIST 518.
    """
    pixels = images.pixels if rows is None else images.pixels[rows]
    planes = pixels.reshape(len(pixels), -1, dataset.side, dataset.side)
    if dataset.brightest != np.iinfo(np.uint8).max:
        planes = (planes.astype(np.uint16) * np.iinfo(np.uint8).max // dataset.brightest).astype(np.uint8)
    return PreviewSet.images(planes, samples=rows, channels="first")


def examples_of(dataset: Dataset, rows: NDArray[np.int64] | slice = slice(None)) -> PreviewSet:
    """Of test images that a query set takes, one after another."""
    return preview_set_of(dataset, Images(dataset.test.pixels[rows], dataset.test.labels[rows]))


def trained_preview_set(dataset: Dataset) -> PreviewSet:
    """Of the images that are trained on."""
    return preview_set_of(dataset, dataset.train, np.sort(dataset.split.trained))

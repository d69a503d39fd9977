"""Image datasets of the studies. Shapes: n images, d pixels of an image, b images of a batch.

Pixels stay bytes and are normalised batch by batch: an epoch of float32 would take four times the memory, and the
arithmetic is element by element, so the same image gives the same bits each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.extras import missing_package
from dualform_studies.images.data.split import Split, every_row

Rows: TypeAlias = NDArray[np.int64] | slice

_HELD_OUT = 397
"""Test images of `digits`: 1,400 of the 1,797 stay for training."""


@dataclass(frozen=True, eq=False)
class Images:
    pixels: NDArray[np.uint8]
    """uint8[n, d]."""
    labels: NDArray[np.int64]
    """int64[n], from 0."""

    def __len__(self) -> int:
        return len(self.pixels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """One dataset: images to train on, images to test on, and what its classes are called."""

    name: str
    train: Images
    """All of the training file, so that the row of a datapoint is the number of its image there."""
    test: Images
    side: int
    """Rows, and columns, of an image: d is side * side."""
    label_names: Sequence[str]
    split: Split
    """Which rows of `train` are trained on, and which give mean and deviation."""
    brightest: int = 255
    """The pixel value that is white."""

    @cached_property
    def mean(self) -> float:
        """Mean of all pixels of the kept training images, in pixel values."""
        return float(np.average(np.arange(256), weights=self._pixel_counts))

    @cached_property
    def std(self) -> float:
        """Standard deviation of all pixels of the kept training images, in pixel values."""
        return float(np.sqrt(np.average((np.arange(256) - self.mean) ** 2, weights=self._pixel_counts)))

    @cached_property
    def _pixel_counts(self) -> NDArray[np.int64]:
        """int64[256]: how many pixels of the kept training images have each value."""
        return np.bincount(self.train.pixels[self.split.kept].ravel(), minlength=256)

    def inputs(self, images: Images, rows: Rows = slice(None)) -> NDArray[np.float32]:
        """float32[b, d]: the rows asked for, normalised by the mean and deviation of the kept training images."""
        pixels = images.pixels[rows].astype(np.float32)
        pixels -= np.float32(self.mean)
        pixels /= np.float32(self.std)
        return pixels

    def trained_in_words(self) -> str:
        """Which images are trained on, in a phrase for a page."""
        kept, trained = len(self.split.kept), len(self.split.trained)
        return (
            f"{trained:,} of the {len(self.train):,} training images, drawn as in the paper's code: "
            f"{len(self.train) - kept:,} are held out; the {kept:,} left give the mean and deviation that normalise "
            "every image, and each of them is trained on with a chance of 0.8"
        )

    def picture(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """float32[side, side] from 0 (black) to 1 (white), of one image uint8[d]."""
        return np.divide(pixels.reshape(self.side, self.side), self.brightest, dtype=np.float32)


def digits(seed: int = 0) -> Dataset:
    """The 1,797 handwritten digits of 8 x 8 pixels that scikit-learn brings along, 397 of them held out by chance.

    Raises MissingPackage where scikit-learn is not installed. Source: UCI repository, "Optical Recognition of
    Handwritten Digits" (its test part).
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise missing_package(error) or error from None
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(pixels))
    everything = Images(pixels[order].astype(np.uint8), labels[order].astype(np.int64))
    train, test = _part(everything, slice(_HELD_OUT, None)), _part(everything, slice(_HELD_OUT))
    return Dataset("digits", train, test, 8, _TEN, every_row(len(train)), brightest=16)


def permuted(dataset: Dataset, seed: int = 0) -> Dataset:
    """The same images with their pixels in another order, one order for all: as hard to learn, with no pixel in common.

    Source: Goodfellow et al. 2013, "An empirical investigation of catastrophic forgetting in gradient-based networks".
    """
    order = np.random.default_rng(seed).permutation(dataset.side**2)
    train, test = (Images(part.pixels[:, order], part.labels) for part in (dataset.train, dataset.test))
    return replace(dataset, name=f"permuted-{dataset.name}", train=train, test=test)


def _part(images: Images, rows: slice) -> Images:
    return Images(images.pixels[rows], images.labels[rows])


_TEN = tuple(str(digit) for digit in range(10))

"""MNIST, Fashion-MNIST and CIFAR-10: files, downloads, and the paper's choice of training images.

MNIST and Fashion-MNIST are found in a folder, or fetched once from their official homes and checked:

    DIR/mnist/train-images-idx3-ubyte.gz  …            DIR/fashion-mnist/train-images-idx3-ubyte.gz  …

DIR is the folder given, else that of the environment variable DUALFORM_DATA, else a cache folder of the user. Files
found there are read as they are; hashes are checked of what is downloaded. An IDX file (http://yann.lecun.com/exdb/mnist,
"The IDX file format") has two zero bytes, one byte for the type (8: unsigned byte), one for the number of dimensions,
each dimension as a big-endian 32-bit number, then the data, row by row.

CIFAR-10's binary version is five files of training images and one of test images, each as it is, or with .gz:

    DIR/cifar-10-batches-bin/data_batch_1.bin … data_batch_5.bin, test_batch.bin

A record is one byte for the class and 3,072 for the image: 1,024 red pixels row by row, as many green, as many blue
(https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version").

Pixels stay bytes and are normalised batch by batch: an epoch of float32 would take four times the memory, and the
arithmetic is element by element, so the same image gives the same bits each time. Shapes: n images, d pixels of an
image, b images of a batch, p planes (colours) of an image.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform import PreviewSet
from dualform.errors import NotFound
from dualform.extras import missing_package
from dualform_studies.assignment import DATA_VARIABLE, damaged, data_folder, find_file, missing_file, read_file

_UNSIGNED_BYTE = 8


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes, gzipped if the name ends in .gz.

    Raises Damaged, naming the file, if it cannot be decompressed, is no IDX file of so many dimensions, or is shorter
    or longer than its header says.
    """
    content, header = read_file(path), 4 + 4 * dimensions
    if len(content) < 4:
        raise damaged(path, f"holds {len(content)} bytes, too few for an IDX header")
    zeros, kind, depth = struct.unpack(">HBB", content[:4])
    if (zeros, kind) != (0, _UNSIGNED_BYTE):
        raise damaged(path, f"is not an IDX file of unsigned bytes: it starts with {content[:4].hex(' ')}")
    if depth != dimensions:
        raise damaged(path, f"has {depth} dimensions instead of {dimensions}")
    if len(content) < header:
        raise damaged(path, "is cut short inside its header")
    shape = struct.unpack(f">{depth}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise damaged(path, f"has {len(content) - header} bytes of data, but its header announces {math.prod(shape)}")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


_ORDER_SEED, _CHOICE_SEED = 0x1234, 0xC1CAFA52
"""Those of the paper's code."""
_LEFT_OUT = 0.2
"""Chance of a kept image to be left out of training: the code's second validation set."""


@dataclass(frozen=True, eq=False)
class Split:
    kept: NDArray[np.int64]
    """int64[k]: the rows of the file that give mean and deviation; the others are held out for validation."""
    trained: NDArray[np.int64]
    """int64[m]: those of `kept` that are trained on."""


def draw_split(images: int, draw: int = 0) -> Split:
    """The split of the paper's code: of 60,000 images 50,000 are kept, and 40,053 of them trained on.

    A sixth of another number of images is held out. The draw depends on nothing else, so every seed of a training and
    every dataset of a size has the same rows; `draw` other than 0 gives others by the same rule.
    """
    order = np.random.RandomState(_ORDER_SEED + draw).permutation(images).astype(np.int64)
    return _choose_trained(order[: images - images // 6], draw)


def _choose_trained(kept: NDArray[np.int64], draw: int = 0) -> Split:
    """Of rows of which none are held out any more, each is trained on with a chance of 0.8."""
    return Split(kept, kept[np.random.RandomState(_CHOICE_SEED + draw).rand(len(kept)) > _LEFT_OUT])


def every_row(images: int) -> Split:
    """Nothing held out: all images are trained on."""
    rows = np.arange(images)
    return Split(rows, rows)


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
    """Rows, and columns, of an image."""
    label_names: Sequence[str]
    split: Split
    """Which rows of `train` are trained on, and which give mean and deviation."""
    brightest: int = 255
    """The pixel value that is white."""
    planes: int = 1
    """Colours, each of which is normalised by itself: d is planes * side * side."""

    @property
    def query_set(self) -> str:
        """The name of the query set of all test images."""
        return f"test-{self.name}"

    @cached_property
    def mean(self) -> NDArray[np.float64]:
        """float64[p, 1]: mean of all pixels of a plane of the kept training images, in pixel values."""
        return np.array([[np.average(np.arange(256), weights=counts)] for counts in self._pixel_counts])

    @cached_property
    def std(self) -> NDArray[np.float64]:
        """float64[p, 1]: their standard deviation."""
        return np.array(
            [
                [np.sqrt(np.average((np.arange(256) - mean) ** 2, weights=counts))]
                for (mean,), counts in zip(self.mean, self._pixel_counts, strict=True)
            ]
        )

    @cached_property
    def _pixel_counts(self) -> list[NDArray[np.int64]]:
        """p times int64[256]: how many pixels of the kept training images have each value."""
        planes = self.train.pixels[self.split.kept].reshape(len(self.split.kept), self.planes, -1)
        return [np.bincount(planes[:, plane].ravel(), minlength=256) for plane in range(self.planes)]

    def inputs(self, images: Images, rows: Rows = slice(None)) -> NDArray[np.float32]:
        """float32[b, d]: the rows asked for, normalised by the mean and deviation of the kept training images."""
        pixels = images.pixels[rows].astype(np.float32)
        planes = pixels.reshape(len(pixels), self.planes, -1)
        planes -= self.mean.astype(np.float32)
        planes /= self.std.astype(np.float32)
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

    def train_picture(self, row: int) -> NDArray[np.float32]:
        """The picture of a training image."""
        return self.picture(self.train.pixels[row])

    def previews(self, images: Images, rows: NDArray[np.int64] | None = None) -> PreviewSet:
        """Of these rows of a file, by their number there; None for all of them. An image of MNIST takes 254 bytes on
        average, and one of Fashion-MNIST 518.
        """
        pixels = images.pixels if rows is None else images.pixels[rows]
        planes = pixels.reshape(len(pixels), -1, self.side, self.side)
        if self.brightest != 255:
            planes = (planes.astype(np.uint16) * 255 // self.brightest).astype(np.uint8)
        return PreviewSet.images(planes, samples=rows, channels="first")


_DIGITS = tuple(str(digit) for digit in range(10))


def digits() -> Dataset:
    """The 1,797 handwritten digits of 8 x 8 pixels that scikit-learn brings along, 397 of them held out by chance.

    Raises MissingPackage where scikit-learn is not installed. Source: UCI repository, "Optical Recognition of
    Handwritten Digits" (its test part).
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise missing_package(error) or error from None
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(pixels))
    pixels, labels = pixels[order].astype(np.uint8), labels[order].astype(np.int64)
    train, test = (Images(pixels[rows], labels[rows]) for rows in (slice(_HELD_OUT, None), slice(_HELD_OUT)))
    return Dataset("digits", train, test, 8, _DIGITS, every_row(len(train)), brightest=16)


def permuted(dataset: Dataset) -> Dataset:
    """The same images with their pixels in another order, one order for all: as hard to learn, with no pixel in common.

    Source: Goodfellow et al. 2013, "An empirical investigation of catastrophic forgetting in gradient-based networks".
    """
    order = np.random.default_rng(0).permutation(dataset.side**2)
    train, test = (Images(part.pixels[:, order], part.labels) for part in (dataset.train, dataset.test))
    return replace(dataset, name=f"permuted-{dataset.name}", train=train, test=test)


_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_SIDE = 28


class Source(NamedTuple):
    """Where a dataset's four IDX files come from."""

    home: str
    md5: tuple[str, str, str, str]
    """Of the gzipped files, in the order of `_FILES`."""
    label_names: tuple[str, ...]


SOURCES = {
    # LeCun's own server turns downloads away; PyTorch keeps this mirror of his files.
    "mnist": Source(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        _DIGITS,
    ),
    "fashion-mnist": Source(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
}


def load_dataset(name: str, data: Path | None = None) -> Dataset:
    """The dataset `mnist`, `fashion-mnist` or `cifar-10` with the split of the paper's code.

    Of the first two, 40,053 of 60,000 training images are trained on, if the files are the originals.

    Raises NotFound for another name and for a file that is neither there nor to be had, and Damaged, naming the file,
    for one that does not hold what it should.
    """
    if name == "cifar-10":
        train, test = read_cifar10(data)
        split = _choose_trained(np.arange(len(train)))
        return Dataset(name, train, test, 32, CIFAR10_LABELS, split, planes=3)
    if name not in SOURCES:
        hint = f"Datasets: {', '.join(SOURCES)}, cifar-10."
        raise NotFound(f"there is no dataset {name!r}.", hint=hint, field="dataset")
    folder = data_folder(data) / name
    paths = [find_file(folder, file) or _fetch(name, number, folder) for number, file in enumerate(_FILES)]
    train, test = _images(*paths[:2]), _images(*paths[2:])
    return Dataset(name, train, test, _SIDE, SOURCES[name].label_names, draw_split(len(train)))


def _fetch(name: str, number: int, folder: Path) -> Path:
    """Download one file of a dataset into the folder; pooch gives it its name only once the hash fits."""
    try:
        import pooch
    except ImportError as error:
        raise missing_package(error) or error from None
    source, file = SOURCES[name], f"{_FILES[number]}.gz"
    try:
        return Path(pooch.retrieve(source.home + file, f"md5:{source.md5[number]}", fname=file, path=folder))
    # requests' errors and the system's are OSErrors; pooch reports a wrong hash as a ValueError.
    except (OSError, ValueError) as error:
        # Without a network, the transport's own account fills several lines.
        why = str(error) if len(str(error)) <= 160 else f"{type(error).__name__} (is there a network?)"
        raise NotFound(
            f"{file} of {name} is not in {folder}, and downloading it from {source.home} failed: {why}.",
            hint=f"Name a folder that holds {name}/{file} with --data DIR or the environment variable {DATA_VARIABLE}.",
            field="data",
        ) from error


def _images(images: Path, labels: Path) -> Images:
    pixels, classes = read_idx(images, 3), read_idx(labels, 1).astype(np.int64)
    if pixels.shape[1:] != (_SIDE, _SIDE):
        raise damaged(images, f"has images of {pixels.shape[1]} x {pixels.shape[2]} pixels instead of 28 x 28")
    if not len(pixels) or len(pixels) != len(classes):
        what = f"has {len(classes)} labels for {len(pixels)} images in {images}"
        raise damaged(labels, what, "Remove both files and fetch them again.")
    return Images(pixels.reshape(len(pixels), -1), _checked(labels, classes))


def _checked(path: Path, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    if labels.max() > 9:
        raise damaged(path, f"has a label {labels.max()}; classes are 0 to 9")
    return labels


FOLDER = "cifar-10-batches-bin"
"""What the official archive unpacks to."""
CIFAR10_HOME = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR10_LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_RECORD = 1 + 3 * 32 * 32
"""Bytes of a label and its image."""


def read_cifar10(data: Path | None = None) -> tuple[Images, Images]:
    """Training and test images, 50,000 and 10,000 if the files are the originals.

    Raises NotFound for a file that is missing, saying where the archive is to be had, and Damaged, naming the file, for
    one that does not hold what it should.
    """
    folder = data_folder(data) / FOLDER
    *parts, test = (_cifar10_images(folder, f"{name}.bin") for name in (*_CIFAR10_TRAIN, "test_batch"))
    return Images(np.concatenate([one.pixels for one in parts]), np.concatenate([one.labels for one in parts])), test


_CIFAR10_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))


def _cifar10_images(folder: Path, name: str) -> Images:
    path = find_file(folder, name)
    if path is None:
        raise missing_file(f"{name} of CIFAR-10", folder, f"Unpack {CIFAR10_HOME} into the data folder")
    content = np.frombuffer(read_file(path), dtype=np.uint8)
    if not len(content) or len(content) % _RECORD:
        what = f"has {len(content)} bytes, not a multiple of the {_RECORD} bytes of a CIFAR-10 image"
        raise damaged(path, what, "Remove the file and fetch the version for C programs, not the one for Python.")
    records = content.reshape(-1, _RECORD)
    return Images(records[:, 1:], _checked(path, records[:, 0].astype(np.int64)))

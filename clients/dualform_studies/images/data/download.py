"""MNIST and Fashion-MNIST: found in a folder, or fetched once from their official homes and checked.

    DIR/mnist/train-images-idx3-ubyte.gz  …            DIR/fashion-mnist/train-images-idx3-ubyte.gz  …

DIR is the folder given, else that of the environment variable DUALFORM_DATA, else a cache folder of the user. Files
found there are read as they are; hashes are checked of what is downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualform.errors import Damaged, NotFound
from dualform.extras import missing_package
from dualform_studies.data_folder import DATA_VARIABLE, data_folder
from dualform_studies.images.data.datasets import Dataset, Images
from dualform_studies.images.data.idx import read_idx
from dualform_studies.images.data.split import draw_split

_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_SIDE = 28


@dataclass(frozen=True)
class Source:
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
        tuple(str(digit) for digit in range(10)),
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
    """The dataset `mnist` or `fashion-mnist`: 60,000 training and 10,000 test images where the files are the originals.

    It has the split of the paper's code, 40,053 of these 60,000 to train on.

    Raises NotFound for another name and where a file is neither there nor to be had, and Damaged, naming the file,
    where one does not hold what it should.
    """
    if name not in SOURCES:
        raise NotFound(f"there is no dataset {name!r}.", hint=f"Datasets: {', '.join(SOURCES)}.", field="dataset")
    folder = data_folder(data) / name
    paths = [_local(folder, file) or _fetch(name, number, folder) for number, file in enumerate(_FILES)]
    train, test = _images(*paths[:2]), _images(*paths[2:])
    return Dataset(name, train, test, _SIDE, SOURCES[name].label_names, draw_split(len(train)))


def _local(folder: Path, file: str) -> Path | None:
    return next((path for path in (folder / f"{file}.gz", folder / file) if path.is_file()), None)


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
        raise NotFound(
            f"{file} of {name} is not in {folder}, and downloading it from {source.home} failed: {_reason(error)}.",
            hint=f"Name a folder that holds {name}/{file} with --data DIR or the environment variable {DATA_VARIABLE}.",
            field="data",
        ) from error


def _reason(error: Exception) -> str:
    """What went wrong, in a line: the transport's own account of a machine without a network fills several."""
    told = str(error)
    return told if len(told) <= 160 else f"{type(error).__name__} (is there a network?)"


def _images(images: Path, labels: Path) -> Images:
    pixels, classes = read_idx(images, 3), read_idx(labels, 1).astype(np.int64)
    if pixels.shape[1:] != (_SIDE, _SIDE):
        raise Damaged(
            f"{images} has images of {pixels.shape[1]} x {pixels.shape[2]} pixels instead of 28 x 28.",
            hint="Remove the file and fetch it again.",
        )
    if not len(pixels) or len(pixels) != len(classes):
        raise Damaged(
            f"{labels} has {len(classes)} labels for {len(pixels)} images in {images}.",
            hint="Remove both files and fetch them again.",
        )
    if classes.max() > 9:
        raise Damaged(
            f"{labels} has a label {classes.max()}; classes are 0 to 9.", hint="Remove the file and fetch it again."
        )
    return Images(pixels.reshape(len(pixels), -1), classes)

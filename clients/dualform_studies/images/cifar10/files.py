"""Reader of CIFAR-10's binary version: five files of training images and one of test images, in one folder.

    DIR/cifar-10-batches-bin/data_batch_1.bin … data_batch_5.bin, test_batch.bin          each as it is, or with .gz

A record is one byte for the class and 3,072 for the image: 1,024 red pixels row by row, as many green, as many blue
(https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version").
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dualform.errors import Damaged, NotFound
from dualform_studies.data_folder import DATA_VARIABLE, data_folder
from dualform_studies.images.data.datasets import Images
from dualform_studies.images.data.idx import file_content

FOLDER = "cifar-10-batches-bin"
"""What the official archive unpacks to."""
HOME = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
LABEL_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32
"""Bytes of an image."""

_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = "test_batch.bin"


def read_cifar10(data: Path | None = None) -> tuple[Images, Images]:
    """Training and test images, 50,000 and 10,000 where the files are the originals.

    Raises NotFound where a file is missing, saying where the archive is to be had, and Damaged, naming the file, where
    one does not hold what it should.
    """
    folder = data_folder(data) / FOLDER
    paths = [_found(folder, name) for name in (*_TRAIN, _TEST)]
    parts = [_images(path) for path in paths]
    train = Images(
        np.concatenate([part.pixels for part in parts[:-1]]), np.concatenate([part.labels for part in parts[:-1]])
    )
    return train, parts[-1]


def _found(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise NotFound(
        f"{name} of CIFAR-10 is not in {folder}.",
        hint=f"Unpack {HOME} into a folder, and name that folder with --data DIR or the environment variable "
        f"{DATA_VARIABLE}.",
        field="data",
    )


def _images(path: Path) -> Images:
    content = np.frombuffer(file_content(path), dtype=np.uint8)
    if not len(content) or len(content) % (1 + PIXELS):
        raise Damaged(
            f"{path} has {len(content)} bytes, not a multiple of the {1 + PIXELS} bytes of a CIFAR-10 image.",
            hint="Remove the file and fetch the version for C programs, not the one for Python.",
        )
    records = content.reshape(-1, 1 + PIXELS)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= len(LABEL_NAMES):
        raise Damaged(
            f"{path} has a label {labels.max()}; classes are 0 to 9.",
            hint="Remove the file and fetch it again.",
        )
    return Images(records[:, 1:], labels)

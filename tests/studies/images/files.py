"""Small datasets in files, and those that are installed."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

from dualform_studies.assignment import data_folder, find_file
from dualform_studies.images.datasets import _FILES, FOLDER


def at_hand(name: str, data: Path | None) -> bool:
    """Whether all four files of a dataset lie in the folder."""
    return all(find_file(data_folder(data) / name, file) for file in _FILES)


def write_idx(path: Path, array: np.ndarray, kind: int = 8) -> Path:
    header = struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def write_dataset(folder: Path, seed: int, train: int = 400, test: int = 60) -> Path:
    """Ten classes, each a pattern of its own under noise: easy to learn, and other patterns with another seed."""
    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, 2, (10, 28, 28)) * 200
    for part, count in (("train", train), ("t10k", test)):
        labels = np.arange(count) % 10
        images = np.clip(patterns[labels] + rng.integers(0, 56, (count, 28, 28)), 0, 255)
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels)
    return folder


CIFAR10_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR10_EACH = 60


def cifar10_records(seed: int, count: int = CIFAR10_EACH) -> bytes:
    """Images of ten classes, each a pattern of its own under noise; red, green and blue differ in brightness."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    patterns = np.random.default_rng(0).integers(0, 2, (10, 3, 1024)) * 120
    images = patterns[labels] + rng.integers(0, 40, (count, 3, 1024)) + np.array([0, 40, 90])[:, None]
    return np.column_stack([labels, images.reshape(count, -1)]).astype(np.uint8).tobytes()


def write_cifar10(folder: Path) -> None:
    """The six files of CIFAR-10, the last of them compressed."""
    (folder / FOLDER).mkdir()
    for seed, name in enumerate(CIFAR10_FILES):
        (folder / FOLDER / name).write_bytes(cifar10_records(seed))
    test = folder / FOLDER / CIFAR10_FILES[-1]
    test.with_name(f"{test.name}.gz").write_bytes(gzip.compress(test.read_bytes()))
    test.unlink()

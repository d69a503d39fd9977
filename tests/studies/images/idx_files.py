"""Small datasets in MNIST's own format, so that the real studies run without the real data."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np


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

"""Plain NumPy over a layer's files, in a process of its own: reads the keys and values of some slots once, and makes
their product.

`python -m benchmarks.product_process FOLDER STAYS.npy TYPE [QUERY.npy]` prints the seconds, without those of its
imports. FOLDER is a layer's, STAYS bool[T] of its slots, TYPE float32, float64, or "none": then it reads, and
multiplies nothing. With a QUERY, float32[1, d], the product is that query's output alone, and not the weights.
"""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def main(folder: Path, slots: Path, kind: str, query: Path | None = None) -> None:
    kept, first = np.load(slots), 0
    asked = None if query is None else np.load(query)[0]
    room, began, product = bytearray(1 << 20), time.perf_counter(), None
    for file in sorted(folder.glob("values-*.npy")):
        values = np.load(file, mmap_mode="r")
        own = kept[first : first + len(values)]
        first += len(values)
        if not own.any():
            continue
        of_keys = file.with_name(file.name.replace("values", "keys")).with_suffix(".faiss")
        matrices = [(file, values), (of_keys, _keys(of_keys, len(values)))]
        if kind == "none":
            low, high = np.flatnonzero(own)[[0, -1]].tolist()
            for place, matrix in matrices:
                _read(place, matrix.offset + low * matrix.strides[0], (high + 1 - low) * matrix.strides[0], room)
            continue
        stays = slice(None) if own.all() else own
        left, right = (_whole(place, matrix)[stays].astype(kind, copy=False) for place, matrix in matrices)
        part = left.T @ (right if asked is None else right @ asked)
        product = part if product is None else product + part
    print(time.perf_counter() - began)


def _keys(file: Path, rows: int) -> np.memmap[Any, Any]:
    """float32[rows, width], of which nothing is read yet; the header has the width as its second number."""
    width = int(np.fromfile(file, np.int32, 1, offset=4)[0])
    return np.memmap(file, np.float32, "r", offset=file.stat().st_size - 4 * width * rows, shape=(rows, width))


def _whole(file: Path, matrix: np.memmap[Any, Any]) -> NDArray[Any]:
    """All of a matrix, read into memory."""
    return np.fromfile(file, matrix.dtype, offset=matrix.offset).reshape(matrix.shape)


def _read(file: Path, start: int, left: int, room: bytearray) -> None:
    """Reads some bytes of a file, into one piece of memory again and again."""
    with io.FileIO(file) as stream:
        stream.seek(start)
        while left > 0 and (got := stream.readinto(memoryview(room)[:left])):
            left -= got


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], *map(Path, sys.argv[4:]))

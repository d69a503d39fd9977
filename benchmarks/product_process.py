"""Plain NumPy over a layer's files, in a process of its own: reads the keys and values of some slots once, and makes
their product.

`python -m benchmarks.product_process FOLDER STAYS.npy TYPE` prints the seconds, without those of its imports. FOLDER is
a layer's, STAYS bool[T] of its slots, TYPE float32 or float64.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np


def main(folder: Path, stays: Path, kind: str) -> None:
    kept, first = np.load(stays), 0
    began, product = time.perf_counter(), None
    for file in sorted(folder.glob("values-*.npy")):
        values = np.load(file)
        own = kept[first : first + len(values)]
        first += len(values)
        if not own.any():
            continue
        rows, place = len(values), file.with_name(file.name.replace("values", "keys")).with_suffix(".faiss")
        size = place.stat().st_size
        width = size // (4 * rows)
        keys = np.fromfile(place, np.float32, offset=size - 4 * width * rows).reshape(rows, width)
        if not own.all():
            keys, values = keys[own], values[own]
        part = values.astype(kind, copy=False).T @ keys.astype(kind, copy=False)
        product = part if product is None else product + part
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])

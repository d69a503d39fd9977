"""Plain FAISS over a layer's files, in a process of its own: `python -m benchmarks.faiss_process FOLDER QUERY.npy K`.

Reads one segment after the other, and prints the numbers of the best slots as JSON. FOLDER is a layer's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import faiss as _faiss
import numpy as np

# Its stubs know nothing of the constructors that its Python layer adds.
faiss: Any = _faiss


def main(folder: Path, query: Path, k: int) -> None:
    queries, before = np.load(query), 0
    scores, slots = list[Any](), list[Any]()
    for file in sorted(folder.glob("keys-*.faiss")):
        index = faiss.read_index(str(file))
        own, numbers = index.search(queries, min(k, index.ntotal))
        scores.append(own[0])
        slots.append(numbers[0] + before)
        before += index.ntotal
    order = np.argsort(-np.concatenate(scores), kind="stable")[:k]
    print(json.dumps(np.concatenate(slots)[order].tolist()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))

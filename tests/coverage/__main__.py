"""`python -m tests.coverage [WORDS]`: measure the rows whose names hold the words, write docs/results/coverage.*."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

REPEATS = 2
"""Beside the two trainings of a row that are held against each other."""


def main(words: str = "") -> None:
    import torch  # here, for the processes of ranks import this file and need none of it

    from . import document
    from .measure import measure
    from .rows import ROWS

    torch.set_num_threads(1)
    for row in ROWS:
        if words in row.name:
            with tempfile.TemporaryDirectory() as folder:
                document.write({row.name: measure(row, Path(folder) / "run", REPEATS)})
            sys.stderr.write(f"{row.name}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

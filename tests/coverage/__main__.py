"""`python -m tests.coverage [WORDS]`: measure the rows whose names hold the words, and write docs/coverage.*."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from . import document
from .measure import measure
from .rows import ROWS


def main(words: str = "") -> None:
    torch.set_num_threads(1)
    for row in ROWS:
        if words in row.name:
            with tempfile.TemporaryDirectory() as folder:
                document.write({row.name: measure(row, Path(folder) / "run")})
            sys.stderr.write(f"{row.name}\n")


main(*sys.argv[1:])

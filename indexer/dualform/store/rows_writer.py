"""Writes one layer's keys, or its values: a matrix file for each commit, and for each form of its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dualform.store.direct_file import Blocks
from dualform.store.increment import RowBytes
from dualform.store.layer import Layer
from dualform.store.matrix_file import MatrixForm, MatrixWriter


class RowsWriter:
    """Gathers rows until a commit; `kind` is "keys" or "values"."""

    def __init__(self, layer: Layer, kind: str, folder: Path, blocks: Blocks) -> None:
        self._layer, self._kind, self._folder, self._blocks = layer, kind, folder, blocks
        self._segment = 0
        self._before = 0
        """Rows of the commits so far."""
        self._open: list[MatrixWriter] = []
        """One for each form that rows came in since the last commit."""
        self._seen = 0

    def append(self, rows: NDArray[Any], form: MatrixForm) -> int:
        """Add rows [n, *shape] of a form; returns their bytes. A form that gave way comes back after a commit only."""
        if not len(rows):
            return 0
        if not self._open or self._open[-1].form != form:
            path = self._folder / f"{self._kind}-{self._segment:06d}.{form.suffix}"
            self._open.append(MatrixWriter(path, form, self._blocks))
        self._open[-1].append(rows)
        return rows.nbytes

    def unseen(self) -> list[RowBytes]:
        """The rows gathered since the last call; they are overwritten once the segment is finished."""
        found, first = [], self._before
        for writer in self._open:
            new, last = max(first, self._seen), first + writer.rows
            if last > new:
                form = writer.form
                pieces = writer.unseen()
                found.append(
                    RowBytes(self._layer.name, self._kind, new, last - new, form.width, pieces, form.dtype.str)
                )
            first = last
        self._seen = first
        return found

    def finish(self, segment: int) -> list[tuple[Any, ...]]:
        """Make what was gathered durable; returns its rows for the table `segments`. `begin` is to follow."""
        rows, first = [], self._before
        for writer in self._open:
            size, checksums = writer.finish()
            file = f"layers/{self._layer.folder}/{writer.path.name}"
            rows.append((segment, self._layer.name, self._kind, file, first, writer.rows, size, checksums))
            first += writer.rows
        return rows

    def begin(self, segment: int) -> None:
        """What was gathered is durable: gather for another segment."""
        self._before += sum(writer.rows for writer in self._open)
        self._open, self._seen, self._segment = [], self._before, segment

    def discard(self) -> None:
        """Remove what was gathered, with those of its files that were finished before another one failed."""
        for writer in self._open:
            writer.discard()
        self._open = []

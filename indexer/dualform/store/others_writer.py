"""Writes what no slot explains of a training, moment by moment (others.py): a file for each commit that has rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dualform.store.direct_file import Blocks
from dualform.store.durable_files import make_folder, sync_folder
from dualform.store.increment import RowBytes
from dualform.store.others import FOLDER, KIND, OtherRow, Others
from dualform.store.rows_writer import RowsWriter


class OthersWriter:
    """Gathers rows until a commit. Without `others` there are none."""

    def __init__(self, others: Others | None, shard_folder: Path, blocks: Blocks) -> None:
        self._others, self._folder = others, shard_folder / FOLDER
        self._moments: list[tuple[int]] = []
        if others is not None:
            make_folder(self._folder)
        self._rows = RowsWriter("", KIND, shard_folder, FOLDER, blocks)

    def append(self, rows: Sequence[OtherRow]) -> int:
        """Returns the bytes gathered."""
        if self._others is None:
            return 0
        self._moments += [(row.at_step,) for row in rows]
        return sum(self._rows.append(row.content[None], self._others.form) for row in rows)

    def take_moments(self) -> list[tuple[int]]:
        """The rows for the table `other_rows` since the last call."""
        taken, self._moments = self._moments, []
        return taken

    def unseen(self) -> list[RowBytes]:
        """As RowsWriter."""
        return self._rows.unseen()

    def write(self) -> None:
        """As RowsWriter."""
        self._rows.write()

    def finish(self, segment: int) -> list[tuple[Any, ...]]:
        """Make the open file durable; returns its rows for the table `other_segments`."""
        rows = [(number, *rest) for number, _, _, *rest in self._rows.finish(segment)]
        if rows:
            sync_folder(self._folder)
        self._rows.begin(segment + 1)
        return rows

    def discard(self) -> None:
        """Remove the open file, finished or not."""
        self._rows.discard()

"""Whether the processes of a training gave each layer's slots the same space, and its batch the same axis; and their
columns (rank_columns.py).

Each chooses by its own first batch, and where they chose apart, the slots of one would be those of another space.

Shapes: T layers, and n numbers of both.
"""

from __future__ import annotations

import zlib

import numpy as np

from dualform.errors import RecordingError
from dualform.record.metadata import StepColumns
from dualform.record.projection import Doubles
from dualform.record.rank_columns import RankColumns
from dualform.record.spaces import Spaces
from dualform.record.training_shard import TrainingShard

_CODES = 1 << 20
"""So few that the sum of squares over thousands of processes is a whole number in float64."""


class Placement:
    """Where one process has the slots of its layers, and what it says of them."""

    def __init__(self, spaces: Spaces, columns: StepColumns) -> None:
        self._spaces, self._columns = spaces, RankColumns(columns)

    @property
    def numbers(self) -> Doubles:
        """float64[n], to be added up: of each layer that has slots 1, a code of its place, and the code's square; and
        the numbers of the columns.
        """
        codes = [self._code(layer) for layer in self._spaces.all_layers]
        seen = [(0, 0, 0) if code is None else (1, code, code * code) for code in codes]
        return np.concatenate([np.array(seen, dtype=np.float64).reshape(-1), self._columns.numbers])

    def _code(self, layer: str) -> int | None:
        """Of space and axis; None for a layer without slots."""
        if layer not in self._spaces.layers:
            return None
        place = f"{self._spaces.layers[layer]}/{self._spaces.axis_of(layer)}"
        return zlib.crc32(place.encode()) % _CODES

    def check(self, total: Doubles, shard: TrainingShard) -> None:
        """`total` float64[n]: the sum of `numbers` over all processes, which call this together.

        Raises RecordingError for a layer that several processes have in different places: on each of them alike; and as
        RankColumns.
        """
        *layers, columns = total.reshape(-1, 3)
        self._columns.check(columns, shard)
        for layer, numbers in zip(self._spaces.all_layers, (own.tolist() for own in layers), strict=True):
            count, codes, squares = map(int, numbers)
            if count * squares != codes * codes:
                raise RecordingError(
                    f"layer {layer!r} has another space or batch axis on another rank{self._here(layer)}.",
                    hint=f"Pass the same spaces={{{layer!r}: …}} to Recorder and batch_dim= to recorder.step on "
                    f"every rank.",
                    field="spaces",
                )

    def _here(self, layer: str) -> str:
        if layer not in self._spaces.layers:
            return ""
        space, axis = self._spaces.layers[layer], self._spaces.axis_of(layer)
        return f"; on this rank it is in {space!r}, with the batch in axis {axis}"

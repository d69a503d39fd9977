"""What a stored preview set has of the samples that were asked for, as a kind of preview sets makes an answer of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True)
class FoundRows:
    """Shapes: n samples were asked for, m of them are in the preview set."""

    path: Path
    """Of the file, for errors that name it."""
    rows: pa.RecordBatch
    """m rows by the schema of the kind, in the order of the samples that are known."""
    samples: NDArray[np.int64]
    """int64[n]."""
    known: NDArray[np.bool_]
    """bool[n], m of them true."""
    scale: tuple[float, float] | None
    """What `Content.scale` was when the preview set was stored."""

    def has(self, column: str) -> bool:
        """Whether the preview set was stored with a column that not all of its kind have."""
        return column in self.rows.schema.names

    def spread(self, values: Iterable[Any], missing: Any) -> tuple[Any, ...]:
        """Those of the m known samples, and `missing` in the others' places."""
        given = iter(values)
        return tuple(next(given) if own else missing for own in self.known.tolist())

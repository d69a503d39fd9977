"""A stored set of queries. Shapes: n queries, d numbers of a layer's input."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dualform.answers.scan import Scan


@dataclass(frozen=True, eq=False)
class Probe:
    """Stored queries and what the model answered to them: n examples, d inputs of a layer."""

    name: str
    labels: NDArray[np.int64] | None
    """int64[n], -1 where unknown."""
    outputs: NDArray[np.float32] | None
    """float32[n, outputs] of the whole model when the probe was taken."""
    queries: NDArray[np.float32] | None = None
    """float32[n, d] of the layer that was asked for, else None; of a layer that sees tokens or places, those of each
    example after one another, float32[n * L, d].
    """
    scan: Scan = field(default_factory=Scan)

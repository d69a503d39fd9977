"""Scores by NumPy's matrix product: as fast as any on a CPU, and always there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class NumpyBackend:
    name = "numpy"
    rounding = 0.0

    def scores(self, keys: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.float32]:
        return queries @ keys.T

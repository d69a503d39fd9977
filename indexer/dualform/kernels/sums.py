"""Calls of the loops that add up absolute scores by group (sums.c)."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from dualform.kernels import compiled
from dualform.kernels.arguments import Runs, Scores, fits, rows_address


def sum_runs(runs: Runs, scores: NDArray[np.float64], sums: NDArray[np.float64]) -> None:
    """Add absolute values of float64[b, n] scores, whose rows lie in runs, to float64[G, n] sums of their groups."""
    (place, apart), (out, sums_apart) = rows_address(scores, np.float64), rows_address(sums, np.float64, written=True)
    _check(runs, scores, sums)
    how = Scores(place, None, None, apart, 0, sums_apart, scores.shape[1])
    compiled().dualform_sum_runs(ctypes.byref(runs), ctypes.byref(how), None, out)


def sum_deviations(
    runs: Runs,
    scores: NDArray[np.float32],
    base: NDArray[np.float32],
    drift: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> None:
    """Add float32[b, n] scores of deviations to float64[G, n] `drift` and, each with the float32[G, n] `base` of its
    group, their absolute values to float64[G, n] `sums`, which is strided as `drift` is.
    """
    (place, apart), (own_base, base_apart) = rows_address(scores, np.float32), rows_address(base, np.float32)
    (out, sums_apart), (drifts, drift_apart) = (
        rows_address(array, np.float64, written=True) for array in (sums, drift)
    )
    _check(runs, scores, base, drift, sums)
    fits(sums_apart == drift_apart or len(sums) < 2, "sums that lie as far apart")
    how = Scores(None, place, own_base, apart, base_apart, sums_apart, scores.shape[1])
    compiled().dualform_sum_runs(ctypes.byref(runs), ctypes.byref(how), drifts, out)


def _check(runs: Runs, scores: NDArray[np.floating], *of_groups: NDArray[np.floating]) -> None:
    fits(runs.rows <= len(scores), "scores of each row of a run")
    for array in of_groups:
        fits(runs.most_group < len(array) and array.shape[1] == scores.shape[1], "sums of each group and column")

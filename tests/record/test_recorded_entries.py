"""Which entries of a weight are watched."""

from __future__ import annotations

import numpy as np
import pytest

from dualform.record.recorded_entries import ENTRIES, _choose


@pytest.mark.parametrize("shape", [(1, 1), (33, 32), (64, 64), (4096, 1), (20_000,), (2, 2048)])
def test_a_small_weight_is_watched_whole(shape):
    chosen = _choose(shape, np.random.default_rng(0))
    assert len(set(zip(chosen.rows.tolist(), chosen.columns.tolist(), strict=True))) == np.prod(shape)
    assert chosen.norm_factor == 1


@pytest.mark.parametrize("shape", [(65, 64), (64, 128), (128, 64), (5000, 8), (3, 5000), (2048, 2048), (96, 80)])
def test_of_a_larger_one_no_entry_is_drawn_twice_and_rows_and_columns_alike(shape):
    chosen = _choose(shape, np.random.default_rng(0))
    drawn = set(zip(chosen.rows.tolist(), chosen.columns.tolist(), strict=True))
    assert len(drawn) == ENTRIES
    for part, count in zip((chosen.rows, chosen.columns), shape, strict=True):
        times = np.bincount(part.numpy(), minlength=count)
        assert len(times) == count
        assert times.max() <= -(-ENTRIES // count) + 1
        assert times.min() >= ENTRIES // count - 1

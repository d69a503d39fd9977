"""Which entries of a weight are watched, and what slots bring to them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dualform import kernels
from dualform.record.audit.parameters import ENTRIES, RUN, _choose, add_terms
from tests.cases import pairwise


@pytest.mark.parametrize("shape", [(1, 1), (33, 32), (64, 64), (4096, 1), (20_000,), (2, 2048)])
def test_a_small_weight_is_watched_whole(shape):
    chosen = _choose(shape, np.random.default_rng(0))
    assert len(set(zip(chosen.rows.tolist(), chosen.columns.tolist(), strict=True))) == np.prod(shape)
    assert chosen.norm_factor == 1


@pytest.mark.parametrize(
    "shape", [(65, 64), (64, 128), (128, 64), (5000, 8), (3, 5000), (2048, 2048), (96, 80), (64, 80), (30, 1000)]
)
def test_of_a_larger_one_no_entry_is_drawn_twice_and_rows_and_columns_alike(shape):
    chosen = _choose(shape, np.random.default_rng(0))
    drawn = set(zip(chosen.rows.tolist(), chosen.columns.tolist(), strict=True))
    assert len(drawn) == ENTRIES
    for part, count in zip((chosen.rows, chosen.columns), shape, strict=True):
        times = np.bincount(part.numpy(), minlength=count)
        assert len(times) == count
        assert times.max() <= -(-ENTRIES // count) + 1
        assert times.min() >= ENTRIES // count - 1


@pytest.mark.parametrize(
    ("slots", "compiled", "kind"), pairwise([0, 1, 3, 4, 1030], [True, False], [torch.float32, torch.float64])
)
def test_terms_of_entries_are_those_of_the_outer_products(slots, compiled, kind, monkeypatch):
    if not compiled:
        monkeypatch.setattr(kernels, "library", lambda: None)
    rng = np.random.default_rng(slots)
    wide = torch.from_numpy(rng.normal(size=(slots, 70))).to(kind)
    keys, errors = wide[:, 3:44], torch.from_numpy(rng.normal(size=(slots, 37))).float()
    columns, rows = (torch.from_numpy(_with_runs(rng, count)) for count in (41, 37))
    for key in (keys, keys.contiguous(), keys.T.contiguous().T, keys[:1].expand(slots, 41)):
        sums, magnitudes = np.ones(len(rows)), np.full(len(rows), 2.0)
        add_terms(key, columns, errors, rows, sums, magnitudes)
        terms = errors.double().numpy()[:, rows] * key.double().numpy()[:, columns]
        np.testing.assert_allclose(sums, 1.0 + terms.sum(0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(magnitudes, 2.0 + np.abs(terms).sum(0), rtol=1e-12, atol=1e-12)


def _with_runs(rng, count):
    """int64[n]: single numbers below `count` and runs of neighbours, at the same places in every draw."""
    runs = [rng.integers(count - RUN - 1) + np.arange(length) for length in (RUN, RUN, RUN // 2, RUN + 1)]
    return np.concatenate([runs[0], rng.integers(0, count, 5), *runs[1:], rng.integers(0, count, 9)])


@pytest.mark.parametrize("shape", [(256, 256), (1024, 256), (800, 784)])
def test_most_entries_of_a_usual_weight_lie_in_runs(shape):
    chosen = _choose(shape, np.random.default_rng(0))
    steps = [np.diff(part.numpy()).reshape(-1) == 1 for part in (chosen.rows, chosen.columns)]
    assert (steps[0] & steps[1]).sum() >= ENTRIES * 0.9

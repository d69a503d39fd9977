"""Matrices along directions, and entries of them, are those of NumPy in float64, whatever the matrix is made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dualform import kernels
from dualform.record.audit.parameters import ENTRIES, RUN, RecordedParameters, _choose, add_terms
from dualform.record.projection import DIRECTIONS, Directions, Parts
from dualform.record.taps.linear import TappedLinear
from tests.cases import pairwise, some

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(params=["compiled", "torch"])
def matrices(request, monkeypatch):
    """Float and half matrices of whole and of scattered rows."""
    if request.param == "torch":
        monkeypatch.setattr(kernels, "library", lambda: None)
    source = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 74)))
    return [made for kind in KINDS for made in (source.to(kind), source.to(kind)[:, ::2])]


def drawn(columns, seed=1):
    return Directions.drawn(columns, np.random.default_rng(seed))


def assert_outer(keys, errors):
    along, wide = drawn(keys.shape[1]), errors.double().numpy()
    projected = keys.double().numpy() @ along.matrix
    to = np.ones(errors.shape[1] * DIRECTIONS)
    outer = along.add_outer(keys, errors, to)
    np.testing.assert_allclose(to, 1.0 + (wide.T @ projected).reshape(-1), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(outer.summed, wide.sum(axis=0), rtol=1e-12, atol=1e-12)
    assert outer.errors_square == pytest.approx(np.square(wide).sum(), rel=1e-12)
    assert outer.keys_square == pytest.approx(np.square(projected).sum(), rel=1e-12)


def test_sums_of_outer_products(matrices):
    for keys in some(matrices):
        for errors in matrices:
            assert_outer(keys, errors)


def test_some_columns_of_a_wider_matrix_are_projected(matrices):
    for matrix in some(matrices):
        along = drawn(11)
        expected = matrix.double().numpy()[:, 3:14] @ along.matrix
        np.testing.assert_allclose(along.project(matrix[:, 3:14]), expected, rtol=1e-12, atol=1e-12)
        assert_outer(matrix[:, 3:14], matrix)


@pytest.mark.parametrize(("kind", "compiled"), [*zip(KINDS, [True, False, False, True], strict=True)])
def test_parameters_are_projected_together(kind, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(kernels, "library", lambda: None)
    model = torch.nn.Sequential(torch.nn.Linear(13, 9), torch.nn.Linear(9, 5, bias=False), torch.nn.Linear(5, 1)).to(
        kind
    )
    taps = [TappedLinear(str(number), layer) for number, layer in enumerate(model)]
    parameters = RecordedParameters(taps, np.random.default_rng(0))
    expected = [
        (wide if p.directions is None else wide @ p.directions.matrix).reshape(-1)
        for p in parameters
        for wide in [p.tensor.detach().double().numpy()]
    ]
    np.testing.assert_allclose(parameters.weights(), np.concatenate(expected), rtol=1e-12, atol=1e-12)
    chosen = np.array([True, False, True, False, True])
    left = [part if there else 0 * part for part, there in zip(expected, chosen, strict=True)]
    np.testing.assert_allclose(parameters.weights(chosen), np.concatenate(left), rtol=1e-12, atol=1e-12)


def test_norms_along_the_directions_are_those_of_the_matrix():
    """In the mean over directions, for full matrices as for one column; and no single column is overlooked."""
    rng = np.random.default_rng(0)
    full, one = rng.normal(size=(4, 100)), np.zeros((4, 100))
    one[:, 37] = rng.normal(size=4)
    for matrix, spread in ((full, 0.6), (one, 0.3)):
        found = np.array([np.linalg.norm(matrix @ drawn(100, seed).matrix) for seed in range(400)]) / DIRECTIONS**0.5
        ratios = found / np.linalg.norm(matrix)
        assert np.square(ratios).mean() == pytest.approx(1.0, rel=0.05)
        assert ratios.min() > 1 - spread
        assert ratios.max() < 1 + spread


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "NumPy"])
def test_sums_by_part_are_those_of_numpy(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(kernels, "library", lambda: None)
    lengths, turned = [1, 8, 13, 3, 64], [False, False, False, False, True]
    parts, rng = Parts(lengths, turned), np.random.default_rng(2)
    a, b, c, d = rng.normal(size=(4, sum(lengths)))
    b[9:22] = 0.0
    along, states = rng.normal(size=DIRECTIONS), np.stack([c, b])
    compared, distances = parts.compare(a, b, along), parts.distances(a, states, d)
    np.testing.assert_array_equal(states, [c, a])
    for number, (start, length) in enumerate(zip(parts.starts, lengths, strict=False)):
        x, y, z, w = (vector[start : start + length] for vector in (a, b, c, d))
        expected = [np.square(off).sum() for off in (x - y, x - z, x - w, x, y)]
        np.testing.assert_allclose(distances[:, number], expected, rtol=1e-12)
        if turned[number]:
            x, y = x.reshape(-1, DIRECTIONS) @ along, y.reshape(-1, DIRECTIONS) @ along
        factor = x @ y / (y @ y) if y.any() else 1.0
        left = x - factor * y
        np.testing.assert_allclose(compared[number], [factor, x @ x, left @ left], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 1), (64, 64), (20_000,)])
def test_a_small_weight_is_watched_whole(shape):
    chosen = _choose(shape, np.random.default_rng(0))
    assert len(set(zip(chosen.rows.tolist(), chosen.columns.tolist(), strict=True))) == np.prod(shape)
    assert chosen.norm_factor == 1


@pytest.mark.parametrize("shape", [(65, 64), (5000, 8), (3, 5000), (2048, 2048), (30, 1000)])
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

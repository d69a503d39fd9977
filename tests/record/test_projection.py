"""Matrices along directions are those of NumPy in float64, whatever the matrix is made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dualform import kernels
from dualform.record.projection import DIRECTIONS, Directions, Parts, fold

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


def assert_folded(matrix, weights):
    wide, folded = matrix.double().numpy(), fold(matrix, torch.from_numpy(weights))
    np.testing.assert_allclose(folded.weighted, (wide.T @ weights).reshape(-1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(folded.summed, wide.sum(axis=0), rtol=1e-12, atol=1e-12)
    assert folded.square == pytest.approx(np.square(wide).sum(), rel=1e-12)
    assert folded.weights_square == pytest.approx(np.square(weights).sum(), rel=1e-12)


def test_folds(matrices):
    for matrix in matrices:
        assert_folded(matrix, np.random.default_rng(1).normal(size=(9, DIRECTIONS)))


def test_projections(matrices):
    for matrix in matrices:
        along = drawn(matrix.shape[1])
        expected = matrix.double().numpy() @ along.matrix
        np.testing.assert_allclose(along.project(matrix), expected, rtol=1e-12, atol=1e-12)
        into = torch.zeros(expected.size, dtype=torch.float64)
        along.project(matrix, into)
        np.testing.assert_allclose(into, expected.reshape(-1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(0, 5), (1, 1), (2, 7), (3, 8), (5, 17), (130, 33), (300, 16)])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "torch"])
def test_the_compiled_loops_take_matrices_of_any_shape(rows, columns, compiled, monkeypatch):
    rng = np.random.default_rng(rows)
    matrix = rng.normal(size=(rows, columns)).astype(np.float32)
    if not compiled:
        monkeypatch.setattr(kernels, "library", lambda: None)
    tensor, along = torch.from_numpy(matrix), drawn(columns)
    np.testing.assert_allclose(along.project(tensor), matrix.astype(float) @ along.matrix, rtol=1e-12, atol=1e-12)
    assert_folded(tensor, rng.normal(size=(rows, DIRECTIONS)))


def test_some_columns_of_a_wider_matrix_are_projected(matrices):
    for matrix in matrices:
        along = drawn(11)
        expected = matrix.double().numpy()[:, 3:14] @ along.matrix
        np.testing.assert_allclose(along.project(matrix[:, 3:14]), expected, rtol=1e-12, atol=1e-12)


def test_a_matrix_of_another_width_is_refused():
    with pytest.raises(TypeError, match=r"^directions of 5 columns cannot take a matrix of 6\.$"):
        drawn(5).project(torch.zeros(2, 6))


def test_norms_along_the_directions_are_those_of_the_matrix():
    """In the mean over directions, for full matrices as for one column; and no single column is overlooked."""
    rng = np.random.default_rng(0)
    full, one = rng.normal(size=(4, 100)), np.zeros((4, 100))
    one[:, 37] = rng.normal(size=4)
    for matrix, spread in ((full, 0.6), (one, 0.3)):
        found = np.array([np.linalg.norm(matrix @ drawn(100, seed).matrix) for seed in range(400)]) / DIRECTIONS**0.5
        ratios = found / np.linalg.norm(matrix)
        assert np.square(ratios).mean() == pytest.approx(1.0, rel=0.05)
        assert ratios.min() > 1 - spread and ratios.max() < 1 + spread


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "NumPy"])
def test_sums_by_part_are_those_of_numpy(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(kernels, "library", lambda: None)
    lengths = [1, 8, 13, 3, 64]
    parts, rng = Parts(lengths), np.random.default_rng(2)
    a, b, c, d = rng.normal(size=(4, sum(lengths)))
    b[9:22] = 0.0
    with np.errstate(all="ignore"):
        compared, distances = parts.compare(a, b), parts.distances(a, b, c, d)
    for number, (start, length) in enumerate(zip(parts.starts, lengths, strict=False)):
        x, y, z, w = (vector[start : start + length] for vector in (a, b, c, d))
        factor = x @ y / (y @ y) if y.any() else 1.0
        left = x - factor * y
        np.testing.assert_allclose(compared[:, number], [factor, x @ x, y @ y, left @ left], rtol=1e-12, atol=1e-12)
        expected = [np.square(off).sum() for off in (x - y, x - z, x - w, x, y)]
        np.testing.assert_allclose(distances[:, number], expected, rtol=1e-12)


def test_vectors_of_another_length_are_refused():
    with pytest.raises(TypeError, match=r"^a compiled loop wants vectors of 3 numbers, and got \[2, 3\]\.$"):
        kernels.compare(np.zeros(3), np.zeros(2), np.array([0, 3]))

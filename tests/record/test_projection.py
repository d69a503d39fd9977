"""Matrices along directions are those of NumPy in float64, whatever the matrix is made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dualform import kernels
from dualform.record.projection import DIRECTIONS, fold, project

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(params=["compiled", "torch"])
def matrices(request, monkeypatch):
    """Float and half matrices of whole and of scattered rows."""
    if request.param == "torch":
        monkeypatch.setattr(kernels, "library", lambda: None)
    source = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 74)))
    return [made for kind in KINDS for made in (source.to(kind), source.to(kind)[:, ::2])]


def test_folds(matrices):
    weights = np.random.default_rng(1).normal(size=(9, DIRECTIONS))
    for matrix in matrices:
        wide = matrix.double().numpy()
        weighted, summed, size = fold(matrix, weights)
        np.testing.assert_allclose(weighted, wide.T @ weights, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(summed, wide.sum(axis=0), rtol=1e-12, atol=1e-12)
        assert size == pytest.approx(np.linalg.norm(wide), rel=1e-12)


def test_projections(matrices):
    for matrix in matrices:
        for count in (1, DIRECTIONS):
            along = np.random.default_rng(1).normal(size=(count, matrix.shape[1]))
            found = project(matrix, along)
            np.testing.assert_allclose(found, matrix.double().numpy() @ along.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(0, 5), (1, 1), (2, 7), (3, 8), (5, 17), (130, 33), (300, 16)])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "torch"])
def test_the_compiled_loops_take_matrices_of_any_shape(rows, columns, compiled, monkeypatch):
    rng = np.random.default_rng(rows)
    matrix = rng.normal(size=(rows, columns)).astype(np.float32)
    wide, directions, weights = matrix.astype(float), rng.normal(size=(DIRECTIONS, columns)), rng.normal(size=(rows, 8))
    if not compiled:
        monkeypatch.setattr(kernels, "library", lambda: None)
    tensor = torch.from_numpy(matrix)
    for of in (directions, directions[:1]):
        np.testing.assert_allclose(project(tensor, of), wide @ of.T, rtol=1e-12, atol=1e-12)
    weighted, summed, size = fold(tensor, weights)
    np.testing.assert_allclose(weighted, wide.T @ weights, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(summed, wide.sum(axis=0), rtol=1e-12, atol=1e-12)
    assert size == pytest.approx(np.linalg.norm(wide), rel=1e-12)

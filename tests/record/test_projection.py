"""Matrices along directions are those of NumPy in float64, whatever the matrix is made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dualform import kernels
from dualform.record.projection import fold, project

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(params=["compiled", "torch"])
def matrices(request, monkeypatch):
    """Float and half matrices of whole and of scattered rows."""
    if request.param == "torch":
        monkeypatch.setattr(kernels, "library", lambda: None)
    source = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 74)))
    return [made for kind in KINDS for made in (source.to(kind), source.to(kind)[:, ::2])]


def test_folds(matrices):
    weights = np.random.default_rng(1).normal(size=(9, 3))
    for matrix in matrices:
        wide = matrix.double().numpy()
        weighted, summed, size = fold(matrix, weights)
        np.testing.assert_allclose(weighted, wide.T @ weights, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(summed, wide.sum(axis=0), rtol=1e-12, atol=1e-12)
        assert size == pytest.approx(np.linalg.norm(wide), rel=1e-12)


def test_projections(matrices):
    for matrix in matrices:
        along = np.random.default_rng(1).normal(size=(2, matrix.shape[1])).astype(np.float32)
        found = project(matrix, along)
        np.testing.assert_allclose(found, matrix.double().numpy() @ along.astype(float).T, rtol=1e-12, atol=1e-12)

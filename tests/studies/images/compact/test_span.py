from __future__ import annotations

import numpy as np
import pytest

from dualform_studies.images.compact.span import orthogonal_directions


def blocks(keys: np.ndarray, size: int):
    return (keys[start : start + size].astype(np.float32) for start in range(0, len(keys), size))


@pytest.mark.parametrize("size", [3, 16, 1000])
def test_directions_that_no_key_has_are_found_whatever_the_blocks(size: int):
    rng = np.random.default_rng(0)
    keys = rng.standard_normal((200, 12))
    keys[:, 4] = 0  # a hidden unit that never wakes
    keys[:, [7, 9, 10]] = -0.5  # pixels that are the same everywhere
    basis = orthogonal_directions(blocks(keys, size), 12)
    assert basis.shape == (12, 3)
    np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(keys @ basis, 0, atol=1e-6)
    # The span as NumPy finds it: its orthogonal complement is the same.
    _, values, right = np.linalg.svd(keys)
    complement = right[(values > 1e-9).sum() :]
    np.testing.assert_allclose(basis @ basis.T, complement.T @ complement, atol=1e-9)


def test_keys_that_span_everything_leave_nothing():
    keys = np.random.default_rng(1).standard_normal((50, 8))
    assert orthogonal_directions(blocks(keys, 10), 8).shape == (8, 0)


def test_a_direction_that_one_key_alone_has_is_in_the_span():
    keys = np.random.default_rng(2).standard_normal((5000, 6))
    keys[:, 2] = 0
    keys[4321, 2] = 0.01
    assert orthogonal_directions(blocks(keys, 1000), 6).shape == (6, 0)

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from dualform_studies.images.compact.ranks import rank_keeping, tried_ranks
from dualform_studies.images.compact.update import update_of

RNG = np.random.default_rng(0)


def weights(matrix: np.ndarray) -> dict[str, torch.Tensor]:
    """A layer's weight and bias, of [W | b]."""
    both = torch.from_numpy(matrix)
    return {"l.weight": both[:, :-1], "l.bias": both[:, -1]}


def test_an_update_of_two_directions_is_found_and_given_back():
    start = RNG.standard_normal((6, 5))
    left, _ = np.linalg.qr(RNG.standard_normal((6, 2)))
    right, _ = np.linalg.qr(RNG.standard_normal((5, 2)))
    update = update_of("l", weights(start), weights(start + (left * [3.0, 1.0]) @ right.T))
    np.testing.assert_allclose(update.strengths, [3, 1, 0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(update.energy(), [0, 0.9, 1, 1, 1, 1], atol=1e-12)
    assert [update.directions_holding(share) for share in (0.89, 0.95)] == [1, 2]
    np.testing.assert_allclose(update.truncated(1), start + 3 * np.outer(left[:, 0], right[:, 0]), atol=1e-12)
    np.testing.assert_allclose(update.truncated(0), start, atol=0)
    assert update.numbers(2) == 2 * (6 + 5)
    named = update.parameters(2)
    torch.testing.assert_close(named["l.bias"], torch.from_numpy(update.truncated(2)[:, -1]).float())
    assert named["l.weight"].shape == (6, 4)


@pytest.mark.parametrize("directions", [1, 10, 33, 784])
def test_every_small_rank_is_tried_and_the_last_is_all(directions: int):
    ranks = tried_ranks(directions)
    assert ranks[: min(33, directions + 1)] == list(range(min(33, directions + 1)))
    assert ranks[-1] == directions
    assert all(1 <= after - before <= max(1, before / 8) for before, after in pairwise(ranks))


def test_the_rank_that_keeps_accuracy_is_the_one_that_it_never_falls_below_again():
    by_rank = {0: 0.1, 1: 0.95, 2: 0.7, 3: 0.9, 4: 0.99, 8: 1.0}
    assert [rank_keeping(share, by_rank) for share in (0.05, 0.9, 0.98, 1.0)] == [0, 3, 4, 8]

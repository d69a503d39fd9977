"""Each measure beside its definition, counted out."""

from __future__ import annotations

import numpy as np
import pytest

from dualform_studies.attribution.detection import auc, auc_with_interval
from dualform_studies.attribution.ranks import agreement, mean_of, spearman
from dualform_studies.attribution.removal import highest, lds, leave_one_out, smallest_turning


def ranks_by_hand(values):
    return [sum(other < own for other in values) + (sum(other == own for other in values) + 1) / 2 for own in values]


def spearman_by_hand(one, other):
    a, b = (np.array(ranks_by_hand(values)) for values in (one, other))
    a, b = a - a.mean(), b - b.mean()
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def test_spearman_is_the_correlation_of_ranks_with_ties_shared():
    draw = np.random.default_rng(0)
    one, other = draw.integers(0, 6, (5, 12)).astype(float), draw.normal(size=(5, 12))
    expected = [spearman_by_hand(*rows) for rows in zip(one.tolist(), other.tolist(), strict=True)]
    np.testing.assert_allclose(spearman(one, other), expected, rtol=1e-12)


def test_a_constant_row_correlates_with_nothing():
    assert spearman(np.ones((1, 4)), np.arange(4.0)[None]).tolist() == [0.0]


def test_lds_correlates_sums_of_scores_with_what_the_subsets_made_of_a_test():
    draw = np.random.default_rng(1)
    scores, losses = draw.normal(size=(3, 8)), draw.normal(size=(6, 3))
    kept = [draw.choice(8, 4, replace=False) for _ in range(6)]
    expected = [
        spearman_by_hand([sum(scores[test, row] for row in rows) for rows in kept], (-losses[:, test]).tolist())
        for test in range(3)
    ]
    np.testing.assert_allclose(lds(scores, kept, losses).each(), expected, rtol=1e-12)


def test_scores_that_add_up_to_the_fall_of_the_loss_have_an_lds_of_one():
    draw = np.random.default_rng(2)
    scores = draw.normal(size=(4, 9))
    kept = [draw.choice(9, 5, replace=False) for _ in range(7)]
    losses = -np.stack([scores[:, rows].sum(1) for rows in kept])
    np.testing.assert_allclose(lds(scores, kept, losses).each(), 1)


def test_leave_one_out_correlates_a_score_with_the_rise_of_the_loss():
    draw = np.random.default_rng(3)
    scores, losses, whole = draw.normal(size=(2, 9)), draw.normal(size=(5, 2)), draw.normal(size=2)
    removed = np.array([7, 0, 3, 4, 8])
    expected = [
        spearman_by_hand(scores[test, removed].tolist(), (losses[:, test] - whole[test]).tolist()) for test in range(2)
    ]
    np.testing.assert_allclose(leave_one_out(scores, removed, losses, whole).each(), expected, rtol=1e-12)


def test_auc_counts_pairs():
    draw = np.random.default_rng(4)
    suspicion, wrong = draw.integers(0, 5, 30).astype(float), draw.random(30) < 0.3
    pairs = [(bad > good) + (bad == good) / 2 for bad in suspicion[wrong] for good in suspicion[~wrong]]
    assert auc(suspicion, wrong) == pytest.approx(np.mean(pairs), rel=1e-12)
    assert auc(wrong.astype(float), wrong) == 1
    assert auc(np.zeros(30), wrong) == 0.5


def test_intervals_hold_the_value_and_are_drawn_from_the_seed():
    values = np.random.default_rng(5).normal(size=40)
    found = mean_of(values, seed=3)
    assert found == mean_of(values, seed=3)
    assert found.low < found.value == values.mean() < found.high
    # About twice the standard error on either side.
    assert found.high - found.low == pytest.approx(4 * values.std() / np.sqrt(40), rel=0.15)
    wrong = np.arange(40) < 8
    own = auc_with_interval(values + wrong, wrong, seed=3)
    assert own.low < own.value < own.high <= 1


def test_the_bootstrap_of_an_agreement_draws_rows_and_columns():
    draw = np.random.default_rng(6)
    one = draw.normal(size=(12, 30))
    other = one + draw.normal(size=(12, 30))
    found = agreement(one, other, seed=1)
    assert found.value == pytest.approx(spearman(one, other).mean())
    ranks = [np.array([ranks_by_hand(row) for row in values.tolist()]) for values in (one, other)]
    by_hand = []
    for _ in range(1000):
        rows, columns = draw.integers(0, 12, 12), draw.integers(0, 30, 30)
        pairs = zip(*(own[rows][:, columns] for own in ranks), strict=True)
        by_hand.append(np.mean([np.corrcoef(*pair)[0, 1] for pair in pairs]))
    np.testing.assert_allclose([found.low, found.high], np.percentile(by_hand, [2.5, 97.5]), atol=0.03)
    assert agreement(one, np.ones((12, 30)), seed=1).plain() == [0, 0, 0]


def test_the_highest_come_first_and_equal_ones_in_their_order():
    assert highest(np.array([[0.0, 2.0, 1.0, 2.0]]), 0, 3).tolist() == [1, 3, 2]


def test_the_least_number_that_turns_a_prediction():
    turned = np.array([[False, True, False], [False, False, False], [True, True, True]])
    assert smallest_turning(turned, [10, 20, 40]) == [20, None, 10]

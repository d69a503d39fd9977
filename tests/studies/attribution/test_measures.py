"""Each measure beside its definition."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr
from sklearn.metrics import roc_auc_score

from dualform_studies.attribution.measures import auc, lds


def made_up(tests=6, samples=40, retrainings=25, noise=1.0):
    draw = np.random.default_rng(0)
    scores, sets = draw.normal(size=(tests, samples)), draw.random((retrainings, samples)) < 0.2
    losses = (sets @ scores.T) + noise * draw.normal(size=(retrainings, tests))
    return scores, sets, losses


def test_lds_is_the_mean_of_spearmans_correlations():
    scores, sets, losses = made_up()
    expected = [spearmanr([own[left].sum() for left in sets], losses[:, at]).statistic for at, own in enumerate(scores)]
    found = lds(scores, sets, losses, seed=0)
    assert found.value == pytest.approx(np.mean(expected), rel=1e-12)
    assert found.low < found.value < found.high
    assert lds(*made_up(noise=0), seed=0).value == pytest.approx(1)


def test_its_interval_is_a_bootstrap_over_tests_and_retrainings():
    scores, sets, losses = made_up()
    draw, drawn = np.random.default_rng(1), []
    ranks = [np.stack([rankdata(row) for row in own]) for own in (scores @ sets.T, losses.T)]
    for _ in range(1000):
        tests, columns = draw.integers(0, len(scores), len(scores)), draw.integers(0, len(sets), len(sets))
        pairs = zip(*(own[tests][:, columns] for own in ranks), strict=True)
        drawn.append(np.mean([np.corrcoef(*pair)[0, 1] for pair in pairs]))
    found = lds(scores, sets, losses, seed=0)
    np.testing.assert_allclose([found.low, found.high], np.percentile(drawn, [2.5, 97.5]), atol=0.03)


def test_scores_without_variation_predict_nothing():
    _, sets, losses = made_up()
    assert lds(np.zeros((6, 40)), sets, losses, seed=0) == (0, 0, 0)


def test_auc_counts_pairs():
    draw = np.random.default_rng(4)
    suspicion, wrong = draw.integers(0, 5, 60).astype(float), draw.random(60) < 0.3
    found = auc(suspicion, wrong, seed=0)
    assert found.value == pytest.approx(roc_auc_score(wrong, suspicion), rel=1e-12)
    assert found.low < found.value < found.high
    assert auc(wrong.astype(float), wrong, seed=0) == (1, 1, 1)

from __future__ import annotations

import numpy as np
import pytest

from dualform_studies.images.claims.error_norm import TRENDS, trend_claims, trend_table, trends
from dualform_studies.pages.claims import FAILS, HOLDS, IN_PART


def test_trends_are_of_the_recognised_images():
    sums = np.array([[3.0, 2, 1], [1, 3, 2], [3, 2, 1], [3, 1, 2], [1, 2, 9]])
    classes, labels = np.array([0, 4, 7]), np.array([0, 0, 7, 0, 7])
    right = np.array([True, True, True, True, False])
    found = trends(sums, classes, labels, right)
    assert found == {"greatest": 2 / 4, "least": 2 / 4, "same": 3 / 4}
    nobody = trends(sums, classes, labels, ~np.ones(5, dtype=bool))
    assert set(nobody.values()) == {None}
    assert trend_claims({"layer-0": nobody}) == []
    assert trend_table({"layer-0": nobody}).rows == [("layer-0", "-", "-", "-")]


@pytest.mark.parametrize("kind", TRENDS)
@pytest.mark.parametrize(("trending", "verdict"), [(0, HOLDS), (1, IN_PART), (2, FAILS)])
def test_a_trend_is_what_most_images_show(kind: str, trending: int, verdict: str):
    layers = {f"layer-{at}": dict.fromkeys(TRENDS, 0.2) | {kind: 0.67 if at < trending else 0.66} for at in range(2)}
    (claim,) = trend_claims(layers)
    assert claim.verdict == verdict
    assert "66.0 %" in claim.ours or trending == 2

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from dualform_studies.memorisation.exact_tests import can_reach, more_often, sign_test


@pytest.mark.parametrize(
    ("above", "below", "ties", "p"), [(5, 0, 3, 1 / 32), (0, 5, 0, 1.0), (2, 1, 0, 0.5), (0, 0, 4, 1.0)]
)
def test_the_sign_test_counts_differences(above, below, ties, p):
    assert sign_test(np.array([0.3] * above + [-0.1] * below + [0.0] * ties)) == pytest.approx(p)


def test_four_networks_cannot_reach_a_twentieth():
    assert [can_reach(0.05, count) for count in (1, 4, 5, 24)] == [False, False, True, True]


@pytest.mark.parametrize(("first", "second"), [(3, 0), (2, 1), (0, 3), (4, 2), (0, 0), (4, 5)])
def test_more_often_counts_all_ways_to_deal(first, second):
    """By listing every way to deal what is true to four and five."""
    dealt = [sum(one < 4 for one in chosen) for chosen in combinations(range(9), first + second)]
    expected = np.mean([own >= first for own in dealt])
    assert more_often(np.arange(4) < first, np.arange(5) < second) == pytest.approx(expected)
    assert more_often(np.zeros(0, bool), np.ones(3, bool)) == 1

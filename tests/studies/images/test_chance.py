from __future__ import annotations

from math import comb

import pytest

from dualform_studies.images.chance import is_gain, mcnemar


def test_mcnemars_test_is_exact():
    assert mcnemar(0, 0) == mcnemar(3, 3) == 1.0
    assert mcnemar(10, 2) == mcnemar(2, 10) == pytest.approx(2 * (1 + 12 + 66) / 2**12)
    assert mcnemar(0, 8) == pytest.approx(2 / 2**8)
    assert mcnemar(0, 5000) < 1e-300
    assert mcnemar(430, 510) == pytest.approx(2 * sum(comb(940, few) for few in range(431)) / 2**940)


def test_a_gain_is_one_beyond_chance():
    assert is_gain(8, 0)
    assert not is_gain(0, 8)
    assert not is_gain(7, 0)
    assert not is_gain(120, 100)

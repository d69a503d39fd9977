from __future__ import annotations

from math import nan

import pytest

from dualform_studies.pages.claims import (
    FAILS,
    HOLDS,
    IN_PART,
    Beside,
    Claim,
    beside_table,
    claims_table,
    verdict,
    verdict_at_most,
)


@pytest.mark.parametrize(
    ("measure", "expected"), [(0.9, HOLDS), (0.8, HOLDS), (0.79, IN_PART), (0.5, IN_PART), (0.49, FAILS)]
)
def test_a_verdict_follows_from_the_measure(measure: float, expected: str):
    assert verdict(measure, holds=0.8, in_part=0.5) == expected


@pytest.mark.parametrize(
    ("measure", "expected"), [(0.1, HOLDS), (0.2, HOLDS), (0.21, IN_PART), (0.5, IN_PART), (0.51, FAILS)]
)
def test_so_does_that_of_a_measure_that_should_be_small(measure: float, expected: str):
    assert verdict_at_most(measure, holds=0.2, in_part=0.5) == expected
    with pytest.raises(ValueError, match="no verdict"):
        verdict_at_most(measure, holds=0.5, in_part=0.2)


@pytest.mark.parametrize(("measure", "holds", "in_part"), [(nan, 0.8, 0.5), (0.7, 0.5, 0.8)])
def test_what_has_no_verdict_is_refused(measure: float, holds: float, in_part: float):
    with pytest.raises(ValueError, match="no verdict"):
        verdict(measure, holds, in_part)


def test_claims_and_figures_stand_in_tables():
    claim = Claim("section 5.2", "Its class leads.", "one example", "81 % of 10,000", HOLDS, "80 % or more", "Leading")
    table = claims_table([claim])
    assert table.rows == [("section 5.2", "Its class leads.", "one example", "81 % of 10,000", "80 % or more", "holds")]
    rows = [("single", Beside("accuracy", "97.3 %", text="97 %"))]
    assert beside_table(rows).rows == [("single", "accuracy", "97.3 %", "97 %", "-")]
    assert all([*table.columns, *beside_table(rows).columns]), "every column has a heading"

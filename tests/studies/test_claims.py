"""Claims and exact tests."""

from __future__ import annotations

from fractions import Fraction
from math import comb, inf, nan, nextafter
from pathlib import Path
from string import Formatter

import numpy as np
import pytest

import dualform_studies
from dualform_studies.claims import (
    FAILS,
    HOLDS,
    IN_PART,
    Beside,
    Claim,
    can_reach,
    is_gain,
    judge,
    mcnemar,
    sign_test,
    texts,
    verdict,
    verdict_at_most,
)
from dualform_studies.report import beside_table, claims_table


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


JUDGED_BY_ONE_MEASURE = [name for name, said in texts().items() if "holds" in said]


@pytest.mark.parametrize("name", JUDGED_BY_ONE_MEASURE)
def test_a_claim_holds_from_its_own_value_on(name: str):
    said = texts()[name]
    holds, in_part = (float(Fraction(said[key])) for key in ("holds", "in_part"))
    worse = inf if said.get("at_most") else -inf
    named = {
        key: "x" for text in said.values() if isinstance(text, str) for _, key, _, _ in Formatter().parse(text) if key
    }
    words = named | {"level": 0.05, "chance": 0.01, "observation": "it leads", "where": "every layer"}
    criterion = "" if {"criterion", "measure"} & said.keys() else "from {holds}, in part from {in_part}"
    values = (holds, nextafter(holds, worse), in_part, nextafter(in_part, worse))
    found = [judge(name, value, "ours", criterion, **words) for value in values]
    assert [claim.verdict for claim in found] == [HOLDS, IN_PART, IN_PART, FAILS]
    for text in (found[0].section, found[0].claim, found[0].paper, found[0].criterion):
        assert text
        assert "{" not in text


def test_every_claim_is_judged_by_a_study():
    folder = Path(dualform_studies.__file__).parent
    sources = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    assert len(texts()) > 50
    for name in texts():
        study, own = name.split(".", 1)
        assert f'"{name}"' in sources or (f'f"{study}.{{' in sources and f'"{own}"' in sources), name


def test_claims_and_figures_stand_in_tables():
    claim = Claim("section 5.2", "Its class leads.", "one example", "81 % of 10,000", HOLDS, "80 % or more").plain()
    table = claims_table([claim])
    assert table.rows == [["section 5.2", "Its class leads.", "one example", "81 % of 10,000", "80 % or more", "holds"]]
    row = Beside("accuracy", "97.3 %", text="97 %").plain()
    assert beside_table([row]).rows == [["accuracy", "97.3 %", "97 %", "-"]]
    both = beside_table([{"study": "single"} | row])
    assert both.rows == [["single", "accuracy", "97.3 %", "97 %", "-"]]
    assert both.columns[0] == "study"


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


@pytest.mark.parametrize(
    ("above", "below", "ties", "p"), [(5, 0, 3, 1 / 32), (0, 5, 0, 1.0), (2, 1, 0, 0.5), (0, 0, 4, 1.0)]
)
def test_the_sign_test_counts_differences(above, below, ties, p):
    assert sign_test(np.array([0.3] * above + [-0.1] * below + [0.0] * ties)) == pytest.approx(p)


def test_four_networks_cannot_reach_a_twentieth():
    assert [can_reach(0.05, count) for count in (1, 4, 5, 24)] == [False, False, True, True]

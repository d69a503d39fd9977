"""What is concluded of costs, from made-up figures."""

from __future__ import annotations

import pytest

from dualform_studies.limits.claims import limits_claims
from dualform_studies.limits.costs import QUESTIONS
from dualform_studies.pages.claims import Claim
from dualform_studies.pages.folder import Report

_FIXED = 10**6
"""Bytes that a memory of any length takes."""


def made_up(*slots: int, power: float = 1.0, cold: float = 0.001) -> Report:
    """Keys, values and seconds grow as a power of the slots, from a start of their own."""
    measured = [
        {
            "slots": count,
            "bytes": {"keys": 8 * count**power, "values": 2 * count**power, "tables": _FIXED, "weights": _FIXED},
            "scoring_seconds": 0.5 + 1e-6 * count**power,
            "plain_seconds": 2.0,
            "cold_seconds": dict.fromkeys(QUESTIONS, cold) | {"output without one label": 50.0},
            "warm_seconds": dict.fromkeys(QUESTIONS, 0.005) | {"output without one label": 50.0},
        }
        for count in slots
    ]
    return {"measured": measured, "rerun": {"same": 6, "questions": 6}}


def verdicts(report: Report) -> dict[str, str]:
    return {claim.claim.split(" ")[0]: claim.verdict for claim in limits_claims(report)}


@pytest.mark.parametrize(
    ("power", "storage", "time"),
    [
        (1.0, "holds", "holds"),
        (1.2, "holds in part", "holds"),
        (1.4, "does not hold", "holds in part"),
        (2.0, "does not hold", "does not hold"),
        (0.0, "does not hold", "does not hold"),
    ],
)
def test_growth_is_judged_by_what_each_added_slot_takes(power: float, storage: str, time: str):
    found = verdicts(made_up(6400, 12_800, 25_600, power=power))
    assert (found["Storage"], found["The"]) == (storage, time)


def test_what_any_memory_takes_is_no_growth():
    storage, *_ = limits_claims(made_up(100, 200, 400))
    assert storage.ours == "10 bytes for each slot from 100 to 200, 10 bytes from 200 to 400, of keys and values"


def test_trainings_of_one_length_say_nothing_of_growth():
    assert set(verdicts(made_up(32, 32, 64))) == {"Computing", "A"}


@pytest.mark.parametrize(("cold", "verdict"), [(0.02, "holds"), (0.2, "holds in part"), (0.21, "does not hold")])
def test_asking_is_held_against_a_plain_training_the_first_time(cold: float, verdict: str):
    claim: Claim = next(one for one in limits_claims(made_up(1, 2, 3, cold=cold)) if "nothing" in one.claim)
    assert claim.verdict == verdict
    assert "without recording" in claim.ours
    assert claim.ours.endswith("asked again, 0.25 % at most")

"""The costs that the paper names: a small run of the study, and its verdicts on made-up figures."""

from __future__ import annotations

import json

import pytest

from dualform_studies.assignment import Assignment
from dualform_studies.images.training import Recipe
from dualform_studies.limits import QUESTIONS, limits_claims, run_limits
from dualform_studies.report import Report


def test_a_run_measures_what_is_on_disk_and_a_rerun_answers_as_the_stored_memory(tmp_path):
    report = run_limits(Assignment(tmp_path / "run"), Recipe(hidden=(32, 24), batch=32, steps=40))
    assert json.loads((tmp_path / "run" / "report" / "report.json").read_text()) == report
    assert [one["slots"] for one in report["measured"]] == [10 * 32, 20 * 32, 40 * 32]
    for measured in report["measured"]:
        # Keys of 64, 32 and 24 numbers and values of 32, 24 and 10: no image comes again within the first epoch.
        numbers = (64 + 32 + 24) + (32 + 24 + 10)
        assert measured["bytes"] == pytest.approx(4 * numbers * measured["slots"], rel=0.02)
        assert all(seconds > 0 for seconds in [*measured["cold_seconds"].values(), measured["scoring_seconds"]])
    assert report["rerun"] == {"questions": 6, "same": 6}
    assert [claim["section"] for claim in report["claims"]] == ["section 6", "appendix D", "appendix D", "appendix D"]
    assert report["beside_paper"][0]["ours"].startswith("14.4 PB")


def made_up(*slots: int, power: float = 1.0, cold: float = 0.001, same: int = 6) -> Report:
    """Bytes and seconds grow as a power of the slots, from a start of their own."""
    measured = [
        {
            "slots": count,
            "bytes": 10**6 + 10 * count**power,
            "scoring_seconds": 0.5 + 1e-6 * count**power,
            "plain_seconds": 2.0,
            "cold_seconds": dict.fromkeys(QUESTIONS, cold),
        }
        for count in slots
    ]
    return {"measured": measured, "rerun": {"same": same, "questions": 6}}


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


def test_trainings_of_one_length_say_nothing_of_growth():
    assert set(verdicts(made_up(32, 32, 64))) == {"Computing", "A"}


@pytest.mark.parametrize(("cold", "verdict"), [(0.02, "holds"), (0.2, "holds in part"), (0.21, "does not hold")])
def test_the_first_question_is_held_against_a_training(cold: float, verdict: str):
    assert verdicts(made_up(1, 2, 3, cold=cold))["Computing"] == verdict


@pytest.mark.parametrize(("same", "verdict"), [(6, "holds"), (5, "holds in part"), (3, "does not hold")])
def test_a_rerun_is_judged_by_equal_answers(same: int, verdict: str):
    assert verdicts(made_up(1, 2, 3, same=same))["A"] == verdict

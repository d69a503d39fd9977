"""Which trainings a finished run is, and which it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dualform.errors import AlreadyExists
from dualform_studies.assignment import Assignment
from dualform_studies.text.resumed import check_same

_THERE = {
    "seed": 3,
    "preset": "laptop",
    "rerun": False,
    "recipe": {"steps": 20},
    "corpus": {"digest": "d"},
}


def test_what_is_not_said_is_taken_as_it_is() -> None:
    assignment = Assignment(Path("run"))
    for said in ({}, {"seed": 3}, {"steps": 20}, {"preset": "laptop"}):
        check_same(_THERE, replace(assignment, **said), "d")


@pytest.mark.parametrize("seed", [0, 4])
def test_another_seed_is_refused_even_where_it_is_the_usual_one(seed: int) -> None:
    with pytest.raises(AlreadyExists, match=rf"contains a run with seed 3, not {seed}\."):
        check_same(_THERE, Assignment(Path("run"), seed=seed), "d")

from __future__ import annotations

from pathlib import Path

import pytest

from dualform.errors import AlreadyExists, BadInput, NotFound
from dualform_studies.assignment import Assignment
from dualform_studies.studies import NETWORKS, STUDIES, run_study


def test_unknown_study_lists_those_that_exist(tmp_path: Path):
    with pytest.raises(NotFound, match=r"there is no study 'contnual'\. Studies: .*continual"):
        run_study("contnual", Assignment(tmp_path / "run"))


@pytest.mark.parametrize("field", ["steps", "runs"])
def test_fewer_than_one_is_refused(field: str, tmp_path: Path):
    with pytest.raises(BadInput, match=rf"{field} is 0\."):
        run_study("continual", Assignment(tmp_path / "run", **{field: 0}))


def test_a_negative_seed_is_refused(tmp_path: Path):
    with pytest.raises(BadInput, match=r"seed is -1\."):
        run_study("continual", Assignment(tmp_path / "run", seed=-1))


@pytest.mark.parametrize("name", sorted(STUDIES | NETWORKS))
def test_a_study_refuses_a_folder_in_use_before_it_trains(name: str, tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("do not lose")
    with pytest.raises(AlreadyExists, match="already holds something"):
        run_study(name, Assignment(tmp_path))
    assert (tmp_path / "thesis.txt").read_text() == "do not lose"

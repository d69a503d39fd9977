"""What each study trains with where nothing is said, and what it calls a variant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dualform_studies.assignment import Assignment
from dualform_studies.images.continual import study as continual
from dualform_studies.images.joint import study as joint
from dualform_studies.images.single import study as single
from dualform_studies.images.training.recipe import Recipe


class Trained(Exception):
    """In place of a training: what it was told."""


def trained(monkeypatch: pytest.MonkeyPatch, study: ModuleType, name: str, run: Callable[[], Any]) -> tuple[Any, ...]:
    def stop(*told: object, **more: object) -> None:
        raise Trained([one for one in (*told, *more.values()) if isinstance(one, Recipe)], more.get("moments"))

    monkeypatch.setattr(study, name, stop)
    with pytest.raises(Trained) as found:
        run()
    return found.value.args


@pytest.mark.parametrize(
    ("study", "name", "run", "recipe", "moments"),
    [
        (single, "record", single.run_single, Recipe(steps=5000), (3000,)),
        (joint, "record", joint.run_joint, Recipe(steps=5000), None),
        (continual, "train_in_succession", continual.run_continual, Recipe(steps=3000), None),
    ],
    ids=["single", "joint", "continual"],
)
def test_a_study_trains_with_the_recipe_of_the_papers_code(
    monkeypatch, made_up_data: Path, tmp_path: Path, study, name, run, recipe, moments
):
    (tmp_path / "run").mkdir()
    assert recipe.clip == 1.0
    told = trained(monkeypatch, study, name, lambda: run(Assignment(tmp_path / "run", made_up_data)))
    assert told == ([recipe], moments)


def test_the_single_task_has_five_runs():
    assert single.SINGLE_RECIPE.runs == 5

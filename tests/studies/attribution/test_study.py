"""The study whole, in miniature: its report, its page, its document, and how it goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dualform.errors import AlreadyExists
from dualform_studies.assignment import Assignment
from dualform_studies.attribution import peers, study, ways
from dualform_studies.attribution.document import write_attribution
from dualform_studies.attribution.page import MEASURES
from dualform_studies.attribution.recipes import RECIPES
from dualform_studies.attribution.study import run_attribution
from tests.studies.images.idx_files import write_dataset
from tests.studies.text.made_up import write_aesop

SMALL = tuple(replace(own, samples=40, batch=16, epochs=2) for own in RECIPES)
ROOM = {"tests": 4, "sets": 5}


def fails(trained):
    raise ValueError("no such kernel")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder / "mnist", seed=1)
    write_aesop(folder)
    return folder


@pytest.fixture(scope="module")
def no_peers():
    """Other packages are the way that fails, whether they are installed or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers, "ways", lambda recipe: {"their way": fails})
        yield


@pytest.fixture(scope="module")
def run(no_peers, coarse_figures, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "attribution"
    return out, run_attribution(Assignment(out, data), SMALL, **ROOM)


def test_every_way_has_every_measure_by_every_recipe(run):
    out, report = run
    assert json.loads((out / "report" / "report.json").read_text()) == json.loads(json.dumps(report))
    assert list(report["recipes"]) == [own.name for own in RECIPES]
    for recipe, own in zip(RECIPES, report["recipes"].values(), strict=True):
        assert list(own["ways"]) == [*ways.floors(recipe.text), *ways.ours(recipe)]
        assert own["raised"] == {"their way": "ValueError: no such kernel"}
        assert own["apart"] == 0
        for name, way in own["ways"].items():
            for kind in MEASURES:
                value, low, high = way[kind]
                assert -1 - 1e-9 <= low <= high <= 1 + 1e-9, (name, kind)
                assert abs(value) <= 1 + 1e-9, (name, kind)


def test_page_and_document_have_every_recipe_and_what_failed(run, tmp_path):
    out, report = run
    for text in ((out / "report" / "index.md").read_text(), write_attribution(out.parent, tmp_path).read_text()):
        assert text.count("No result for their way: `ValueError: no such kernel`") == len(RECIPES)
        rows = [line for line in text.splitlines() if line.startswith("| adjoint |")]
        assert len(rows) == len(RECIPES)
        for row, recipe in zip(rows, report["recipes"].values(), strict=True):
            assert f"| {recipe['ways']['adjoint']['1'][0]:z.2f} \\[" in row
    document = tmp_path / "results" / "attribution.md"
    assert "](attribution/attribution/ways.png)" in document.read_text()


def test_a_run_that_was_cut_off_goes_on(run, no_peers, data, tmp_path, monkeypatch):
    _, whole = run
    trainings, plain = [], study.train

    def cut_off(*given):
        trainings.append(given)
        if len(trainings) == 8:
            raise KeyboardInterrupt
        return plain(*given)

    monkeypatch.setattr(study, "train", cut_off)
    with pytest.raises(KeyboardInterrupt):
        run_attribution(Assignment(tmp_path / "run", data), SMALL[1:2], **ROOM)
    found = run_attribution(Assignment(tmp_path / "run", data), SMALL[1:2], **ROOM)
    assert len(trainings) == 4 * ROOM["sets"] + 2  # one without nothing, and the one that was cut off
    own, expected = found["recipes"]["smooth"], whole["recipes"]["smooth"]
    for name, way in expected["ways"].items():
        for kind in MEASURES:
            np.testing.assert_allclose(own["ways"][name][kind], way[kind], err_msg=name)
    again = run_attribution(Assignment(tmp_path / "run", data), SMALL[1:2], **ROOM)
    assert len(trainings) == 4 * ROOM["sets"] + 2
    assert again["recipes"] == found["recipes"]
    assert again["seconds"] == found["seconds"]
    with pytest.raises(AlreadyExists, match="other settings"):
        run_attribution(Assignment(tmp_path / "run", data, seed=1), SMALL[1:2], **ROOM)


def test_the_quick_form_has_less_of_everything():
    for own in RECIPES:
        quick = own.quick()
        assert quick.samples < own.samples
        assert quick.batch < own.batch
        assert quick.epochs <= own.epochs

"""Runs of the language studies: asked again, stopped, tried dry, or refused before they train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dualform.errors import AlreadyExists, BadInput, NotFound
from dualform_studies.assignment import Assignment
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.text.aesop import run_aesop
from dualform_studies.text.runs import Task
from dualform_studies.text.wikitext2 import run_wikitext2
from tests.studies.text.made_up import RECIPE, write_aesop


@pytest.mark.usefixtures("undrawn")
def test_prompts_can_be_asked_of_a_finished_run(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "aesop"
    recipe = replace(RECIPE, steps=20)
    assignment = Assignment(out=out, data=texts, seed=3)
    first = run_aesop(replace(assignment, prompts=("The Hare",)), recipe)
    after = run_aesop(replace(assignment, prompts=("far away", "The Hare")))
    assert [prompt["name"] for prompt in after["prompts"]][3:] == ["prompt-1", "prompt-2", "prompt-3"]
    assert after["prompts"][:4] == first["prompts"]
    assert after["prompts"][5] == first["prompts"][3] | {"name": "prompt-3"}
    assert "prompt-3-attention.png" in (report_folder(out) / "index.html").read_text()
    for change, what in (({"seed": 4}, "seed 3, not 4"), ({"steps": 9}, "steps 20, not 9")):
        with pytest.raises(AlreadyExists, match=what):
            run_aesop(replace(assignment, prompts=("x",), **change))
    with pytest.raises(BadInput, match="already contains a run"):
        run_aesop(replace(assignment, prompts=("x",), rerun=True))
    with pytest.raises(AlreadyExists, match="already contains the study aesop"):
        run_aesop(assignment, recipe)
    with pytest.raises(AlreadyExists, match="already contains the study aesop"):
        run_wikitext2(replace(assignment, prompts=("x",)))


@pytest.mark.usefixtures("undrawn")
def test_a_run_stopped_while_it_was_asked_can_be_asked_again(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, recipe = tmp_path / "aesop", replace(RECIPE, steps=20)

    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Task, "ask_stored", stop)
        with pytest.raises(KeyboardInterrupt):
            run_aesop(Assignment(out=out, data=texts, seed=3), recipe)
    report = run_aesop(Assignment(out=out, data=texts, prompts=("The Hare",)))
    assert [prompt["name"] for prompt in report["prompts"]] == ["table-3", "table-4", "table-5", "prompt-1"]
    assert report["seed"] == 3
    page = (report_folder(out) / "index.html").read_text()
    assert "what its checkpoints had taken is lost" in page
    # Other queries of the papers' forms are asked with the paper's own.
    assert [entry["table"] for entry in report["prevalence"]] == [3, 3, 4, 5, 5]
    assert [len(entry["of_ten"]) for entry in report["prevalence"]] == [0, 0, 0, 12, 12]
    assert "The test text has no other tokens that show the word" in page


@pytest.mark.usefixtures("undrawn")
def test_passages_are_not_cut_from_another_text(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "aesop"
    run_aesop(Assignment(out=out, data=texts), replace(RECIPE, steps=3))
    write_aesop(tmp_path, seed=7)
    with pytest.raises(BadInput, match="trained on another text"):
        run_aesop(Assignment(out=out, data=tmp_path, prompts=("The",)))


@pytest.mark.usefixtures("undrawn")
def test_wikitext2_trains_on_words_and_says_what_is_absent(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "wikitext2"
    report = run_wikitext2(
        Assignment(out=out, data=texts, prompts=("the Owl slept ",), preset="laptop"),
        replace(RECIPE, dropout=0.5, projection=0, steps=40),
    )
    assert report["unharmed"] is True
    assert report["corpus"]["trained_on"] == "the valid split"
    page = (report_folder(out) / "index.html").read_text()
    assert "not at hand" in page
    assert "217,646" not in page  # the tokens of the real split, and no number of this one
    assert report["corpus"]["unknown"] > report["corpus"]["lacking"] > 0
    assert [prompt["table"] for prompt in report["prompts"]] == [2, 6, 7, None]
    assert not any(prompt["in_the_text"] for prompt in report["prompts"][:3])
    assert "do not have this passage of the paper" in (report_folder(out) / "index.html").read_text()
    assert [entry["updates"] for entry in report["course"]] == [8, 16, 24, 32, 40]
    assert all(entry["tables"] == [] for entry in report["course"])
    assert [entry["of"] for entry in report["prompts"][3]["tokens"]] == ["the", "Owl", "slept"]
    assert report["prompts"][3]["query"] == {"before": "the Owl ", "token": "slept", "after": " "}
    assert [entry["unknown"] for entry in report["prompts"][3]["tokens"]] == [False, True, False]
    titles = {entry["title"] for prompt in report["prompts"] for entry in prompt["passages"]}
    assert titles <= {"", *(f"Page {number} of valid" for number in range(4))}


def test_a_dry_run_says_what_it_would_take_and_leaves_nothing(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "nothing"
    report = run_aesop(Assignment(out=out, data=texts, dry_run=True), RECIPE)
    assert not out.exists()
    assert (report["slots"], report["key_width"]) == (4 * 12 * 70, 15)
    # Of three prompts 24 tokens, and the best and two more sums of the last; nine checkpoints have seen half of it.
    # Further queries of the test text: those of Tables 3 and 4 are the only ones of their forms, and of either form of
    # Table 5, whose query is of the training text, there are twelve.
    assert report["queries"] == pytest.approx(3 * (24 + 3) + 3 * 9 * 0.5 + 24, abs=0.6)
    assert report["stored"]["bytes"] > report["slots"] * 15 * 4 > report["rerun"]["bytes"] / 3
    # Either way trains twice: plainly and recorded, or recorded and again.
    assert report["rerun"]["seconds"] == pytest.approx(report["stored"]["seconds"])
    assert report["stored"]["seconds"] > 2 * 70 * report["step_seconds"] > 0
    (table,) = report["tables"]
    assert [row[0] for row in table["rows"]] == [
        "keys stored, and trained plainly",
        "--rerun: no keys stored, trained twice",
    ]


@pytest.mark.parametrize("run", [run_aesop, run_wikitext2])
def test_what_is_wrong_is_said_before_the_training(
    run: Callable[[Assignment], Report], texts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(NotFound, match="no preset 'phone'"):
        run(Assignment(out=out, data=texts, preset="phone"))
    with pytest.raises(NotFound, match="is not in"):
        run(Assignment(out=out, data=tmp_path))
    with pytest.raises(BadInput, match="prompt must not be empty"):
        run(Assignment(out=out, data=texts, prompts=("",)))
    if run is run_aesop:
        with pytest.raises(BadInput, match="the network was not trained with 'Ω'"):
            run(Assignment(out=out, data=texts, prompts=("the Ω",)), RECIPE)
    with pytest.raises(BadInput, match="is not UTF-8"):
        run(Assignment(out=out, data=texts, prompts=("a \udc80",)))
    with pytest.raises(BadInput, match="each of 90000 streams needs a chunk of 12"):
        run(Assignment(out=out, data=texts), replace(RECIPE, batch=90_000))
    with pytest.raises(BadInput, match=r"the keys need .* GB") as error:
        run(Assignment(out=out, data=texts, steps=10**9), RECIPE)
    assert "--rerun" in (error.value.hint or "")
    assert not out.exists()

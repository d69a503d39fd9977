"""Both language studies in miniature, on the path that the command line takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import dualform
from dualform.errors import AlreadyExists, BadInput, NotFound
from dualform.store.snapshot import Snapshot
from dualform_studies.assignment import Assignment
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.text.aesop import run_aesop
from dualform_studies.text.corpora import Corpus, load_corpus
from dualform_studies.text.network import build_network
from dualform_studies.text.published import AESOP
from dualform_studies.text.recipe import Recipe
from dualform_studies.text.runs import Task
from dualform_studies.text.tokens import Tokens, Vocabulary
from dualform_studies.text.wikitext2 import run_wikitext2
from tests.studies.text.made_up import write_aesop

_RECIPE = Recipe(embedding=6, projection=7, hidden=8, lr=1e-2, clip=1.0, batch=4, steps=70, unroll=12, reset=0.1)
_PROMPTS = ("The Fox ran by", "the Wolf")
Run = tuple[Path, Report]


def told(out: Path) -> Report:
    report: Report = json.loads((report_folder(out) / "report.json").read_text())
    return report


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, texts: Path) -> Run:
    out = tmp_path_factory.mktemp("runs") / "aesop"
    return out, run_aesop(Assignment(out=out, data=texts, prompts=_PROMPTS, seed=3), _RECIPE)


@pytest.fixture(scope="module")
def oracle(stored: Run, texts: Path) -> tuple[Corpus, Tokens, Any, Any]:
    """The corpus and its training tokens, stored keys float64[T, d] in slot order and their positions int64[T]."""
    corpus = load_corpus("aesop", texts)
    tokens = Vocabulary(corpus.train, "character").encode(corpus.train)
    memory = Snapshot.open(stored[0])
    count = memory.count("token")
    keys = memory.keys("lstm").of_entries(np.arange(count)).astype(np.float64)
    return corpus, tokens, keys, memory.column("token", "position")


def test_recording_changes_no_bit_of_network_or_perplexity(stored: Run) -> None:
    report = stored[1]
    assert report["unharmed"] is True
    assert report["perplexity"]["recorded"] == report["perplexity"]["plain"]
    assert 1 < report["perplexity"]["plain"] < report["corpus"]["vocabulary"]
    assert report["bits"]["plain"] == pytest.approx(np.log2(report["perplexity"]["plain"]))


def test_slots_tell_which_token_was_read_and_which_followed(stored: Run, oracle: Any) -> None:
    _, tokens, keys, positions = oracle
    with dualform.open(stored[0]) as memory:
        slots = memory.slots(np.arange(len(positions)))
        names = memory.sql("SELECT label, name FROM labels ORDER BY label").records()
    np.testing.assert_array_equal(slots["label"], tokens.ids[positions + 1])
    assert set(slots["dataset"]) == {"aesop"}
    assert [names[number]["name"] for number in slots["label"][:9]] == [tokens.word(at + 1) for at in positions[:9]]
    assert len(keys) == _RECIPE.slots == stored[1]["slots"]
    # The token read is the input part of the key, so slots of one position of one step differ by their state alone.
    assert slots["sample"].max() == _RECIPE.batch - 1


def test_sums_by_position_and_hits_are_those_of_every_key(stored: Run, oracle: Any) -> None:
    _, tokens, keys, positions = oracle
    queries = np.load(report_folder(stored[0]) / "queries.npy").astype(np.float64)
    row = 0
    for prompt in stored[1]["prompts"]:
        row += len(prompt["tokens"])
        scores = keys @ queries[row - 1]
        sums = np.bincount(positions, scores, minlength=len(tokens))
        found = [entry["position"] for entry in prompt["passages"]]
        np.testing.assert_allclose([entry["sum"] for entry in prompt["passages"]], np.sort(sums)[::-1][:5], rtol=1e-6)
        np.testing.assert_allclose(sums[found], np.sort(sums)[::-1][:5], rtol=1e-6)
        read = np.bincount(positions, minlength=len(tokens))
        assert [entry["times_read"] for entry in prompt["passages"]] == read[found].tolist()
        hits = [hit["slot"] for hit in prompt["hits"]]
        np.testing.assert_allclose(scores[hits], np.sort(scores)[::-1][:10], rtol=1e-6)
        assert [hit["position"] for hit in prompt["hits"]] == positions[hits].tolist()
        absolute = np.bincount(positions, np.abs(scores), minlength=len(tokens))
        both = set(found) & set(np.argsort(-absolute, kind="stable")[:5].tolist())
        assert prompt["of_these_also_by_absolute_sums"] == len(both)


def test_every_token_of_a_prompt_has_its_best_passage_with_the_right_token_marked(stored: Run, oracle: Any) -> None:
    _, tokens, keys, positions = oracle
    queries = np.load(report_folder(stored[0]) / "queries.npy").astype(np.float64)
    sums = np.stack([np.bincount(positions, keys @ query, minlength=len(tokens)) for query in queries])
    entries = [entry for prompt in stored[1]["prompts"] for entry in prompt["tokens"]]
    assert len(entries) == len(queries)
    for entry, own in zip(entries, sums, strict=True):
        assert own[entry["position"]] == pytest.approx(own.max(), rel=1e-6)
    for prompt in stored[1]["prompts"]:
        assert "".join(entry["of"] for entry in prompt["tokens"]) == prompt["text"]
        for entry in [*prompt["tokens"], *prompt["passages"]]:
            passage = entry["passage"]
            assert passage["token"] == tokens.word(entry["position"])
            assert passage["before"] + passage["token"] + passage["after"] in tokens.text


def test_queries_are_the_final_networks(stored: Run, oracle: Any) -> None:
    corpus = oracle[0]
    vocabulary = Vocabulary(corpus.train, "character")
    network = build_network(len(vocabulary), _RECIPE, seed=0)
    network.load_state_dict(load_file(stored[0] / "weights" / "final.safetensors"))
    expected = [network.queries(torch.from_numpy(vocabulary.encode(p["text"]).ids)) for p in stored[1]["prompts"]]
    np.testing.assert_array_equal(np.load(report_folder(stored[0]) / "queries.npy"), torch.cat(expected).numpy())


def test_the_page_shows_the_papers_passages_beside_ours(stored: Run) -> None:
    out, report = stored
    folder = report_folder(out)
    assert [prompt["table"] for prompt in report["prompts"]] == [3, 4, 5, None, None]
    assert not any(prompt["in_the_text"] for prompt in report["prompts"][:3])
    names = {table["name"] for table in told(out)["tables"]}
    assert {"perplexity", "table-3-passages", "table-3-tokens", "prompt-2-passages", "prompt-2-tokens"} <= names
    page = (folder / "index.html").read_text()
    assert "The poor Mule made room for him as f<mark>a</mark>st as he could" in page
    assert "do not have this passage of the paper" in page
    for prompt in report["prompts"]:
        for end in ("png", "svg"):
            assert (folder / f"{prompt['name']}-attention.{end}").is_file()


def test_a_replay_gives_the_same_page_without_storing_a_key(stored: Run, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "aesop"
    report = run_aesop(Assignment(out=out, data=texts, prompts=_PROMPTS, seed=3, replay=True), _RECIPE)
    assert report["prompts"] == stored[1]["prompts"]  # ids, scores, sums and digests, to the last bit
    assert report["perplexity"] == stored[1]["perplexity"]
    assert not list(out.rglob("*.faiss"))
    assert report["disk_bytes"] < stored[1]["disk_bytes"]
    with pytest.raises(BadInput, match="a replay trains anew") as error:
        run_aesop(Assignment(out=out, data=texts, prompts=("more",), seed=3))
    assert error.value.hint == "Name another folder with --out and give all prompts at once."


def test_prompts_can_be_asked_of_a_finished_run(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "aesop"
    recipe = replace(_RECIPE, steps=20)
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
    with pytest.raises(BadInput, match="a replay trains anew"):
        run_aesop(replace(assignment, prompts=("x",), replay=True))
    with pytest.raises(AlreadyExists, match="already holds the study aesop"):
        run_aesop(assignment, recipe)
    with pytest.raises(AlreadyExists, match="already holds the study aesop"):
        run_wikitext2(replace(assignment, prompts=("x",)))


def test_a_run_stopped_while_it_was_asked_can_be_asked_again(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, recipe = tmp_path / "aesop", replace(_RECIPE, steps=20)

    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Task, "ask_stored", stop)
        with pytest.raises(KeyboardInterrupt):
            run_aesop(Assignment(out=out, data=texts, seed=3), recipe)
    report = run_aesop(Assignment(out=out, data=texts, prompts=("The Hare",)))
    assert [prompt["name"] for prompt in report["prompts"]] == ["table-3", "table-4", "table-5", "prompt-1"]
    assert report["seed"] == 3


def test_a_passage_has_a_rank_only_where_the_training_came_so_far(tmp_path: Path) -> None:
    path = tmp_path / "aesop" / "49010-0.txt"
    path.parent.mkdir()
    passage = AESOP[0].rows[2].passage
    path.write_text(f"{'A tale of a crow. ' * 40}{passage.before}{passage.token}{passage.after}\nAPPENDIX\nThe end.")
    ranks = []
    for steps in (2, 90):  # of 12 characters: a 34th of the text, and all of it
        run = tmp_path / str(steps)
        report = run_aesop(Assignment(out=run, data=tmp_path), replace(_RECIPE, batch=1, steps=steps))
        ranks.append([row["rank_here"] for row in report["prompts"][0]["published"]])
    assert ranks[0] == [None, None, None]
    assert ranks[1][:2] == [None, None]
    assert ranks[1][2] >= 1


def test_passages_are_not_cut_from_another_text(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "aesop"
    run_aesop(Assignment(out=out, data=texts), replace(_RECIPE, steps=3))
    write_aesop(tmp_path, seed=7)
    with pytest.raises(BadInput, match="trained on another text"):
        run_aesop(Assignment(out=out, data=tmp_path, prompts=("The",)))


def test_wikitext2_trains_on_words_and_says_what_is_absent(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "wikitext2"
    report = run_wikitext2(
        Assignment(out=out, data=texts, prompts=("the Owl slept ",), preset="laptop"),
        replace(_RECIPE, dropout=0.5, projection=0, steps=40),
    )
    assert report["unharmed"] is True
    assert report["corpus"]["trained_on"] == "the valid split"
    assert "not at hand" in (report_folder(out) / "index.html").read_text()
    assert [prompt["table"] for prompt in report["prompts"]] == [2, 6, 7, None]
    assert [entry["of"] for entry in report["prompts"][3]["tokens"]] == ["the", "Owl", "slept"]
    assert report["prompts"][3]["query"] == {"before": "the Owl ", "token": "slept", "after": " "}
    assert [entry["unknown"] for entry in report["prompts"][3]["tokens"]] == [False, True, False]
    titles = {entry["title"] for prompt in report["prompts"] for entry in prompt["passages"]}
    assert titles <= {"", *(f"Page {number} of valid" for number in range(4))}


def test_a_dry_run_says_what_it_would_take_and_leaves_nothing(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "nothing"
    report = run_aesop(Assignment(out=out, data=texts, dry_run=True), _RECIPE)
    assert not out.exists()
    assert (report["slots"], report["key_width"]) == (4 * 12 * 70, 15)
    shown = [table.query.passage for table in AESOP]
    assert report["queries"] == sum(len(passage.before + passage.token) for passage in shown) + 3 * 3
    assert report["stored"]["bytes"] > report["slots"] * 15 * 4 > report["replay"]["bytes"] / 3
    training = 70 * report["step_seconds"]
    assert report["replay"]["seconds"] - report["stored"]["seconds"] == pytest.approx(training)
    assert report["stored"]["seconds"] > 2 * training > 0
    (table,) = report["tables"]
    assert [row[0] for row in table["rows"]] == ["keys stored", "--replay: no keys stored, trained once more"]


@pytest.mark.parametrize("run", [run_aesop, run_wikitext2])
def test_what_is_wrong_is_said_before_the_training(
    run: Callable[[Assignment], Report], texts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(NotFound, match="no preset 'phone'"):
        run(Assignment(out=out, data=texts, preset="phone"))
    with pytest.raises(NotFound, match="is not in"):
        run(Assignment(out=out, data=tmp_path))
    with pytest.raises(BadInput, match="a prompt is empty"):
        run(Assignment(out=out, data=texts, prompts=("",)))
    with pytest.raises(BadInput, match="no UTF-8"):
        run(Assignment(out=out, data=texts, prompts=("a \udc80",)))
    with pytest.raises(BadInput, match=r"the keys would take .* GB") as error:
        run(Assignment(out=out, data=texts, steps=10**9))
    assert "--replay" in (error.value.hint or "")
    assert not out.exists()

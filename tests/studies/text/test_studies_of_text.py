"""Both language studies in miniature, on the path that the command line takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import dualform
from dualform.errors import BadInput
from dualform.store.reading.snapshot import Snapshot
from dualform_studies.assignment import Assignment
from dualform_studies.report import Report, report_folder
from dualform_studies.text.corpora import Corpus, Tokens, Vocabulary, load_corpus
from dualform_studies.text.study import AESOP, run_language_study
from dualform_studies.text.training import build_network
from tests.studies.text.made_up import RECIPE

_PROMPTS = ("The Fox ran by", "the Wolf")
Run = tuple[Path, Report]


def told(out: Path) -> Report:
    report: Report = json.loads((report_folder(out) / "report.json").read_text())
    return report


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, made_up_data: Path) -> Run:
    out = tmp_path_factory.mktemp("runs") / "aesop"
    return out, run_language_study(AESOP, Assignment(out=out, data=made_up_data, prompts=_PROMPTS, seed=3), RECIPE)


@pytest.fixture(scope="module")
def oracle(stored: Run, made_up_data: Path) -> tuple[Corpus, Tokens, Any, Any]:
    """The corpus and its training tokens, stored keys float64[T, d] in slot order and their positions int64[T]."""
    corpus = load_corpus("aesop", made_up_data)
    tokens = Vocabulary(corpus.whole, "character").encode(corpus.train)
    memory = Snapshot.open(stored[0])
    count = memory.count("token")
    keys = memory.keys("lstm").of_entries(np.arange(count)).astype(np.float64)
    return corpus, tokens, keys, memory.column("token", "position")


def test_slots_tell_which_token_was_read_and_which_followed(stored: Run, oracle: Any) -> None:
    _, tokens, keys, positions = oracle
    with dualform.open(stored[0]) as memory:
        slots = memory.slots(np.arange(len(positions)))
        names = memory.sql("SELECT label, name FROM labels ORDER BY label").records()
    np.testing.assert_array_equal(slots["label"], tokens.ids[positions + 1])
    assert set(slots["dataset"]) == {"aesop"}
    assert [names[number]["name"] for number in slots["label"][:9]] == [tokens.word(at + 1) for at in positions[:9]]
    assert len(keys) == RECIPE.slots == stored[1]["slots"]
    # The token read is the input part of the key, so slots of one position of one step differ by their state alone.
    assert slots["sample"].max() == RECIPE.batch - 1


def test_a_slots_token_is_found_in_what_its_stream_read(stored: Run, oracle: Any) -> None:
    _, tokens, _, _ = oracle
    with dualform.open(stored[0]) as memory:
        rows = memory.sql("SELECT sample, position FROM slots ORDER BY slot DESC LIMIT 40").records()
        shown = {own.sample: own for own in memory.previews(sorted({row["sample"] for row in rows}), "aesop")}
        for row in rows:
            marked = shown[row["sample"]].marked(row["position"])
            assert marked is not None
            assert marked[1] == tokens.word(row["position"])
            assert "".join(marked) in tokens.text
        query_set = memory.info().query_sets[0]
        assert (query_set.name, query_set.previews) == ("test", "texts")
        labels, examples = memory.query_set("test").labels, memory.previews([0, 1], query_set="test")
        assert examples.offsets is not None
        length = len(examples.offsets[0])
        assert len(labels) % length == 0
        names = {row["label"]: row["name"] for row in memory.sql("SELECT label, name FROM labels").records()}
        followed = [names[label] for label in labels[: length - 1].tolist()]
        assert followed == [examples[0].marked(place)[1] for place in range(1, length)]


def test_sums_by_position_and_hits_are_those_of_every_key(stored: Run, oracle: Any) -> None:
    _, tokens, keys, positions = oracle
    queries = np.load(report_folder(stored[0]) / "queries.npy").astype(np.float64)
    for prompt, query in zip(stored[1]["prompts"], queries, strict=True):
        scores = keys @ query
        sums = np.bincount(positions, np.abs(scores), minlength=len(tokens))
        found = [entry["position"] for entry in prompt["passages"]]
        np.testing.assert_allclose([entry["sum"] for entry in prompt["passages"]], np.sort(sums)[::-1][:5], rtol=1e-6)
        np.testing.assert_allclose(sums[found], np.sort(sums)[::-1][:5], rtol=1e-6)
        read = np.bincount(positions, minlength=len(tokens))
        assert [entry["times_read"] for entry in prompt["passages"]] == read[found].tolist()


def test_the_papers_passages_have_the_ranks_of_their_sums_where_they_were_read(stored: Run, oracle: Any) -> None:
    corpus, tokens, keys, positions = oracle
    queries = np.load(report_folder(stored[0]) / "queries.npy").astype(np.float64)
    read = np.unique(positions)
    for prompt, query, table in zip(stored[1]["prompts"], queries, AESOP.tables, strict=False):
        sums = np.bincount(positions, np.abs(keys @ query), minlength=len(tokens))
        for entry, published in zip(prompt["published"], table.rows, strict=True):
            at = corpus.train.index(published.passage.before) + len(published.passage.before)
            assert tokens.word(at) == published.passage.token
            rank = 1 + int((sums[read] > sums[at]).sum()) if at in read else None
            assert entry["rank_here"] == rank, published.rank
    told = [row["rank_here"] for prompt in stored[1]["prompts"] for row in prompt["published"]]
    assert None in told
    assert any(rank is not None for rank in told)


def test_other_queries_of_the_test_text_are_held_against_their_form(stored: Run, oracle: Any) -> None:
    corpus, tokens, keys, positions = oracle
    vocabulary = Vocabulary(corpus.whole, "character")
    network = build_network(len(vocabulary), RECIPE, seed=0)
    network.load_state_dict(load_file(stored[0] / "weights" / "final.safetensors"))
    read = np.unique(positions)
    told = {entry["claim"]: entry for entry in stored[1]["prevalence"]}
    (form, timing) = AESOP.tables[2].forms
    assert told[timing.claim]["in_the_test_text"] == corpus.test.count("at one time") > 12
    places = form.cases(vocabulary.encode(corpus.test), corpus).places
    asked = [vocabulary.encode(prompt["text"][-100:]).ids for prompt in stored[1]["prompts"]]
    queries = torch.cat([network.queries(torch.from_numpy(ids))[-1:] for ids in asked]).numpy()
    np.testing.assert_array_equal(np.load(report_folder(stored[0]) / "queries.npy"), queries)
    chosen = places[np.unique(np.linspace(0, len(places) - 1, 12).round().astype(int))]
    cases, expected = set(form.cases(tokens, corpus).places.tolist()), []
    for place in chosen:
        text = corpus.test[max(0, place - 99) : place + 1]
        query = network.queries(torch.from_numpy(vocabulary.encode(text).ids))[-1].numpy().astype(np.float64)
        sums = np.bincount(positions, np.abs(keys @ query), minlength=len(tokens))[read]
        expected.append(len(cases & set(read[np.argsort(-sums, kind="stable")[:10]].tolist())))
    assert told[form.claim]["of_ten"] == expected
    assert told[form.claim]["of_all"] == len(cases & set(read.tolist()))


def test_the_page_shows_the_papers_passages_beside_ours(stored: Run) -> None:
    out, report = stored
    folder = report_folder(out)
    assert [prompt["table"] for prompt in report["prompts"]] == [3, 4, 5, None, None]
    tables = {table["name"]: table for table in told(out)["tables"]}
    prompts = [f"{prompt['name']}-passages" for prompt in report["prompts"]]
    assert list(tables) == ["claims", "beside", *prompts]
    assert tables["table-3-passages"]["columns"][4] == "the paper's passage"
    assert "The poor Mule made room for him as f<mark>a</mark>st as he could" in (folder / "index.html").read_text()
    assert len({claim["claim"] for claim in told(out)["claims"]}) == len(told(out)["claims"])


def test_a_rerun_gives_the_same_page_without_storing_a_key(stored: Run, made_up_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "aesop"
    report = run_language_study(
        AESOP, Assignment(out=out, data=made_up_data, prompts=_PROMPTS, seed=3, rerun=True), RECIPE
    )
    for one, other in zip(report["prompts"], stored[1]["prompts"], strict=True):
        # Ids, scores and signed sums to the last bit; absolute ones of so few positions to 1e-6.
        assert one["digests"] == other["digests"]
        assert one["published"] == other["published"]
        for mine, theirs in zip(one["passages"], other["passages"], strict=True):
            assert mine | {"sum": pytest.approx(theirs["sum"], rel=1e-6)} == theirs | {"sum": mine["sum"]}
    assert report["prevalence"] == stored[1]["prevalence"]
    assert set(report["seconds"]) == {"recorded_training", "asking", "all"}
    assert not list(out.rglob("*.faiss"))
    assert report["disk_bytes"] < stored[1]["disk_bytes"]
    with pytest.raises(BadInput, match="already contains a run") as error:
        run_language_study(AESOP, Assignment(out=out, data=made_up_data, prompts=("more",), seed=3))
    assert error.value.hint == "Pass another folder with --out, and all prompts at once."

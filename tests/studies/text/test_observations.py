"""Passages, ranks and the paper's observations of texts; and a language study in miniature, as commands have it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import load_file

import dualform
from dualform.errors import BadInput
from dualform.store.reading.snapshot import Snapshot
from dualform_studies.assignment import Assignment
from dualform_studies.report import MarkedPassage, Report, report_folder
from dualform_studies.text.corpora import Corpus, Tokens, Unit, Vocabulary, load_corpus
from dualform_studies.text.observations import Inquiry, Standard, claims_of, rank
from dualform_studies.text.prompts import (
    Passage,
    Prompt,
    PublishedTable,
    Row,
    cut,
    find,
    paper_prompt,
    published_tables,
)
from dualform_studies.text.study import AESOP, run_language_study
from dualform_studies.text.training import Recipe, Task, build_network
from tests.studies.text.made_up import RECIPE

AESOP_TABLES, WIKITEXT2_TABLES = published_tables("aesop"), published_tables("wikitext2")
_ROWS = ["Top-1", "Top-2", "Top-3", "Negative"]
_PASSAGE = {"before": "The Wolf stood ", "token": "d", "after": ""}


def told(ranks: list[int | None], of_ten: int, of_all: int, apart: float | None = None, elsewhere: int = 40) -> Report:
    """A report of one table's prompt, with ranks of its passages and one form, and of one prompt of a user's own."""
    passages = [
        {"rank": name, "leads": name != "Negative", "rank_here": rank, "title": "", "passage": _PASSAGE}
        for name, rank in zip(_ROWS, ranks, strict=False)
    ]
    form = {"claim": "x", "rule": "y", "of_ten": of_ten, "of_all": of_all, "told_apart": apart, "elsewhere": elsewhere}
    prompt: dict[str, Any] = {
        "name": "table-2",
        "table": 2,
        "remark": "warships",
        "query": _PASSAGE,
        "published": passages,
        "forms": [form],
    }
    own = {"table": None, "name": "prompt-1", "published": [], "forms": []}
    return {
        "prompts": [prompt, own],
        "corpus": {"tokens_read": 5000, "trained_on": "the valid split", "unit": "word"},
        "recipe": {"hidden": 200, "steps": 1234},
        "prevalence": [],
    }


def other_queries(of_ten: list[int], of_all: int) -> Report:
    return {"table": 2, "claim": "x", "in_the_test_text": 40, "of_ten": of_ten, "of_all": of_all}


@pytest.mark.parametrize(
    ("ranks", "verdict"),
    [
        ([1, 2, 10], "holds"),
        ([1, 2, 11], "holds in part"),
        ([100, 90, 99], "holds in part"),
        ([90, 99, 50_000], "does not hold"),
        ([1, 2, 101], "does not hold"),
        ([1, 2, None], "does not hold"),
    ],
)
def test_the_passages_shown_are_the_best_or_among_the_leading(ranks: list[int | None], verdict: str) -> None:
    first, *_ = claims_of(told(ranks, 7, 50))
    assert first.verdict == verdict
    assert "the three shown" in first.claim
    assert "“…The Wolf stood [d]”" in first.claim
    told_ranks = ", ".join("not read" if rank is None else f"{rank:,}" for rank in ranks)
    assert first.ours == f"ranks {told_ranks} of 5,000 positions"


@pytest.mark.parametrize(
    ("report", "verdicts"),
    [
        (told([None, None, None], 7, 50), ["holds"]),
        (told([None, None, None], 6, 50), ["holds in part"]),
        (told([None, None, None], 3, 50), ["does not hold"]),
        (told([None, None, None], 0, 10, 0.75), ["does not hold", "holds"]),
        (told([None, None, None], 0, 10, 0.6), ["does not hold", "holds in part"]),
        (told([1, 2, 3, 301], 7, 50), ["holds", "holds", "holds"]),
        (told([1, 2, 300, 40], 7, 50), ["does not hold", "holds", "holds in part"]),
        (told([1, 2, 3, 10], 7, 50), ["holds", "holds", "does not hold"]),
    ],
)
def test_verdicts_follow_from_the_criteria(report: Report, verdicts: list[str]) -> None:
    assert [claim.verdict for claim in claims_of(report)] == verdicts


@pytest.mark.parametrize(
    "report",
    [
        told([None, None, None], 2, 3),
        told([1, 2, 3], 2, 9, 0.9),
        told([1, 2, 3], 2, 10, 0.9, elsewhere=9),
    ],
)
def test_a_handful_of_cases_has_no_verdict(report: Report) -> None:
    kept = [claim.claim for claim in claims_of(report)]
    assert not any("contextual" in claim for claim in kept)
    assert ("The passages attended to most show x." in kept) == (report["prompts"][0]["forms"][0]["of_all"] >= 10)


@pytest.mark.parametrize(
    ("of_ten", "expected"),
    [([7] * 8 + [6] * 4, "holds"), ([7] * 4 + [6] * 6, "holds in part"), ([7] * 3 + [6] * 7, "does not hold")],
)
def test_other_queries_count_by_two_thirds_of_the_best(of_ten: list[int], expected: str) -> None:
    report = told([None, None, None], 0, 50)
    report["prevalence"] = [other_queries(of_ten, 50), other_queries(of_ten, 50) | {"table": 3}]
    *_, claim = claims_of(report)
    assert claim.verdict == expected
    assert f"of {len(of_ten)} queries of the test text (40 others have the form)" in claim.ours


@pytest.mark.parametrize(("of_ten", "of_all"), [([], 50), ([10] * 9, 50), ([7] * 12, 9)])
def test_few_other_queries_have_no_verdict(of_ten: list[int], of_all: int) -> None:
    report = told([None, None, None], 0, 50)
    report["prevalence"] = [other_queries(of_ten, of_all)]
    assert len(claims_of(report)) == 1


_TEXTS = st.text(st.sampled_from("abc \n.<>"), min_size=1, max_size=400).filter(lambda text: text.strip())


@settings(max_examples=80, deadline=None)
@given(_TEXTS, st.sampled_from(["character", "word"]), st.data())
def test_a_passage_is_a_stretch_of_the_text_around_its_token(text: str, unit: Unit, data: st.DataObject) -> None:
    tokens = Vocabulary(text, unit).encode(text)
    at = data.draw(st.integers(0, len(tokens) - 1))
    passage = cut(tokens, at)
    start, end = int(tokens.starts[at]), int(tokens.ends[at])
    assert passage.token == text[start:end]
    assert text[:start].endswith(passage.before)
    assert text[end:].startswith(passage.after)
    assert len(passage.before) <= 90
    assert len(passage.after) <= 60


def test_space_that_is_marked_can_be_seen() -> None:
    assert Passage("At", " ", "one\n time").marked() == MarkedPassage("At", "␣", "one time")
    assert Passage("A\n", "\n", "").marked() == MarkedPassage("A ", "↵", "")


def test_a_quotation_is_found_whatever_its_spaces_and_quotation_marks() -> None:
    text = "x\n“Why,” said\nthe <unk> Fox \u2019s cub , <unk> , <unk> in all . more"
    quoted = Passage('"Why," said the Fox\'s ', "cub", ", in all.")
    place = find(text, quoted)
    assert place is not None
    start, own, end, last = place
    assert text[own:end] == "cub"
    assert text[start:last] == "“Why,” said\nthe <unk> Fox \u2019s cub , <unk> , <unk> in all ."
    assert find(text, Passage("Why said the ", "Wolf", "")) is None


def test_a_marked_space_is_found_where_it_stands() -> None:
    text = "more. At\none time, at one time"
    assert find(text, Passage("At", " ", "one time")) == (6, 8, 9, 17)


@pytest.mark.parametrize("table", [*AESOP_TABLES, *WIKITEXT2_TABLES], ids=lambda table: f"table {table.number}")
def test_published_rows_mark_one_token_and_those_of_the_fables_are_of_their_forms(table: PublishedTable) -> None:
    unit: Unit = "character" if table in AESOP_TABLES else "word"
    for row in (table.query, *table.rows):
        whole = row.passage.before + row.passage.token + row.passage.after
        tokens = Vocabulary(whole, unit).encode(whole)
        at = tokens.first_from(len(row.passage.before))
        assert tokens.word(at) == row.passage.token
        forms = table.forms if unit == "character" else []
        own = replace(corpus(whole), heading=r"^\0$")
        assert all(at in form.cases(tokens, own).places for form in forms), row.rank
    assert [row.rank for row in (table.query, *table.rows)][:4] == ["Query", "Top-1", "Top-2", "Top-3"]


def test_the_papers_query_is_cut_from_the_text_with_a_hundred_tokens_up_to_its_own(made_up_data: Path) -> None:
    corpus = load_corpus("aesop", made_up_data)
    vocabulary = Vocabulary(corpus.whole, "character")
    test = vocabulary.encode(corpus.test)
    sentence = corpus.test.split("\n")[40]
    at = corpus.test.index(sentence)
    quoted = Passage(sentence[:9].replace(" ", "\n"), sentence[9], sentence[10:])
    table = PublishedTable(9, "", "test", Row("Query", quoted), ())
    absent = PublishedTable(8, "", "train", Row("Query", Passage("no such ", "t", "hing")), ())
    found, missing = (paper_prompt(test, one) for one in (table, absent))
    assert (found.name, found.after, found.place) == ("table-9", sentence[10:], at + 9)
    assert found.text == corpus.test[at + 10 - 100 : at + 10]
    assert (missing.name, missing.text, missing.after, missing.place) == ("table-8", "no such t", "hing", None)


def test_a_query_of_words_has_a_hundred_words_or_what_there_is() -> None:
    text = " ".join(f"w{number}" for number in range(150))
    tokens = Vocabulary(text, "word").encode(text)
    tables = [
        PublishedTable(number, "", "test", Row("Query", Passage("", f"w{number}", f" w{number + 1}")), ())
        for number in (120, 30)
    ]
    long, short = (paper_prompt(tokens, table) for table in tables)
    assert long.text.split() == [f"w{number}" for number in range(21, 121)]
    assert short.text.split() == [f"w{number}" for number in range(31)]


_TEXT = "It ran as fast, as fast, and as fast as it could."
_FAST = [at for at in range(len(_TEXT)) if _TEXT.startswith("ast", at)]


@pytest.mark.parametrize(("origin", "left"), [("test", [_FAST[0], _FAST[2]]), ("train", _FAST)])
def test_the_papers_own_query_is_none_of_the_others(origin: str, left: list[int]) -> None:
    table = replace(AESOP_TABLES[0], origin=origin)  # type: ignore[arg-type]
    vocabulary = Vocabulary(_TEXT, "character")
    corpus, tokens = Corpus("made up", "character", _TEXT, 0, _TEXT, _TEXT, "all of it"), vocabulary.encode(_TEXT)
    recipe = Recipe(embedding=2, projection=0, hidden=2, lr=0.1, clip=1.0, batch=1, steps=1)
    task = Task(corpus, vocabulary, tokens, tokens, recipe, seed=0)
    prompts = [Prompt("table-3", _TEXT[:20], published=table, place=_FAST[1]), Prompt("prompt-1", "It")]
    inquiry = Inquiry.of(prompts, task)
    assert [sample.form for sample in inquiry.samples] == list(table.forms)
    assert [sample.in_the_test_text for sample in inquiry.samples] == [len(left)] * 2
    assert [tokens.ends[-1] for tokens in inquiry.others] == [at + 1 for at in left] * 2


_SHIP = "a ship , another ship , a cruiser and more . "


def corpus(text: str, heading: str = "") -> Corpus:
    return Corpus("made up", "character", text, 0, text, "", "all of it", heading=heading)


@pytest.mark.parametrize(
    ("table", "number", "text"),
    [
        (3, 0, "ran as f|ast as f|aster, breakfast, fasten and the F|ASTEST"),
        (
            3,
            1,
            "as f|ast as, too\nf|ast, so f|aster, the F|ASTEST, held fast, stuck\nfast, fast till, as fasten, has fast",
        ),
        (4, 0, "a little |distance, an old |dog, a d, a day, the single dog, a\nmost |delightful a great big deal"),
        (5, 0, "At| one, at|\nthe, hat one, at."),
        (5, 1, "At| one time, at the, at|\nlast, at a fire, at| the same moment, at| twice"),
        (6, 0, "his |contribution to |contributions contributor contribution."),
        (7, 0, "describing |it as, rated |it , it was, found |it hard, bit it"),
    ],
)
def test_forms_find_the_tokens_that_their_rules_word(table: int, number: int, text: str) -> None:
    """A bar stands before each of them."""
    plain = text.replace("|", "")
    tokens = Vocabulary(plain, "word" if table > 5 else "character").encode(plain)
    bars = [at for at, letter in enumerate(text) if letter == "|"]
    expected = [tokens.first_from(bar - count) for count, bar in enumerate(bars)]
    (forms,) = [one.forms for one in (*AESOP_TABLES, *WIKITEXT2_TABLES) if one.number == table]
    assert forms[number].cases(tokens, corpus(plain)).places.tolist() == expected


def test_a_form_of_articles_sets_apart_what_stands_in_others() -> None:
    text = f" = One = \n Her main {_SHIP}\n = Two = \n Her first song . A ship . her last \n"
    tokens = Vocabulary(text, "word").encode(text)
    cases = WIKITEXT2_TABLES[0].forms[0].cases(tokens, corpus(text, r"^ = ([^=\n]+) = $"))
    assert [tokens.word(at) for at in cases.places] == ["main"]
    assert [tokens.word(at) for at in cases.elsewhere] == ["first"]


def test_ranks_are_those_of_a_sorted_list() -> None:
    draw = np.random.default_rng(1)
    positions, sums = np.flatnonzero(draw.random(300) < 0.7), draw.normal(size=300)
    sums = sums[positions]
    ordered = positions[np.argsort(-sums)].tolist()
    for place in range(300):
        assert rank(positions, sums, place) == (ordered.index(place) + 1 if place in ordered else None)
    assert rank(positions, np.zeros(len(positions)), int(positions[5])) == 1


def test_a_standard_counts_the_best_and_tells_topics_apart() -> None:
    text = "\n".join(f" = {n} = \n Her w{n} sailed {_SHIP if n % 2 else ''}\n" for n in range(30))
    tokens = Vocabulary(text, "word").encode(text)
    words = {"Top-1": "w1", "Top-3": "w3", "Negative": "nothing"}
    rows = tuple(Row(rank, Passage("Her ", word, " sailed")) for rank, word in words.items())
    table = PublishedTable(2, "", "test", Row("Query", Passage("", "x", "")), rows, WIKITEXT2_TABLES[0].forms)
    standard = Standard.of(table, tokens, corpus(text, r"^ = ([^=\n]+) = $"))
    places = [next(at for at in range(len(tokens)) if tokens.word(at) == f"w{n}") for n in range(30)]
    assert standard.places == [places[1], places[3], None]
    ((form, cases),) = standard.forms
    assert cases.places.tolist() == places[1::2]
    assert cases.elsewhere.tolist() == places[0::2]
    sums = np.zeros(len(tokens))
    sums[places[1::2]] = np.arange(15) + 1.0
    sums[places[0]] = 8.0
    positions = np.arange(len(tokens))
    report = standard.report(positions, sums)
    assert [row["rank_here"] for row in report["published"]] == [16, 15, None]
    (held,) = report["forms"]
    assert (held["of_ten"], held["of_all"], held["elsewhere"]) == (9, 15, 15)
    pairs = [(a > b) + (a == b) / 2 for a in sums[places[1::2]] for b in sums[places[0::2]]]
    assert held["told_apart"] == pytest.approx(np.mean(pairs))
    few = Standard(table, [None] * 3, [(form, cases)]).report(positions[:2], sums[:2])
    assert few["forms"][0]["told_apart"] is None


_PROMPTS = ("The Fox ran by", "the Wolf")
Run = tuple[Path, Report]


def read_report(out: Path) -> Report:
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
    read_report = [row["rank_here"] for prompt in stored[1]["prompts"] for row in prompt["published"]]
    assert None in read_report
    assert any(rank is not None for rank in read_report)


def test_other_queries_of_the_test_text_are_held_against_their_form(stored: Run, oracle: Any) -> None:
    corpus, tokens, keys, positions = oracle
    vocabulary = Vocabulary(corpus.whole, "character")
    network = build_network(len(vocabulary), RECIPE, seed=0)
    network.load_state_dict(load_file(stored[0] / "weights" / "final.safetensors"))
    read = np.unique(positions)
    read_report = {entry["claim"]: entry for entry in stored[1]["prevalence"]}
    (form, timing) = AESOP.tables[2].forms
    assert read_report[timing.claim]["in_the_test_text"] == corpus.test.count("at one time") > 12
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
    assert read_report[form.claim]["of_ten"] == expected
    assert read_report[form.claim]["of_all"] == len(cases & set(read.tolist()))


def test_the_page_shows_the_papers_passages_beside_ours(stored: Run) -> None:
    out, report = stored
    folder = report_folder(out)
    assert [prompt["table"] for prompt in report["prompts"]] == [3, 4, 5, None, None]
    tables = {table["name"]: table for table in read_report(out)["tables"]}
    prompts = [f"{prompt['name']}-passages" for prompt in report["prompts"]]
    assert list(tables) == ["claims", "beside", *prompts]
    assert tables["table-3-passages"]["columns"][4] == "the paper's passage"
    assert "The poor Mule made room for him as f<mark>a</mark>st as he could" in (folder / "index.html").read_text()
    assert len({claim["claim"] for claim in read_report(out)["claims"]}) == len(read_report(out)["claims"])


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

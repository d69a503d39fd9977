"""Texts, tokens and batches, and trainings of language models."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from torch import Tensor

from dualform.errors import AlreadyExists, BadInput, Damaged, NotFound
from dualform_studies.assignment import Assignment
from dualform_studies.report import report_folder
from dualform_studies.text.corpora import UNKNOWN, Corpus, Unit, Vocabulary, load_corpus
from dualform_studies.text.study import AESOP, WIKITEXT2, LanguageStudy, run_language_study
from dualform_studies.text.training import (
    LanguageModel,
    Recipe,
    Task,
    build_network,
    chunks,
    chunks_of_a_pass,
)
from tests.studies.text.made_up import RECIPE, write_aesop, write_wikitext2


def test_the_book_is_cut_at_the_first_fable_and_before_the_announcements_whatever_is_added(tmp_path: Path) -> None:
    bare = write_aesop(tmp_path)
    corpus = load_corpus("aesop", tmp_path)
    assert corpus.train.startswith("THE WOLF AND THE LAMB\n\n\nWhen the Hare awoke")
    assert (len(corpus.train), len(corpus.test)) == (119_933, 17_761)
    assert corpus.whole[corpus.begin :].startswith(corpus.train + corpus.test + "ANNOUNCEMENTS\n")
    assert "Lamb a little distance below" in corpus.test
    assert "introduction" not in corpus.train
    path = tmp_path / "aesop" / "49010-0.txt"
    path.with_name("49010-0.txt.gz").unlink()
    whole = f"Licence @\n*** START OF THIS EBOOK ***\n{bare}End of the Project Gutenberg EBook\n*** END OF IT ***\nMore"
    path.write_bytes(b"\xef\xbb\xbf" + whole.replace("\n", "\r\n").encode("utf-8"))
    found = load_corpus("aesop", tmp_path)
    assert (found.train, found.test) == (corpus.train, corpus.test)
    assert found.whole.startswith("Licence @\n")
    assert found.title(0) == corpus.title(0) == "THE WOLF AND THE LAMB"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("THE WOLF AND THE LAMB", "THE WOLF AND A LAMB", "has no line THE WOLF AND THE LAMB, the heading of the"),
        ("ANNOUNCEMENTS", "NOTICES", "has no line ANNOUNCEMENTS, where the text ends"),
        (
            "ANNOUNCEMENTS",
            "x" * 1700 + "\nANNOUNCEMENTS",
            r"has 139,395 characters .* instead of 137,694: 64 streams would have 19 chunks of 100, not 18",
        ),
        ("ANNOUNCEMENTS", "x" * 1500 + "\nANNOUNCEMENTS", ""),
    ],
    ids=["first", "last", "longer", "a little longer"],
)
def test_another_edition_is_refused_with_what_does_not_fit(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = write_aesop(tmp_path).replace(old, new)
    (tmp_path / "aesop" / "49010-0.txt.gz").write_bytes(gzip.compress(text.encode("utf-8")))
    if not message:
        assert len(load_corpus("aesop", tmp_path).train) == 119_933 + 1501, "streams are as long as they were"
        return
    with pytest.raises(Damaged, match=message) as error:
        load_corpus("aesop", tmp_path)
    assert "Fetch https://www.gutenberg.org/files/49010/49010-0.txt" in (error.value.hint or "")


def test_a_passage_belongs_to_the_last_title_before_it_and_an_article_goes_to_the_next(made_up_data: Path) -> None:
    aesop, wikitext2 = load_corpus("aesop", made_up_data), load_corpus("wikitext-2", made_up_data)
    second = aesop.train.index("THE TALE OF Æ 2\n")
    places = {second - 2: "1", second: "2", second + 60: "2"}
    assert {at: aesop.title(at) for at in places} == {at: f"THE TALE OF Æ {number}" for at, number in places.items()}
    assert [wikitext2.title(at) for at in (0, len(wikitext2.train) - 1)] == ["", "Page 3 of valid"]
    pages = [wikitext2.article(wikitext2.train.index(f"Page {page} of valid")) for page in range(4)]
    assert "".join(pages) == wikitext2.train[wikitext2.train.index("Page 0") :]
    assert [page.count(" = = More = = ") for page in pages] == [1, 1, 1, 1]


def test_the_train_split_is_used_where_it_is_there_and_its_absence_is_told(made_up_data: Path, tmp_path: Path) -> None:
    absent = load_corpus("wikitext-2", made_up_data)
    assert (absent.train_split, "not at hand" in absent.note) == ("the valid split", True)
    assert "Page 0 of valid" in absent.train
    write_wikitext2(tmp_path, "train", "valid", "test")
    present = load_corpus("wikitext-2", tmp_path)
    assert (present.train_split, present.note) == ("the train split", "")
    assert ("Page 0 of train" in present.train, "Page 0 of test" in present.test) == (True, True)
    for split in ("train", "valid", "test"):
        (tmp_path / "wikitext-2" / f"{split}.txt.gz").unlink()
        (tmp_path / "wikitext-2" / f"wiki.{split}.tokens").write_text(f" = {split} = \n")
    corpus = load_corpus("wikitext-2", tmp_path)
    assert (corpus.train, corpus.test) == (" = train = \n", " = test = \n"), "the names of their publication"


def test_a_file_that_is_not_there_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"49010-0.txt is not in .*aesop") as error:
        load_corpus("aesop", tmp_path)
    assert "another data folder with --data DIR or the environment variable DUALFORM_DATA" in (error.value.hint or "")
    write_wikitext2(tmp_path, "valid")
    with pytest.raises(NotFound, match=r"test.txt is not in .*wikitext-2"):
        load_corpus("wikitext-2", tmp_path)
    write_aesop(tmp_path)
    path = tmp_path / "aesop" / "49010-0.txt.gz"
    for content in (path.read_bytes()[:50], gzip.compress(b"\xff\xfe no UTF-8")):
        path.write_bytes(content)
        with pytest.raises(Damaged, match=r"49010-0.txt.gz cannot be read"):
            load_corpus("aesop", tmp_path)


def recipe(batch: int, unroll: int, steps: int) -> Recipe:
    return Recipe(embedding=4, projection=0, hidden=4, lr=1e-3, clip=1.0, batch=batch, steps=steps, unroll=unroll)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 90), st.integers(1, 6), st.integers(1, 9), st.integers(1, 12))
def test_positions_name_the_tokens_read_and_streams_read_on(length: int, batch: int, unroll: int, steps: int) -> None:
    ids = np.random.default_rng(length).integers(0, 9, length)
    own = recipe(batch, unroll, steps)
    if length - 1 < batch * unroll:
        with pytest.raises(BadInput, match=f"each of {batch} streams needs a chunk of {unroll}"):
            next(chunks(ids, own))
        return
    of_a_pass, read = chunks_of_a_pass(length, own), list(chunks(ids, own))
    assert [chunk.opens for chunk in read] == [step % of_a_pass == 0 for step in range(steps)]
    for chunk in read:
        assert chunk.positions.shape == (batch, unroll)
        np.testing.assert_array_equal(chunk.inputs, ids[chunk.positions])
        np.testing.assert_array_equal(chunk.targets, ids[chunk.positions + 1])
    visits = np.bincount(np.concatenate([chunk.positions.ravel() for chunk in read]), minlength=length)
    reach = of_a_pass * batch * unroll
    assert reach <= length - 1 < reach + batch * unroll + unroll
    assert visits[reach:].sum() == 0
    assert np.ptp(visits[:reach]) <= 1


def test_streams_are_runs_of_chunks_side_by_side_as_the_papers_code_cuts_them() -> None:
    """Against the indices of its sampler, written out: chunk 18 b + step for stream b of 64, of 100 characters each."""
    ids, own = np.arange(119_933), recipe(64, 100, 20)
    assert chunks_of_a_pass(len(ids), own) == 18
    for step, chunk in enumerate(chunks(ids, own)):
        expected = np.array([(stream * 18 + step % 18) * 100 for stream in range(64)])
        np.testing.assert_array_equal(chunk.positions, expected[:, None] + np.arange(100))


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=80), st.sampled_from(["character", "word"]))
@example("<unk> Æsop's\n\n “Fox”—\u0301 \U0001f98a\t!", "character")
@example("<unk> a  b\n\nc \n d", "word")
def test_every_token_stands_where_its_offsets_say_and_none_is_lost(text: str, unit: Unit) -> None:
    vocabulary = Vocabulary(text, unit)
    tokens = vocabulary.encode(text)
    words = [tokens.word(at) for at in range(len(tokens))]
    assert [vocabulary.words[number] for number in tokens.ids] == words
    assert unit == "word" or words == list(text)
    assert all(unit == "character" or word == "\n" or "\n" not in word for word in words)
    # Between tokens there is nothing but space.
    gaps = [text[end:start] for end, start in zip([0, *tokens.ends], [*tokens.starts, len(text)], strict=True)]
    assert all(not gap.strip() and "\n" not in gap for gap in gaps)


def test_tokens_are_numbered_in_order_and_unknown_words_told_and_unknown_characters_refused() -> None:
    assert Vocabulary("Æb\na b", "character").words == ("\n", " ", "a", "b", "Æ")
    assert Vocabulary("b Crow a", "word").words == (UNKNOWN, "Crow", "a", "b")
    words = Vocabulary("b a <unk>\n", "word")
    tokens = words.encode("b z\na")
    assert tokens.ids.tolist() == [3, words.unknown, 0, 2]
    assert tokens.word(1) == "z"
    assert len(Vocabulary(" ".join(f"w{number}" for number in range(40_000)), "word")) == 40_001
    characters = Vocabulary("bba", "character")
    assert characters.unknown == -1
    with pytest.raises(BadInput, match=r"the network was not trained with 'x', 'é'\.") as error:
        characters.encode("abéx")
    assert error.value.field == "prompt"


def test_tokens_are_found_by_character_and_cut_behind_one() -> None:
    tokens = Vocabulary("one two  three", "word").encode("one two  three")
    assert [tokens.first_from(at) for at in (0, 1, 4, 8, 9, 10)] == [0, 1, 1, 2, 2, 3]
    cut = {(2, 2): ["two", "three"], (2, 9): ["one", "two", "three"], (1, 1): ["two"], (0, 5): ["one"]}
    for given_, expected in cut.items():
        last = tokens.ending(*given_)
        assert ([last.word(at) for at in range(len(last))], last.text) == (expected, tokens.text)


_TEXT = "the Fox ran by the stream. the Crow stood by the wood. " * 6
_RECIPE = Recipe(embedding=5, projection=7, hidden=6, lr=2e-2, clip=1.0, batch=3, steps=12, unroll=8, reset=0.3)


def _unrolled(network: LanguageModel, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Keys float64[L, h + e] and scores float64[L, V] by the LSTM's equations, in NumPy (gates: i, f, g, o)."""
    w = {name: value.detach().numpy().astype(np.float64) for name, value in network.state_dict().items()}
    hidden = cell = np.zeros(network.lstm.hidden_size)
    keys, scores = [], []
    for token in ids:
        x = w["embedding.weight"][token]
        if "projection.weight" in w:
            x = w["projection.weight"] @ x + w["projection.bias"]
        keys.append(np.concatenate([hidden, x]))
        gates = w["lstm.weight_ih_l0"] @ x + w["lstm.bias_ih_l0"] + w["lstm.weight_hh_l0"] @ hidden
        i, f, g, o = np.split(gates + w["lstm.bias_hh_l0"], 4)
        cell = cell / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        hidden = np.tanh(cell) / (1 + np.exp(-o))
        scores.append(w["output.weight"] @ hidden + w["output.bias"])
    return np.array(keys), np.array(scores)


@pytest.mark.parametrize("projection", [0, 7])
def test_queries_are_the_previous_state_and_the_input(projection: int) -> None:
    network = build_network(11, replace(_RECIPE, projection=projection, dropout=0.5), seed=3)
    ids = [4, 1, 10, 0, 4]
    keys, _ = _unrolled(network, ids)
    queries = network.queries(torch.tensor(ids))
    assert queries.shape == (5, replace(_RECIPE, projection=projection).d_in)
    assert network.training
    np.testing.assert_allclose(queries.numpy(), keys, rtol=0, atol=1e-6)


def _task(recipe: Recipe, seed: int) -> Task:
    vocabulary = Vocabulary(_TEXT, "character")
    tokens = vocabulary.encode(_TEXT)
    return Task(Corpus("made up", "character", _TEXT, 0, _TEXT, _TEXT, ""), vocabulary, tokens, tokens, recipe, seed)


def _trained(recipe: Recipe, seed: int) -> tuple[dict[str, Tensor], list[float]]:
    task = _task(recipe, seed)
    network, optimizer = task.begin()
    losses = task.update(network, optimizer)
    return dict(network.state_dict()), losses


def test_the_seed_decides_every_bit_and_draws_nothing_from_elsewhere() -> None:
    recipe = replace(_RECIPE, dropout=0.5)
    torch.manual_seed(1)
    first, losses = _trained(recipe, seed=5)
    after = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), after)
    assert np.mean(losses[-3:]) < losses[0]
    second, again = _trained(recipe, seed=5)
    assert losses == again
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert _trained(recipe, seed=6)[1] != losses


@pytest.mark.parametrize("reset", [0.0, 1.0, 0.4])
def test_the_state_is_carried_over_but_for_new_passes_and_the_steps_that_a_seeded_draw_names(reset: float) -> None:
    recipe = replace(_RECIPE, reset=reset, steps=30)
    task = _task(recipe, 2)
    network, optimizer = task.begin()
    given: list[bool] = []
    network.lstm.register_forward_pre_hook(lambda module, args: given.append(args[1] is not None))
    task.update(network, optimizer)
    draws = np.random.default_rng((2, 1)).random(recipe.steps)
    # A pass is 13 chunks of 8 for each of 3 streams.
    assert given == [step % 13 > 0 and bool(draw >= reset) for step, draw in enumerate(draws)]


def test_the_first_loss_is_that_of_the_initial_network_without_a_state() -> None:
    task = _task(_RECIPE, 4)
    network, optimizer = task.begin()
    chunk = next(chunks(task.train.ids, _RECIPE))
    expected = []
    for inputs, targets in zip(chunk.inputs, chunk.targets, strict=True):
        _, scores = _unrolled(network, inputs.tolist())
        expected += list(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(targets)), targets])
    losses = task.update(network, optimizer)
    assert losses[0] == pytest.approx(np.mean(expected), rel=1e-6)


def test_weights_begin_as_the_paper_has_them() -> None:
    network = build_network(400, replace(_RECIPE, embedding=64), seed=0)
    bound = float(network.embedding.weight.detach().abs().max())
    assert 0.0999 < bound <= 0.1
    assert network.output.weight.shape == (400, 6)
    assert replace(_RECIPE, projection=0).d_in == 11
    assert _RECIPE.slots == 3 * 8 * 12


def test_prompts_can_be_asked_of_a_finished_run(made_up_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    recipe = replace(RECIPE, steps=20)
    assignment = Assignment(out=out, data=made_up_data, seed=3)
    first = run_language_study(AESOP, replace(assignment, prompts=("The Hare",)), recipe)
    after = run_language_study(AESOP, replace(assignment, prompts=("far away", "The Hare")))
    assert [prompt["name"] for prompt in after["prompts"]][3:] == ["prompt-1", "prompt-2", "prompt-3"]
    assert after["prompts"][:4] == first["prompts"]
    assert after["prompts"][5] == first["prompts"][3] | {"name": "prompt-3"}
    assert 'id="prompt-3-passages"' in (report_folder(out) / "index.html").read_text()
    assert (
        run_language_study(AESOP, Assignment(out=out, data=made_up_data, prompts=("x",), preset="laptop"))["seed"] == 3
    )
    asked = replace(assignment, prompts=("x",))
    refused: list[tuple[type[Exception], str, LanguageStudy, Assignment, Recipe | None]] = [
        (AlreadyExists, "seed 3, not 4", AESOP, replace(asked, seed=4), None),
        (AlreadyExists, "seed 3, not 0", AESOP, replace(asked, seed=0), None),
        (AlreadyExists, "steps 20, not 9", AESOP, replace(asked, steps=9), None),
        (BadInput, "already contains a run", AESOP, replace(asked, rerun=True), None),
        (AlreadyExists, "already contains the study aesop", AESOP, assignment, recipe),
        (AlreadyExists, "already contains the study aesop", WIKITEXT2, asked, None),
    ]
    for kind, what, study, wrong, own in refused:
        with pytest.raises(kind, match=what):
            run_language_study(study, wrong, own)
    write_aesop(tmp_path, seed=7)
    with pytest.raises(BadInput, match="trained on another text"):
        run_language_study(AESOP, Assignment(out=out, data=tmp_path, prompts=("The",)))


def test_a_run_stopped_while_it_was_asked_can_be_asked_again(
    made_up_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, recipe = tmp_path / "aesop", replace(RECIPE, steps=20)

    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Task, "ask_stored", stop)
        with pytest.raises(KeyboardInterrupt):
            run_language_study(AESOP, Assignment(out=out, data=made_up_data, seed=3), recipe)
    report = run_language_study(AESOP, Assignment(out=out, data=made_up_data, prompts=("The Hare",)))
    assert [prompt["name"] for prompt in report["prompts"]] == ["table-3", "table-4", "table-5", "prompt-1"]
    assert report["seed"] == 3
    # Other queries of the papers' forms are asked with the paper's own.
    assert [entry["table"] for entry in report["prevalence"]] == [3, 3, 4, 5, 5]
    assert [len(entry["of_ten"]) for entry in report["prevalence"]] == [0, 0, 0, 12, 12]


def test_wikitext2_trains_on_words_and_says_what_is_absent(made_up_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "wikitext2"
    report = run_language_study(
        WIKITEXT2,
        Assignment(out=out, data=made_up_data, prompts=("the Owl slept ",), preset="laptop"),
        replace(RECIPE, dropout=0.5, projection=0, steps=40),
    )
    assert report["corpus"]["trained_on"] == "the valid split"
    page = (report_folder(out) / "index.html").read_text()
    assert "not at hand" in page
    assert "217,646" not in page  # the tokens of the real split, and no number of this one
    assert [prompt["table"] for prompt in report["prompts"]] == [2, 6, 7, None]
    assert report["prompts"][3]["query"] == {"before": "the Owl ", "token": "slept", "after": " "}
    titles = {entry["title"] for prompt in report["prompts"] for entry in prompt["passages"]}
    assert titles <= {"", *(f"Page {number} of valid" for number in range(4))}


def test_a_dry_run_says_what_it_would_take_and_leaves_nothing(made_up_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "nothing"
    report = run_language_study(AESOP, Assignment(out=out, data=made_up_data, dry_run=True), RECIPE)
    assert not out.exists()
    assert (report["slots"], report["key_width"]) == (4 * 12 * 70, 15)
    # The best and two sums of three prompts. Other queries of the test text: those of Tables 3 and 4 are alone of
    # their forms, and of either form of Table 5, whose query is of the training text, there are twelve.
    assert report["queries"] == 3 * 3 + 24
    assert report["stored"]["bytes"] > report["slots"] * 15 * 4 > report["rerun"]["bytes"] / 3
    step = report["step_seconds"]
    assert report["rerun"]["seconds"] - report["stored"]["seconds"] == pytest.approx(70 * step)
    assert report["stored"]["seconds"] > 70 * step > 0
    (table,) = report["tables"]
    assert [row[0] for row in table["rows"]] == ["keys stored", "--rerun: no keys stored, trained twice"]


@pytest.mark.parametrize("study", [AESOP, WIKITEXT2], ids=lambda study: study.name)
def test_what_is_wrong_is_said_before_the_training(study: LanguageStudy, made_up_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    refused: list[tuple[type[Exception], str, dict[str, Any], Recipe | None]] = [
        (NotFound, r"no preset 'phone'\. Presets: laptop, paper\.", {"preset": "phone"}, None),
        (NotFound, "is not in", {"data": tmp_path}, None),
        (BadInput, "prompt must not be empty", {"prompts": ("",)}, None),
        (BadInput, "is not UTF-8", {"prompts": ("a \udc80",)}, None),
        (BadInput, "each of 90000 streams needs a chunk of 12", {}, replace(RECIPE, batch=90_000)),
    ]
    if study is AESOP:
        refused.append((BadInput, "the network was not trained with 'Ω'", {"prompts": ("the Ω",)}, RECIPE))
    for kind, says, changes, recipe in refused:
        with pytest.raises(kind, match=says):
            run_language_study(study, replace(Assignment(out=out, data=made_up_data), **changes), recipe)
    with pytest.raises(BadInput, match=r"the keys need .* GB") as error:
        run_language_study(study, Assignment(out=out, data=made_up_data, steps=10**9), RECIPE)
    assert "--rerun" in (error.value.hint or "")
    assert not out.exists()

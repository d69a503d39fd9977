"""Each token of a language model's text has its own prediction, label and surprise, and can be asked about."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import BadInput, NotFound
from dualform.query.weights import contributions
from dualform.record import query_sets
from dualform_explorer import groups as groups_room
from dualform_explorer.filter import Chip
from dualform_explorer.memories import Beside, RememberedAnswers
from dualform_explorer.panels.answer import answer_panel, output_panel, placebo_panel, terms_panel
from dualform_explorer.panels.data import slots_panel
from dualform_explorer.panels.example import query_panel
from dualform_explorer.sample import SampleAddress, moved_panel, neighbours_panel, sample_panel
from dualform_explorer.start import query_set_panel
from dualform_explorer.state import State
from dualform_explorer.view import Snapshot, View
from dualform_explorer.words import Words, visible
from tests.explorer.recorded_gpt import HELD, LENGTH, VOCABULARY, WORDS, following, record, tokens
from tests.explorer.served import served, words_of

STATE = State("", "held", 2, "head", ("label",))


LAST = LENGTH - 3
"""The last token with a label."""


def test_of_many_groups_the_most_attended_have_parts_and_all_others_are_one(gpt, info, monkeypatch):
    monkeypatch.setattr(groups_room, "_LARGEST", 3)  # so that the prediction and the label are not among them
    panel, query = answer_panel(View(gpt, info, STATE)), f"held/2:{LAST}"
    largest = gpt.group_sum("head", query, by="label", score="abs", k=3)
    asked = {group for group, _, _ in largest.ranked()} | {(panel.predicted[0],), (panel.other[0],)}
    whole = gpt.contributions("head", query, by="label")
    along = whole.sums[0][:, panel.predicted[0]] - whole.sums[0][:, panel.other[0]]
    sums = dict(zip(whole.groups, along.tolist(), strict=True))
    chosen = [part for part in panel.parts if part.kind == "group"]
    assert 3 < len(chosen) == panel.most_attended
    assert {part.said for part in chosen} == asked & sums.keys()
    assert panel.parts[-1].kind == "rest"
    for part in chosen:
        assert part.value == pytest.approx(sums.pop(part.said), abs=1e-9)
    assert panel.parts[-1].value == pytest.approx(sum(sums.values()), abs=1e-9)
    terms = terms_panel(View(gpt, info, STATE))
    groups = [term for term in terms.terms if term.kind in ("group", "rest")]
    assert groups[-1].said == (f"{largest.total - 3} more",)
    assert sum(term.count for term in groups) == whole.counts.sum()
    np.testing.assert_allclose(np.sum([term.values for term in groups], axis=0), whole.sums[0].sum(axis=0), atol=1e-9)


def test_surprise_is_the_loss_at_each_token(gpt, info, gpt_outputs):
    examples, labels = Snapshot(gpt, info).examples_of("held"), following(tokens()[:HELD])
    for row in range(HELD):
        loss = cross_entropy(torch.tensor(gpt_outputs[row]), labels[row], reduction="none", ignore_index=-1)
        found = examples.losses(row)
        assert np.isnan(found).tolist() == (labels[row] < 0).tolist()
        np.testing.assert_allclose(np.nan_to_num(found), loss.numpy(), atol=1e-5)
    wrong = (gpt_outputs.argmax(axis=2) != labels.numpy()) & (labels.numpy() >= 0)
    assert examples.token_errors == (wrong.sum(), HELD * (LENGTH - 2))
    assert (examples.read, len(examples.misclassified)) == (None, 0)
    assert query_set_panel(Snapshot(gpt, info), "held").examples.token_errors == examples.token_errors


@pytest.mark.parametrize("layer", ["head", "places", "attention.q"])
def test_tokens_can_be_picked_with_several_kinds_of_positions(gpt, info, gpt_outputs, layer):
    assert len({own.space for own in info.layers}) > 1
    panel = query_panel(View(gpt, info, replace(STATE, layer=layer)))
    assert [own.position for own in panel.passage] == [*range(LENGTH)]
    assert [own.position for own in panel.passage if own.marked] == [LAST]
    assert (panel.token, panel.tokens, panel.missing) == (LAST, LENGTH, "")
    assert (panel.read, panel.label) == (gpt_outputs[2, LAST].argmax(), following(tokens()[:HELD])[2, LAST])
    losses = Snapshot(gpt, info).examples_of("held").losses(2)
    assert [own.loss for own in panel.passage] == [None if np.isnan(own) else own for own in losses.tolist()]
    assert panel.chance == np.log(WORDS)
    for own in panel.passage[: LENGTH - 2]:
        assert own.level == min(6, round(6 * own.loss / np.log(WORDS)))
    assert ("are of no example" in panel.remark) == (layer == "places")
    if layer != "places":
        shown = slots_panel(View(gpt, info, replace(STATE, layer=layer)))
        assert shown.missing == ""
        assert {own.preview.passage[1] for own in shown.slots} <= set(VOCABULARY)


def test_a_layer_whose_rows_are_of_no_example_is_asked_by_the_row_of_the_tokens_number(gpt, info):
    stored = gpt.query_set("held", "places").queries
    assert len(stored) == LENGTH
    for token in (0, 4):
        np.testing.assert_array_equal(
            View(gpt, info, replace(STATE, layer="places", token=token)).query(), stored[[token]]
        )
    asked = []
    ask = gpt._answers.ask
    gpt._answers.ask = lambda question: asked.append(question) or ask(question)
    try:
        for _ in range(2):
            slots_panel(View(gpt, info, replace(STATE, layer="places", token=7)))
    finally:
        del gpt._answers.ask
    assert sum(type(own).__name__ == "TopK" for own in asked) == 1
    with pytest.raises(NotFound, match=f"no token {LENGTH}: it has 0 to {LENGTH - 1}"):
        query_panel(View(gpt, info, replace(STATE, token=LENGTH)))


def test_contributions_go_to_what_the_token_reads_less_its_label(gpt, info, gpt_outputs):
    for token in range(LENGTH):
        read, label = gpt_outputs[2, token].argmax(), int(following(tokens()[:HELD])[2, token])
        state = View(gpt, info, replace(STATE, score="contribution", token=token)).completed(0)
        assert state.target == (f"{read}-{label}" if label not in (-1, read) else str(read))


def test_a_samples_page_asks_each_example_at_its_last_token_with_a_label(gpt, info):
    panel = moved_panel(Snapshot(gpt, info), SampleAddress("", "texts", 3, "held"))
    assert (panel.layer, panel.tried, panel.of_tokens, panel.labelled) == ("head", HELD, True, True)
    labels = following(tokens()[:HELD])[:, LAST].tolist()
    rows = f"held/{','.join(f'{row}:{LAST}' for row in range(HELD))}"
    whole, left = np.asarray(gpt.output("head", rows)), np.asarray(gpt.output("head", rows, "sample <> 3"))
    every, others = np.arange(HELD), whole.copy()
    others[every, labels] = -np.inf
    other = others.argmax(axis=1)
    changes = (left - whole)[every, labels] - (left - whole)[every, other]
    for one in (*panel.helped, *panel.hurt):
        assert one.change == pytest.approx(changes[one.card.row], abs=1e-5)
    assert {own.card.row for own in (*panel.helped, *panel.hurt)} == set(np.flatnonzero(changes).tolist())
    assert (
        sum(count for _, count in sample_panel(Snapshot(gpt, info), SampleAddress("", "texts", 3, "held")).visits)
        % LENGTH
        == 0
    )


def test_a_sample_is_compared_by_its_last_token_at_its_last_step(gpt, info):
    panel = neighbours_panel(Snapshot(gpt, info), SampleAddress("", "texts", 3, "held", layer="head"))
    (row,) = gpt.sql("SELECT max(step) AS step FROM slots WHERE sample = 3")
    assert (panel.step, panel.position) == (row["step"], LENGTH - 1)


def test_placebos_are_asked_of_the_token(gpt, info, gpt_outputs):
    panel = placebo_panel(View(gpt, info, replace(STATE, token=1, where="step <> 2")))
    assert panel.answer.predicted[0] == gpt_outputs[2, 1].argmax()


@pytest.mark.parametrize(
    ("text", "seen"),
    [(" a", "␣a"), ("a  ", "a␣␣"), ("a b", "a b"), ("\n", "↵"), ("  ", "␣␣"), ("", ""), (" \t", "␣→"), ("x", "x")],
)
def test_white_space_is_seen(text, seen):
    assert visible(text) == seen


def test_an_ablation_is_rated_over_the_tokens_that_have_a_label(gpt, info):
    stored = gpt.query_set("held")
    before = np.asarray(gpt.output("head", "held")).argmax(axis=1)
    after = np.asarray(gpt.output("head", "held", "label <> 3")).argmax(axis=1)
    known = stored.labels >= 0
    right, still = (before == stored.labels)[known], (after == stored.labels)[known]
    rates = placebo_panel(View(gpt, info, replace(STATE, chips=(Chip.of(False, ("label",), (3,)),)))).rates
    assert (rates.examples, rates.of_tokens) == (known.sum(), True)
    assert (rates.corrected, rates.misclassified) == ((still & ~right).sum(), (~right).sum())
    assert (rates.broken, rates.correct) == ((right & ~still).sum(), right.sum())


@pytest.fixture(scope="module", params=["outputs", "summaries"])
def path(request, tmp_path_factory, gpt_folder):
    if request.param == "outputs":
        return gpt_folder
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(query_sets, "MOST_BYTES", 0)
        return record(tmp_path_factory.mktemp("gpt") / "run")


@pytest.fixture(scope="module")
def gpt(path):
    with RememberedAnswers(dualform.open(path)) as memory:
        yield memory


@pytest.fixture(scope="module")
def info(gpt):
    return gpt.info()


@pytest.mark.parametrize(("layer", "token"), [("head", None), ("mlp", 0), ("places", 3), ("places", LENGTH - 1)])
def test_the_answer_is_that_of_the_token_whatever_layer_is_chosen(gpt, info, gpt_outputs, layer, token):
    at = LAST if token is None else token
    label = int(following(tokens()[:HELD])[2, at])
    panel = answer_panel(View(gpt, info, replace(STATE, layer=layer, token=token)))
    order = np.argsort(-gpt_outputs[2, at], kind="stable")
    assert (panel.layer, panel.token) == ("head", at)
    assert panel.predicted == (order[0], visible(VOCABULARY[order[0]]))
    assert panel.label == (None if label < 0 else label)
    assert panel.other[0] == (order[1] if label in (-1, order[0]) else label)
    assert [own[:2] for own in panel.next] == [(own, visible(VOCABULARY[own])) for own in order[:5].tolist()]
    shares = torch.tensor(gpt_outputs[2, at]).softmax(0)[order[:5].copy()]
    assert [own[2] for own in panel.next] == pytest.approx(shares.tolist(), abs=1e-4)
    assert panel.margin == pytest.approx(gpt_outputs[2, at, order[0]] - gpt_outputs[2, at, panel.other[0]], abs=1e-3)
    assert panel.parts[-1].end == pytest.approx(panel.margin, abs=1e-3)
    output = output_panel(View(gpt, info, replace(STATE, layer=layer, token=token)))
    assert (output.network, output.stored, output.full) == (True, order[0], order[0])
    assert [own.number for own in output.outputs if own.label] == ([] if label < 0 else [label])


def test_where_weights_of_groups_are_too_large_the_words_are_still_named(gpt_folder, gpt_outputs, monkeypatch):
    monkeypatch.setattr(contributions, "_MOST_WORK", 0)
    monkeypatch.setattr(contributions, "why_no_slot_shares", lambda view, layer: "it has none")
    with dualform.open(gpt_folder) as memory:
        for where in ("", "step <> 3"):
            panel = answer_panel(View(memory, memory.info(), replace(STATE, where=where)))
            assert (panel.parts, panel.predicted[0]) == ((), gpt_outputs[2, LAST].argmax())
            own = np.asarray(memory.output("head", f"held/2:{LAST}", where or None))[0]
            assert panel.margin == pytest.approx(own[panel.predicted[0]] - own[panel.other[0]], abs=1e-5)
            assert panel.why_no_parts.startswith("20 groups of layer")
    with served({"run": lambda: dualform.open(gpt_folder)}) as pages:
        text = pages.get("/explore?item=held/2&layer=head&by=label").text
        assert "The output has no parts here: 20 groups of layer" in words_of(text)
        assert "Largest outputs at token" in words_of(text)
        assert 'id="waterfall"' not in text


def test_words_of_a_tokenizer_name_what_the_memory_does_not(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(VOCABULARY)}, unk_token=VOCABULARY[0])
    )
    file = tmp_path / "tokenizer.json"
    tokenizer.save(str(file))
    words = Words(file)
    assert [words.of(number) for number in (0, 39, 40, -1)] == ["␣word00", "␣word39", "", ""]
    record(tmp_path / "run", named=False, batch_size=2)
    with RememberedAnswers(dualform.open(tmp_path / "run"), Beside(words)) as memory:
        panel = answer_panel(View(memory, memory.info(), STATE))
        assert [own[1] for own in panel.next] == [f"␣word{own[0]:02}" for own in panel.next]
        assert Snapshot(memory, memory.info()).names.of(7, "texts") == "␣word07"
        queries = query_panel(View(memory, memory.info(), replace(STATE, layer="places")))
        assert "are of no example" in queries.remark
        assert len(memory.query_set("held", "places").queries) == 3 * LENGTH  # of each batch
    from dualform_explorer import explore

    with explore(tmp_path / "run", tokenizer=file) as pages:
        import urllib.request

        with urllib.request.urlopen(f"{pages.url}explore?item=held/2&layer=head&by=label") as page:
            assert "␣word" in words_of(page.read().decode())
    for wrong in (tmp_path / "none", tmp_path / "run" / "memory.json", 7):
        with pytest.raises(BadInput) as refused:
            Words(wrong)
        assert refused.value.field == "tokenizer"


def test_pages_of_every_layer_answer_and_say_of_tokens(gpt_pages):
    start = words_of(gpt_pages.get("/").text)
    right, known = re.search(r"(\d+) of (\d+) tokens predicted as labelled", start).groups()
    assert 0 <= int(right) < int(known) == HELD * (LENGTH - 2)
    for layer in ("head", "places"):
        page = gpt_pages.get(f"/explore?item=held/2&layer={layer}&by=label&token=4&open=data,layers,training,record")
        assert page.status == 200
        assert 'class="failure"' not in page.text
        assert len(re.findall(r'<a class="token heat minus-\d" href="[^"]*token=\d', page.text)) == LENGTH - 3
        words = words_of(page.text)
        assert "surprise at each token" in words
        assert "Largest outputs at token 4" in words
        assert f"{right} of {known} tokens of held are predicted as labelled" in words

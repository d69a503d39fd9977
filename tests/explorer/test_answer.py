"""What a page answers first: a margin and its parts, whether its change is unusual, and two answers side by side."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.answers import Placebos
from dualform.answers.outputs import CENTRAL
from dualform.errors import BadInput, ServiceError
from dualform.questions import Placebo
from dualform_explorer.compare import compare_link, compare_panel, default_sides, params_of
from dualform_explorer.drawing import span
from dualform_explorer.examples import SETS
from dualform_explorer.filter import Chip
from dualform_explorer.panels import answer
from dualform_explorer.panels.answer import PlaceboPanel, answer_panel, placebo_panel
from dualform_explorer.state import State
from dualform_explorer.view import View
from dualform_explorer.words import rounded
from tests.explorer.served import Troubled, served
from tests.trainings import learn

PLAIN = State("", "shapes", 3, "4", ("dataset", "label"))


WITHOUT = replace(PLAIN, chips=(Chip.of(False, ("dataset",), ("noise <b>",)),))


WHERE = "dataset <> 'noise <b>'"


@pytest.mark.parametrize("row", [0, 22, 42])
@pytest.mark.parametrize(("state", "where", "at"), [(PLAIN, None, None), (WITHOUT, WHERE, None), (PLAIN, None, 40)])
def test_parts_are_those_of_contributions_and_add_up(memory, info, row, state, where, at):
    panel = answer_panel(View(memory, info, replace(state, row=row, at=at, layer="0")))
    answer = memory.contributions("4", f"shapes/{row}", ("dataset",), where, at)
    output, label = answer.output[0], int(memory.query_set("shapes").labels[row])
    whole = np.asarray(memory.output("4", f"shapes/{row}", None, at))[0]  # a filter does not change what is explained
    top, second = np.argsort(-whole, kind="stable")[:2].tolist()
    other = second if top == label else label
    assert (panel.layer, panel.predicted[0], panel.other[0], panel.wrong) == ("4", top, other, top != label)
    assert panel.margin == output[top] - output[other]
    assert (None if where is None else int(output.argmax())) == (panel.becomes and panel.becomes[0])
    found = {part.said: part.value for part in panel.parts if part.kind == "group"}
    assert found == {group: own[top] - own[other] for group, own in zip(answer.groups, answer.sums[0], strict=True)}
    assert panel.parts[0].begin == 0.0
    for before, after in zip(panel.parts, panel.parts[1:], strict=False):
        assert after.begin == pytest.approx(before.end)
    residual = answer.residual[0][top] - answer.residual[0][other]
    assert panel.parts[-1].end == pytest.approx(panel.margin - residual, abs=1e-9)


def test_without_the_initial_weights(memory, info):
    panel = answer_panel(View(memory, info, replace(PLAIN, initial=False)))
    assert {part.kind for part in panel.parts} == {"group"}
    assert panel.parts[-1].end == pytest.approx(panel.margin, abs=1e-5)


def test_of_many_groups_the_others_are_one_part(memory, info):
    panel = answer_panel(View(memory, info, replace(PLAIN, by=("sample", "label"))))
    groups = [part for part in panel.parts if part.kind == "group"]
    rest = [part for part in panel.parts if part.kind == "rest"]
    assert (len(groups), [part.said for part in rest]) == (10, [("50 more",)])
    assert panel.parts[-1].end == pytest.approx(panel.margin, abs=1e-5)
    *named, others = panel.told
    assert [abs(own.value) for own in named] == sorted((abs(own.value) for own in panel.parts[:-1]), reverse=True)[:4]
    assert sum(own.value for own in (*named, others)) == pytest.approx(panel.margin, abs=1e-5)
    assert others.said == ("all others",)


def test_one_group_more_than_are_drawn_has_its_own_bar(memory, info, monkeypatch):
    count = len({own[0] for own in memory.contributions("4", "shapes/3", "sample").groups})
    for most, rest in ((count - 1, 0), (count - 2, 2)):
        monkeypatch.setattr(answer, "_MOST", most)
        panel = answer_panel(View(memory, info, replace(PLAIN, by=("sample",))))
        assert [part.said for part in panel.parts if part.kind == "rest"] == [(f"{rest} more",)] * (rest > 0)


def test_a_page_says_it_in_a_sentence_and_a_bar_removes_its_group(pages):
    text = pages.get("/explore?item=shapes/3").text
    sentence = " ".join(re.sub("<[^>]*>", "", re.search(r'id="sentence">(.*?)</p>', text, re.DOTALL)[1]).split())
    assert re.fullmatch(
        r"Predicted 3( frame)?, as labelled, ahead of \d( \w+)? by [\d.]+\. By dataset of the training data: "
        r"initial weights [+\u2212][\d.]+, "
        r"bias [+\u2212][\d.]+, noise &lt;b&gt; [+\u2212]?[\d.]+, shapes [+\u2212]?[\d.]+\.",
        sentence,
    ), sentence
    table = text[text.index('id="waterfall"') :]
    assert 'aria-label="without shapes"' in table[: table.index("</table>")]
    assert table.index('data-part="initial"') < table.index('data-part="group"') < table.index('data-part="margin"')
    assert text.index('id="panel-answer"') < text.index('id="panel-output"')


def test_a_page_leads_from_a_new_winner_to_what_speaks_for_it(pages, memory, info):
    def third(chip: Chip, row: int) -> bool:
        panel = answer_panel(View(memory, info, replace(PLAIN, row=row, chips=(chip,))))
        return panel.becomes[0] not in (panel.predicted[0], panel.other[0])

    labels = [Chip.of(False, ("label",), (own,)) for own in range(4)]
    state = next(replace(PLAIN, row=row, chips=(chip,)) for chip in labels for row in range(60) if third(chip, row))
    panel = answer_panel(View(memory, info, state))
    target = f"{panel.becomes[0]}-{panel.other[0]}"
    text = pages.get(f"/explore?{state.query()}").text
    there = re.search(r'id="why-changed">.*?href="([^"]*)"', text)[1].replace("&amp;", "&")
    assert f"target={target}" in there
    assert 'id="sums"' in pages.get("/" + there).text
    assert "why-changed" not in pages.get(f"/explore?{PLAIN.query()}").text


def test_outputs_that_no_recorded_layer_gives_have_no_answer(tmp_path):
    class Softmax(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x).softmax(1)

    torch.manual_seed(0)
    model, x = Softmax(), torch.randn(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with dualform.Recorder(model, optimizer, tmp_path / "run", quiet=True) as recorder:
        for _ in range(4):
            with recorder.step(label=range(6), sample=range(6)):
                learn(optimizer, model(x)[:, 0].sum())
        recorder.query_set("test", x)
    with served({"run": lambda: dualform.open(tmp_path / "run")}) as pages:
        text = pages.get("/explore?item=test/0").text
    assert re.search(r'<section id="panel-answer"[^>]* hidden>', text)


def test_a_bar_spans_what_it_adds():
    assert 'x="50.00" y="2" width="100.00"' in span(0.0, 2.0, (-1.0, 3.0), "part")
    assert 'x="0.00" y="2" width="150.00"' in span(2.0, -1.0, (-1.0, 3.0), "part")
    assert 'x1="50.00"' in span(2.0, -1.0, (-1.0, 3.0), "part")


def test_a_margin_that_is_the_target_is_the_question_of_the_answer(memory, info):
    state = replace(PLAIN, score="contribution", target="2-1")
    panel = answer_panel(View(memory, info, state))
    output = memory.output("4", state.item)[0]
    assert (panel.predicted[0], panel.other[0], panel.asked) == (2, 1, True)
    assert panel.margin == pytest.approx(output[2] - output[1])
    assert re.match(r"2 less 1 is ", panel.words.replace(" three", "").replace(" two", ""))
    for other in (replace(state, score="dot"), replace(state, layer="2"), replace(state, target="2")):
        assert not answer_panel(View(memory, info, other)).asked


def test_before_the_end_nothing_is_called_a_prediction(memory, info, pages):
    words = [answer_panel(View(memory, info, replace(own, at=20))).words for own in (PLAIN, WITHOUT)]
    assert re.match("As of step 20, .* is the largest output", words[0])
    assert words[1].startswith("As of step 20, under this filter the largest output ")
    text = pages.get("/explore?item=shapes/3&at=20&without=label:1&open=training").text
    answers = re.sub("<[^>]*>", "", text[text.index('id="answers"') :])
    assert "of layer 4 as of step 20" in answers
    assert "As of step 20, only this layer goes back: its inputs are the ones stored with the query set." in answers
    assert not re.findall(r"[^.]*(?<!not )\bpredict\w*[^.]*", answers.replace("at the end the prediction", ""))


FILTERED = State("", "shapes", 3, "4", ("dataset", "label"), chips=(Chip.of(False, ("label",), (1,)),))


@pytest.mark.parametrize(("row", "at"), [(3, None), (4, 40), (7, None)])
def test_a_verdict_is_the_memorys(memory, info, row, at):
    panel = placebo_panel(View(memory, info, replace(FILTERED, row=row, at=at)))
    found = memory.placebo("4", f"shapes/{row}", "label <> 1", SETS, at)
    own = panel.answer
    assert own is not None
    np.testing.assert_array_equal(own.changes, found.changes)
    np.testing.assert_array_equal(own.outcomes, found.outcomes)
    random, siblings = panel.nulls
    low, high = np.quantile(found.random_changes[0], CENTRAL)
    assert (random.name, random.judges) == (
        f"50 removals of about {found.removed} of {found.total} samples at random",
        True,
    )
    assert random.range == f"{rounded(float(low))} to {rounded(float(high))}"
    assert not siblings.judges, "three siblings decide nothing"
    assert panel.verdict == ("unusual" if found.unusual[0] else "within the random range")
    assert ("The prediction changes" in panel.prediction) == found.flips[0]


def test_it_is_asked_of_the_output_layer_whatever_layer_the_page_shows(memory, info):
    assert (
        placebo_panel(View(memory, info, replace(FILTERED, layer="0"))).words
        == placebo_panel(View(memory, info, FILTERED)).words
    )


def rated(
    change: float, siblings: tuple[float, ...] = (), flips: float = 0.0, becomes: int = 0, of_tokens: bool = False
) -> PlaceboPanel:
    """Of a filter under which the margin changes so; random sets change it by -1 to 1, and a share of them `flips`."""
    random = np.linspace(-1.0, 1.0, 50)
    outcomes = [becomes, *(np.arange(50) < 50 * flips).astype(int).tolist(), *(0 for _ in siblings)]
    one = np.array([0])
    answer = Placebos(
        one, one, one + 1, np.array([2.0]), np.array([[change, *random, *siblings]]), np.array([outcomes]), 50,
        tuple(f"label = {number}" for number in range(len(siblings))), "", 6, 60, "samples",
    )  # fmt: skip
    return PlaceboPanel(answer, None, "0", str(becomes), of_tokens=of_tokens)


MINUS = "\N{MINUS SIGN}"


NINE = tuple(np.linspace(-4.0, 2.0, 9).tolist())


@pytest.mark.parametrize(
    ("own", "verdict", "words"),
    [
        (
            rated(0.5),
            "within the random range",
            f"changes by 0.500; by {MINUS}0.950 to 0.950 in 50 removals of about 6 of 60 samples at random. ",
        ),
        (
            rated(-3.0, becomes=1, flips=0.92),
            "unusual",
            "0 led by 2.00, and is 1.00 behind 1. Of the random removals, 92\u202f% change it, too, so the flip alone "
            "says little, but the size of the change is unusual.",
        ),
        (
            rated(-3.0, NINE),
            "more than random, usual among its siblings",
            "in 9 other removals of its kind (label = 0, label = 1, …). ",
        ),
        (rated(-3.0, NINE, of_tokens=True), "usual among its siblings", "in 9 other removals of its kind"),
        (rated(-3.0, NINE[:1], of_tokens=True), "", f"The margin changes by {MINUS}3.00. The prediction stays"),
        (rated(-3.0, NINE[:3]), "unusual", "at random. The prediction stays 0; none of the random removals change it."),
    ],
)
def test_a_verdict_in_words(own, verdict, words):
    assert own.verdict == verdict
    assert words in own.words


@pytest.mark.parametrize(
    ("changes", "output_layer", "note"),
    [
        ({"chips": ()}, "4", None),
        ({"chips": (), "initial": False}, "4", None),
        ({"initial": False}, "4", "Random sets are drawn only with the initial weights and the bias."),
        ({}, "", "Random sets are drawn only for the output layer."),
    ],
)
def test_nothing_is_asked_that_says_nothing(memory, info, changes, output_layer, note):
    asked = []
    counted = Troubled(memory, asked.append)
    panel = placebo_panel(View(counted, replace(info, output_layer=output_layer), replace(FILTERED, **changes)))
    assert (panel and (panel.answer, panel.verdict, panel.note)) == (note and (None, "", note))
    assert not any(isinstance(question, Placebo) for question in asked)


@pytest.mark.parametrize("kind", [BadInput, ServiceError])
def test_a_refusal_is_a_short_note(memory, info, kind):
    def refuse(question):
        if isinstance(question, Placebo):
            raise kind("this server draws none.")

    panel = placebo_panel(View(Troubled(memory, refuse), info, FILTERED))
    assert (panel.answer, panel.words) == (None, "No random sets: this server draws none.")


def test_the_page_shows_it_only_under_a_filter(pages):
    plain = pages.get("/explore?item=shapes/3").text
    filtered = pages.get("/explore?item=shapes/3&without=label:1").text
    wrong = pages.get("/explore?item=shapes/3&where=label%20=").text
    part = re.compile(r'<section id="panel-placebo".*?</section>', re.DOTALL)
    assert part.search(plain)[0].endswith("hidden></section>")
    own = part.search(filtered)[0]
    assert re.search(r'id="verdict">(unusual|within the random range)<', own)
    assert re.search(r"50 removals of about [\d,]+ of [\d,]+ samples at random", re.sub("<[^>]*>", "", own))
    assert part.search(wrong)[0].endswith("hidden></section>")


def test_a_change_stands_next_to_base_rates_over_its_query_set(pages, memory):
    """And on the start page, next to what a random set does."""
    labels = memory.query_set("shapes").labels
    before, after = (
        np.asarray(memory.output("4", "shapes", own)).argmax(1) for own in (None, "dataset <> 'noise <b>'")
    )
    wrong, right = before != labels, before == labels
    tested = memory.placebo("4", "shapes", "dataset <> 'noise <b>'", 50)
    random = [np.median(own[1:51]) for own in (tested.corrected, tested.broken)]
    as_many = [(own[1:51] >= own[0]).sum() for own in (tested.corrected, tested.broken)]
    counts = [((after == labels) & wrong).sum(), wrong.sum(), ((after != labels) & right).sum(), right.sum()]
    said = (
        f"In all of shapes, corrected: {counts[0]} of {counts[1]} misclassified (random removals: "
        f"{rounded(random[0])} in the median, at least as many in {as_many[0]} of 50); broken: {counts[2]} of "
        f"{counts[3]} correct (random removals: {rounded(random[1])} in the median, at least as many in {as_many[1]} "
        "of 50)."
    )
    assert counts[0] > 0
    start = pages.get("/").text
    page = pages.get("/explore?item=shapes/3&layer=4&by=dataset,label&without=dataset:noise%20%3Cb%3E").text
    for text in (start, page):
        words = re.sub(r"\s+", " ", re.sub("<[^>]+>", "", text))
        assert said in words
    assert "for the recorded weights" in page
    assert "no forecast of a retraining" in page


ONE = State("", "shapes", 22, "4", ("dataset", "label"))


OTHERS = {
    "an earlier step": replace(ONE, at=20),
    "another example": replace(ONE, row=3),
    "a filter": replace(ONE, chips=(Chip.of(False, ("dataset",), ("noise <b>",)),)),
    "another query set": replace(ONE, query_set="noise"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_parts_are_contributions_along_the_margin_of_the_first(memory, info, other):
    panel = compare_panel(View(memory, info, ONE, "run"), View(memory, info, other, "run"))
    first, second = (side.answer for side in panel.sides)
    top, rival = first.predicted[0], first.other[0]
    swapped = compare_panel(View(memory, info, replace(ONE, at=0), "run"), View(memory, info, other, "run"))
    assert (swapped.sides[0].answer.predicted, swapped.sides[0].answer.other) == (first.predicted, first.other)
    assert not panel.why
    where = "dataset <> 'noise <b>'" if other.chips else None
    for state, shown, mask, side in ((ONE, first, None, "one"), (other, second, where, "other")):
        told = memory.contributions("4", state.item, ("dataset",), mask, state.at)
        assert shown.margin == pytest.approx(told.output[0][top] - told.output[0][rival])
        groups = {group: own[top] - own[rival] for group, own in zip(told.groups, told.sums[0], strict=True)}
        found = {own.part.said: getattr(own, side) for own in panel.parts if own.part.kind == "group"}
        assert {group: value for group, value in found.items() if value is not None} == groups
    differences = sum(own.difference for own in panel.parts)
    assert differences == pytest.approx(second.margin - first.margin, abs=1e-5)


def test_an_address_holds_both_sides_and_leads_back(folder, info):
    address = compare_link(ONE, OTHERS["an earlier step"])
    params = [tuple(own.split("=", 1)) for own in address.removeprefix("compare?").split("&")]
    assert params_of(params, "a") == ONE.params()
    assert default_sides(info, ONE) == (replace(ONE, at=info.steps // 2), ONE), "the earlier step is at the left"
    assert default_sides(info, OTHERS["an earlier step"]) == (OTHERS["an earlier step"], ONE)
    assert default_sides(info, OTHERS["a filter"]) == (OTHERS["a filter"], ONE)
    with served({"run": lambda: dualform.open(folder), "again": lambda: dualform.open(folder)}) as pages:
        page = pages.get("/explore?memory=run&item=shapes/22").text
        link = unescape(re.search(r'href="(compare\?[^"]+)"', page)[1])
        assert link == compare_link(*(replace(own, memory="run") for own in default_sides(info, ONE)))
        both = pages.get("/" + link.replace("b.memory=run", "b.memory=again"))
        assert both.status == 200
        assert "data-failure" not in both.text
        assert both.text.count('data-part="margin"') == 1
        assert "<option selected>again</option>" in both.text
        words = re.sub(r"\s+", " ", unescape(re.sub("<[^>]*>", "", both.text)))
        assert re.search(r"as of step 30 of only layer 4 label \d( \w+)?, largest output \d", words)
        assert re.search(r"at the end label \d( \w+)?, predicted \d", words)
        assert both.text.count('action="compare"') == 1, "one form holds the edits of both sides"
        assert pages.get("/compare?a.memory=run&a.item=shapes/3&b.memory=run&b.item=none/3").status == 400
        assert pages.get("/compare?a.memory=none").status == 404


@pytest.mark.parametrize("column", ["sample", "step"])
def test_a_group_with_a_part_on_one_side_has_its_own_value_on_the_other(memory, info, column):
    """Each side names its largest groups, which differ: the rest of one side may hold those of the other."""
    one, other = (replace(ONE, by=(column,), at=at) for at in (None, 40))
    panel = compare_panel(View(memory, info, one, "run"), View(memory, info, other, "run"))
    first = panel.sides[0].answer
    top, rival = first.predicted[0], first.other[0]
    for state, name in ((one, "one"), (other, "other")):
        told = memory.contributions("4", state.item, (column,), None, state.at)
        groups = {group: own[top] - own[rival] for group, own in zip(told.groups, told.sums[0], strict=True)}
        parts = [own for own in panel.parts if own.part.kind == "group"]
        assert len(parts) > 8
        for own in parts:
            assert getattr(own, name) == pytest.approx(groups[own.part.said], abs=1e-6)
    assert sum(own.difference for own in panel.parts) == pytest.approx(
        panel.sides[1].answer.margin - first.margin, abs=1e-5
    )


def test_a_group_that_was_not_computed_is_in_what_remains(memory, info, monkeypatch):
    monkeypatch.setattr("dualform_explorer.groups._MOST_SUMMED", 4)
    monkeypatch.setattr("dualform_explorer.groups._LARGEST", 5)
    one, other = (replace(ONE, by=("step",), at=at) for at in (None, 20))
    panel = compare_panel(View(memory, info, one, "run"), View(memory, info, other, "run"))
    assert [own.part.said for own in panel.parts if own.part.kind == "rest"] == [("all others",)]
    for own in panel.parts:
        assert None not in (own.one, own.other), own.part.said


def test_groups_of_other_columns_and_other_numbers_of_outputs_are_not_subtracted(memory, info, texts):
    """Label 3 is not step 3."""
    text = View(texts, texts.info(), State("", "held", 3, "3", ("label",)), "text")
    panel = compare_panel(View(memory, info, ONE, "run"), text)
    assert panel.parts == ()
    assert "different numbers of outputs" in panel.why
    one, other = (replace(ONE, by=(column,)) for column in ("label", "step"))
    panel = compare_panel(View(memory, info, one, "run"), View(memory, info, other, "run"))
    assert panel.parts == ()
    assert panel.why == "The left side is grouped by label, the right side by step."

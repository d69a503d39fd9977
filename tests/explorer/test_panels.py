"""Every number that a panel holds is the API's, asked for by itself, to the bit."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

import dualform
from dualform.deletion.delete import delete
from dualform.errors import BadMask, EmptyMask, NotFound, Unavailable
from dualform.questions import GroupSum
from dualform_explorer.drawing import ribbon
from dualform_explorer.filter import Chip, Range
from dualform_explorer.groups import Group, rows_of
from dualform_explorer.memories import RememberedAnswers
from dualform_explorer.panels import layers, training
from dualform_explorer.panels.answer import output_panel, terms_panel
from dualform_explorer.panels.data import slots_panel, sums_panel
from dualform_explorer.panels.example import filter_panel, query_panel
from dualform_explorer.panels.layers import layers_panel, paper_panel, ranks_panel
from dualform_explorer.panels.training import record_panel, removal_panel, steps_panel, timeline_panel
from dualform_explorer.rendering import percent
from dualform_explorer.start import corrections_panel, query_set_panel
from dualform_explorer.state import State
from dualform_explorer.view import Snapshot, View
from tests.explorer.served import Troubled
from tests.trainings import learn

PLAIN = State("", "shapes", 3, "4", ("dataset", "label"))


WITHOUT = replace(PLAIN, chips=(Chip.of(False, ("dataset",), ("noise <b>",)),))


WHERE = "dataset <> 'noise <b>'"


STATES = {
    "plain": (PLAIN, {}),
    "absolute, in the first layer": (replace(PLAIN, layer="0", score="abs"), {"score": "abs"}),
    "masked": (WITHOUT, {"where": WHERE}),
    "as of a step": (replace(PLAIN, at=40), {"where": "step < 40"}),
    "a margin": (
        replace(WITHOUT, score="contribution", target="3-0", at=50),
        {"score": "contribution", "target": "3-0", "at_step": 50, "where": f"{WHERE} AND step < 50"},
    ),
}


EACH = pytest.mark.parametrize(("state", "asked"), STATES.values(), ids=STATES)


@EACH
def test_sums_are_those_of_group_sum(memory, info, state, asked):
    panel = sums_panel(View(memory, info, state))
    answer = memory.group_sum(state.layer, state.item, by=("dataset", "label"), **asked)
    shown = {row.group.values: (row.group.sum, row.group.count) for row in panel.rows if not row.gone}
    assert shown == {
        group: (own, count)
        for group, own, count in zip(answer.groups, answer.sums[0].tolist(), answer.counts.tolist(), strict=True)
    }
    assert (panel.matching, panel.scanned) == (answer.scan.slots_matching, answer.scan.slots_scanned)


def test_beside_a_mask_stand_the_sums_without_it(memory, info):
    panel = sums_panel(View(memory, info, WITHOUT))
    whole = memory.group_sum("4", "shapes/3", by=("dataset", "label"))
    assert [row.group.values for row in panel.rows] == list(whole.groups)
    assert [row.unmasked for row in panel.rows] == whole.sums[0].tolist()
    assert {row.group.values[0] for row in panel.rows if row.gone} == {"noise <b>"}


def test_a_label_has_a_name_where_all_datasets_that_it_may_be_of_give_it_that_name(tmp_path):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    named = {"pets": ["cat", "dog"], "more pets": ["cat", "fox"]}
    with dualform.Recorder(model, optimizer, tmp_path / "run", label_names=named, quiet=True) as recorder:
        for dataset in (*named, "tools", None):
            with recorder.step(dataset=dataset, label=[0, 1]):
                learn(optimizer, torch.nn.functional.cross_entropy(model(torch.eye(2)), torch.tensor([0, 1])))
        recorder.query_set("test", torch.eye(2), label=[0, 1])
    with dualform.open(tmp_path / "run") as memory:
        info, state = memory.info(), State("", "test", 0, "", ("dataset", "label"))
        shown = {row.group.values: row.group.name for row in sums_panel(View(memory, info, state)).rows}
        lists = {**named, "tools": ["", ""], None: ["", ""]}
        assert shown == {(dataset, label): names[label] for dataset, names in lists.items() for label in (0, 1)}
        assert {
            (own.dataset, own.label): own.label_name for own in slots_panel(View(memory, info, state)).slots
        } == shown
        by_label = sums_panel(View(memory, info, replace(state, by=("label",))))
        assert [row.group.name for row in by_label.rows] == ["", ""]
        assert query_panel(View(memory, info, state)).label_name == ""
        pets = replace(info, datasets=dict.fromkeys(named, 2), slots={"sample": 4})
        by_label = sums_panel(View(memory, pets, replace(state, by=("label",))))
        assert [row.group.name for row in by_label.rows] == ["cat", ""]
        some = replace(pets, slots={"sample": 5})
        by_label = sums_panel(View(memory, some, replace(state, by=("label",))))
        assert [row.group.name for row in by_label.rows] == ["", ""], "slots without a dataset have labels of their own"


def test_of_many_groups_the_largest_sums_are_shown(memory, info):
    panel = sums_panel(View(memory, info, replace(PLAIN, by=("dataset", "sample"))))
    answer = memory.group_sum("4", "shapes/3", by=("dataset", "sample"), k=24)
    assert [row.group.sum for row in panel.rows] == answer.sums[0].tolist()
    assert panel.total == answer.total > 24


@EACH
def test_slots_are_those_of_topk_with_their_columns(memory, info, state, asked):
    panel = slots_panel(View(memory, info, state))
    hits = memory.topk(state.layer, state.item, k=25, **asked)
    assert [own.slot for own in panel.slots] == hits.slots[0][:24].tolist()
    assert [own.score for own in panel.slots] == hits.scores[0][:24].tolist()
    rows = memory.slots(hits.slots[0][:24], "sample").records()
    assert [(own.step, own.dataset, own.label, own.sample) for own in panel.slots] == [
        (row["step"], row["dataset"], row["label"], row["sample"]) for row in rows
    ]
    assert [own.others for own in panel.slots] == [{"bright": row["bright"]} for row in rows]
    assert panel.gap == hits.scores[0].tolist()[23] - hits.scores[0].tolist()[24]
    times = Counter((row["dataset"], row["sample"]) for row in rows)
    assert [own.times for own in panel.slots] == [times[row["dataset"], row["sample"]] for row in rows]
    assert panel.samples == len(times) < 24


def test_a_slot_without_a_sample_is_no_slot_of_the_sample_that_has_its_number(tmp_path):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, tmp_path / "run", quiet=True) as recorder:
        for sample in (None, [1, 0]):
            with recorder.step(label=[0, 1], sample=sample):
                learn(optimizer, torch.nn.functional.cross_entropy(model(torch.eye(2) + 1), torch.tensor([0, 1])))
        recorder.query_set("test", torch.eye(2), label=[0, 1])
    with dualform.open(tmp_path / "run") as memory:
        for by_sample in (True, False):
            state = State("", "test", 0, "", ("label",), by_sample=by_sample)
            panel = slots_panel(View(memory, memory.info(), state))
            assert {(own.slot, own.sample, own.times) for own in panel.slots} == {
                (0, None, 1),
                (1, None, 1),
                (2, 1, 1),
                (3, 0, 1),
            }


def test_groups_keep_their_places_where_all_that_is_left_is_among_those_without_the_mask():
    whole = [Group(("label",), (label,), "", 0, float(label), 1) for label in range(24)]
    rows = rows_of(whole[:5], whole)
    assert [(row.group.values[0], row.gone) for row in rows] == [(label, label >= 5) for label in range(24)]
    assert [row.unmasked for row in rows_of(whole[:5], ())] == [None] * 5


def test_by_sample_each_sample_stands_once_at_its_best_slot(memory, info):
    slots, samples = (
        slots_panel(View(memory, info, PLAIN)),
        slots_panel(View(memory, info, replace(PLAIN, by_sample=True))),
    )
    best = {}
    for own in slots.slots:
        best.setdefault((own.dataset, own.sample), own)
    assert [own.slot for own in samples.slots] == [own.slot for own in best.values()]
    for own in samples.slots:
        alike = [slot for slot in slots.slots if (slot.dataset, slot.sample) == (own.dataset, own.sample)]
        assert own.times == len(alike)
        assert own.total == sum(slot.score for slot in alike)
        assert own.steps == (min(slot.step for slot in alike), max(slot.step for slot in alike))


def test_a_mask_that_leaves_fewer_slots_shows_those_and_no_gap(memory, info):
    panel = slots_panel(View(memory, info, replace(PLAIN, where="slot < 5")))
    assert sorted(own.slot for own in panel.slots) == [0, 1, 2, 3, 4]
    assert panel.gap is None


@EACH
def test_the_histogram_is_the_group_sum_by_step(memory, info, state, asked):
    panel = steps_panel(View(memory, info, state))
    answer = memory.group_sum(state.layer, state.item, by="step", **asked)
    sums = {step: own for (step,), own in zip(answer.groups, answer.sums[0].tolist(), strict=True)}
    for bar in panel.bars:
        assert bar.first == bar.last  # so few steps that each has its bar
        assert bar.sum == pytest.approx(sums.get(bar.first, 0.0), rel=1e-12, abs=1e-12)
        assert sum(size for _, _, size in bar.parts) == pytest.approx(bar.sum, rel=1e-12, abs=1e-12)
    assert sum(bar.count for bar in panel.bars) == answer.counts.sum()


def test_of_many_steps_a_bar_has_several(memory, info, monkeypatch):
    monkeypatch.setattr("dualform_explorer.panels.training.MOST_BARS", 7)
    panel = steps_panel(View(memory, info, PLAIN))
    answer = memory.group_sum("4", "shapes/3", by="step")
    sums = dict(zip((step for (step,) in answer.groups), answer.sums[0].tolist(), strict=True))
    assert [(bar.first, bar.last) for bar in panel.bars] == [(9 * n, min(9 * n + 8, 59)) for n in range(7)]
    for bar in panel.bars:
        own = sum(sums[step] for step in range(bar.first, bar.last + 1))
        assert bar.sum == pytest.approx(own, rel=1e-12)


def test_the_papers_view_has_each_groups_best_scores_and_each_layers_sums(memory, info):
    for layer in ("0", "4"):
        panel = paper_panel(View(memory, info, WITHOUT), layer)
        hits = memory.topk(layer, "shapes/3", k=500, by=("dataset", "label"), where=WHERE)
        assert [row for row, _ in panel.curves] == list(panel.sums.rows)
        assert {row.group.values: own for row, own in panel.curves if own} == {
            group: tuple(scores.tolist()) for group, scores in zip(hits.groups, hits.scores[0], strict=True)
        }
        sums = memory.group_sum(layer, "shapes/3", by=("dataset", "label"), where=WHERE).sums[0].tolist()
        assert [row.group.sum for row in panel.sums.rows if not row.gone] == sums
        assert panel.largest is not None
        assert abs(panel.largest.group.sum) == max(map(abs, sums))
        best = memory.topk(layer, "shapes/3", k=25, where=WHERE).slots[0]
        assert panel.best[0].slot == best[0]
        assert len({(own.dataset, own.sample) for own in panel.best}) == len(panel.best) == 5


def test_contributions_are_those_of_the_pages_layer_alone(memory, info):
    state = replace(PLAIN, score="contribution", target="3-0")
    (own, other) = (paper_panel(View(memory, info, state), layer).sums.rows for layer in ("4", "0"))
    asked = {"score": "contribution", "target": "3-0"}
    assert [row.group.sum for row in own] == memory.group_sum("4", "shapes/3", state.by, **asked).sums[0].tolist()
    assert [row.group.sum for row in other] == memory.group_sum("0", "shapes/3", state.by).sums[0].tolist()


@EACH
def test_ranks_are_those_of_distribution(memory, info, state, asked):
    panel = ranks_panel(View(memory, info, state))
    answer = memory.distribution(state.layer, state.item, **asked)
    assert [own.rank for own in panel.points] == answer.ranks.tolist()
    assert [own.score for own in panel.points] == answer.scores[0].tolist()
    assert [own.share for own in panel.points] == answer.shares[0].tolist()
    assert (panel.count, panel.effective) == (answer.count, answer.effective_slots[0])
    assert [own.rank for own in panel.named][:1] == [10]


def test_the_output_is_the_networks_and_is_found_by_asking(memory, info):
    panel = output_panel(View(memory, info, replace(PLAIN, layer="0")))
    assert panel.network
    assert panel.layer == "4"
    assert [own.full for own in panel.outputs] == np.asarray(memory.output("4", "shapes/3"))[0].tolist()
    stored = memory.query_set("shapes").outputs
    assert [own.full for own in panel.outputs] == pytest.approx(stored[3].tolist(), abs=1e-4)
    assert panel.full == panel.stored == stored[3].argmax()
    assert [own.number for own in panel.outputs if own.label] == [3]
    assert panel.masked is None


def test_terms_are_those_of_contributions_and_add_up(memory, info):
    panel = terms_panel(View(memory, info, replace(WITHOUT, layer="0")))
    answer = memory.contributions("4", "shapes/3", ("dataset", "label"), WHERE)
    groups = [term for term in panel.terms if term.kind == "group"]
    assert {term.said: term.values.tolist() for term in groups} == {
        group: values.tolist() for group, values in zip(answer.groups, answer.sums[0], strict=True)
    }
    by_kind = {term.kind: term.values for term in panel.terms}
    assert by_kind["initial"].tolist() == answer.initial[0].tolist()
    assert by_kind["bias"].tolist() == answer.bias.tolist()
    total = sum(term.values for term in panel.terms)
    assert np.abs(total - panel.output).max() <= np.abs(panel.residual).max() + 1e-12
    assert panel.output == pytest.approx(np.asarray(memory.output("4", "shapes/3", WHERE))[0], abs=1e-5)
    assert panel.unexplained == np.abs(answer.unexplained[0]).max()


@pytest.mark.parametrize("state", [PLAIN, WITHOUT, replace(WITHOUT, at=40)])
def test_without_the_initial_weights_the_terms_add_up_to_the_output_without_them(memory, info, state):
    panel = terms_panel(View(memory, info, replace(state, initial=False)))
    shown = output_panel(View(memory, info, replace(state, initial=False)))
    assert panel.output == pytest.approx([own.masked for own in shown.outputs], abs=1e-5)
    total = sum(term.values for term in panel.terms if term.kind in ("group", "rest"))
    assert np.abs(total - panel.output).max() <= np.abs(panel.residual).max() + 1e-12


def test_what_deleted_samples_brought_goes_with_the_initial_weights(folder, tmp_path):
    delete(shutil.copytree(folder, tmp_path / "run"), "dataset = 'shapes' AND sample < 9")
    with dualform.open(tmp_path / "run") as memory:
        info, state = memory.info(), replace(PLAIN, initial=False)
        panel = terms_panel(View(memory, info, state))
        (unrecorded,) = (term.values for term in panel.terms if term.kind == "unrecorded")
        assert np.abs(unrecorded).max() > 1e-3
        shown = output_panel(View(memory, info, state))
        assert panel.output == pytest.approx([own.masked for own in shown.outputs], abs=1e-5)


@pytest.mark.parametrize("score", ["dot", "abs", "contribution"])
def test_every_layer_has_the_shares_of_its_groups(memory, info, score):
    panel = layers_panel(View(memory, info, replace(WITHOUT, score=score)))
    assert [(one.own.name, one.chosen) for one in panel.layers] == [("0", False), ("2", False), ("4", True)]
    assert panel.score == ("abs" if score == "abs" else "dot")  # contributions are toward outputs of one layer
    for layer in panel.layers:
        sums = memory.group_sum(layer.own.name, "shapes/3", by=("dataset", "label"), where=WHERE, score=panel.score)
        own = sums.sums[0]
        shares = (own / np.abs(own).sum()).tolist()
        expected = [
            (group, pytest.approx(pair)) for group, pair in zip(sums.groups, zip(own, shares, strict=True), strict=True)
        ]
        assert [*layer.shares.items()] == expected
    assert [group.values for group in panel.groups] == [*panel.layers[0].shares]
    assert panel.signed == any(share < 0 for layer in panel.layers for _, share in layer.shares.values())


def test_of_many_groups_each_layer_has_its_largest(memory, info):
    panel = layers_panel(View(memory, info, replace(PLAIN, by=("dataset", "sample"))))
    assert panel.total == len(memory.group_sum("4", "shapes/3", by=("dataset", "sample")).groups) > 24
    for layer in panel.layers:
        own = memory.group_sum(layer.own.name, "shapes/3", by=("dataset", "sample"))
        assert {*layer.shares} == {group for group, _, _ in own.ranked()[:24]}
        assert sum(abs(share) for _, share in layer.shares.values()) == pytest.approx(1)


def places(svg: str, tag: str) -> list[list[float]]:
    """Of each rectangle where it begins and how wide it is, in per cent; of each band its numbers."""
    if tag == "path":
        return [[float(own) for own in re.findall(r"[\d.]+", path)] for path in re.findall(r' d="([^"]+)"', svg)]
    return [[*map(float, own)] for own in re.findall(r'<rect x="([\d.]+)%" width="([\d.]+)%"', svg)]


def test_a_ribbon_has_negative_shares_left_of_zero_and_joins_what_a_group_has_in_neighbours():
    first = ("a<", "layer a<", "?a&b", False, [(0, 0.5, "0", "x<"), None, (2, -0.5, "2", "z")])
    second = ("b", "layer b", "?b", True, [(0, 0.25, "0", "x"), (1, 0.75, "1", "y"), None])
    svg = str(ribbon([first, second]))  # from -0.5 to 1: a third is left of zero
    assert places(svg, "rect") == [[33.33, 33.33], [0, 33.33], [33.33, 16.67], [50, 50]]
    (band,) = places(svg, "path")  # of the first group alone
    assert (band[0], band[6], band[8], band[-2]) == (333.3, 333.3, 500.0, 666.7)
    assert 'href="?a&amp;b" class="card" data-layer="a&lt;"><text' in svg
    assert svg.count('aria-current="true"') == svg.count('class="frame"') == 1
    assert "<title>x&lt;</title>" in svg
    assert ribbon([]) is not None


def test_the_mask_is_shown_as_it_is_asked(memory, info):
    panel = filter_panel(View(memory, info, replace(WITHOUT, at=40)))
    assert panel.sql == f"{WHERE} AND step < 40"
    scan = memory.group_sum("4", "shapes/3", by="label", where=panel.sql).scan
    assert (panel.matching, panel.slots) == (scan.slots_matching, scan.slots_scanned)
    assert [[group.values for group in row] for row in panel.groups] == [
        [("noise <b>",), ("shapes",)],
        [(0,), (1,), (2,), (3,)],
    ]


def test_beside_a_mask_stands_its_cancellation(memory, info):
    assert removal_panel(View(memory, info, PLAIN)).cancellation is None
    assert removal_panel(View(memory, info, WITHOUT)).cancellation == memory.cancellation(WHERE)["4"]
    assert (
        removal_panel(View(memory, info, replace(WITHOUT, at=45, layer="0"))).cancellation
        == (memory.cancellation(WHERE, 45)["0"])
    )


def test_the_record_says_its_status_and_when_asked_its_reconstruction(memory, info):
    panel = record_panel(View(memory, info, PLAIN))
    assert panel.layer == info.layers[2]
    assert panel.reconstruction is None
    assert (
        record_panel(View(memory, info, replace(PLAIN, verify=True))).reconstruction
        == memory.verify()["4"].reconstruction_error
    )
    assert panel.scan.slots_scanned == 720


def test_the_query_says_what_it_is_and_what_it_was_read_as(memory, info):
    query_set = memory.query_set("shapes")
    read = query_set.outputs.argmax(axis=1)
    misclassified = np.flatnonzero(read != query_set.labels)
    assert len(misclassified) > 2
    row = int(misclassified[1])
    panel = query_panel(View(memory, info, replace(PLAIN, row=row, among="misclassified")))
    assert (panel.label, panel.read, panel.wrong) == (query_set.labels[row], read[row], True)
    assert (panel.before, panel.after) == (misclassified[0], misclassified[2])
    assert (panel.place, panel.among, panel.misclassified) == (2, len(misclassified), len(misclassified))
    right = query_panel(View(memory, info, replace(PLAIN, row=int(np.flatnonzero(read == query_set.labels)[0]))))
    assert not right.wrong
    first = query_panel(View(memory, info, replace(PLAIN, row=0)))
    assert (first.before, first.after, first.place) == (None, 1, 1)
    last = query_panel(View(memory, info, replace(PLAIN, row=59)))
    assert (last.before, last.after) == (58, None)


def test_the_start_page_has_examples_that_a_mask_corrects(memory, info):
    panel = query_set_panel(Snapshot(memory, info), "shapes")
    query_set = memory.query_set("shapes")
    misclassified = np.flatnonzero(query_set.outputs.argmax(axis=1) != query_set.labels)
    query = f"shapes/{','.join(map(str, misclassified))}"
    masked = np.asarray(memory.output("4", query, WHERE)).argmax(axis=1)
    corrected = misclassified[masked == query_set.labels[misclassified]]
    corrections = corrections_panel(Snapshot(memory, info), "shapes").corrections
    (own,) = [own for own in corrections if own.dataset == "noise <b>"]
    assert own.rates.corrected == len(corrected) > 0
    assert [card.row for card in own.cards] == corrected[:12].tolist()
    assert [card.row for card in panel.cards] == misclassified[:12].tolist()
    assert panel.layer == "4"


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (replace(PLAIN, where="label ="), BadMask),
        (replace(PLAIN, where="label = 99"), EmptyMask),
        (replace(PLAIN, chips=(Chip.of(True, ("step",), (Range(100, 200),)),)), EmptyMask),
        (replace(PLAIN, where="colour = 1"), NotFound),
    ],
)
def test_what_a_mask_may_not_say_is_an_error(memory, info, state, error):
    for panel in (sums_panel, slots_panel, steps_panel, output_panel, terms_panel, record_panel):
        with pytest.raises(error) as raised:
            panel(View(memory, info, state))
    assert filter_panel(View(memory, info, state)).trouble == raised.value.message  # and it can be cleared there


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.0, "0.0"), (0.5, "50.0"), (0.001, "0.1"), (0.0009, "0.09"), (-4e-5, "\N{MINUS SIGN}0.004"), (1.0, "100.0")],
)
def test_a_small_share_is_not_shown_as_none(share, shown):
    assert f">{shown}\N{NARROW NO-BREAK SPACE}%<" in percent(share)


def test_the_masked_output_is_that_of_the_same_mask_and_flips_where_its_largest_is_another(memory, info):
    rows = np.asarray(memory.output("4", "shapes", None, 50)).argmax(axis=1)
    masked = np.asarray(memory.output("4", "shapes", WHERE, 50, initial=False)).argmax(axis=1)
    for row in (int((rows != masked).argmax()), int((rows == masked).argmax())):
        panel = output_panel(View(memory, info, replace(WITHOUT, row=row, at=50, initial=False)))
        left = np.asarray(memory.output("4", f"shapes/{row}", WHERE, 50, initial=False))[0].tolist()
        whole = np.asarray(memory.output("4", f"shapes/{row}", None, 50))[0].tolist()
        assert [own.masked for own in panel.outputs] == left
        assert [own.full for own in panel.outputs] == whole
        assert [own.difference for own in panel.outputs] == [
            one - other for one, other in zip(left, whole, strict=True)
        ]
        assert panel.flips == (rows[row] != masked[row])


def test_the_chosen_layer_is_asked_what_its_sums_ask(memory, info):
    for state in (PLAIN, replace(WITHOUT, score="abs", layer="2", at=50)):
        asked = []
        answers = RememberedAnswers(Troubled(memory, asked.append))
        sums_panel(View(answers, info, state))
        before = len(asked)
        layers_panel(View(answers, info, state))
        assert {getattr(own, "layer", None) for own in asked[before:]} == {"0", "2", "4"} - {state.layer}


def test_a_layer_that_cannot_answer_says_why_and_the_others_stand(memory, info):
    def refuse(question):
        if isinstance(question, GroupSum) and question.layer == "2":
            raise Unavailable("the keys of layer 2 are elsewhere.")

    without = Troubled(memory, refuse)
    found = layers_panel(View(without, info, PLAIN)).layers
    assert [one.why for one in found] == ["", "the keys of layer 2 are elsewhere.", ""]
    assert [len(one.shares) for one in found] == [8, 0, 8]
    panel = filter_panel(View(without, info, replace(WITHOUT, layer="2")))  # where the mask can be cleared
    assert (panel.trouble, panel.groups, panel.slots) == (found[1].why, (), info.layers[1].slots)
    assert panel.columns == dict(info.columns["sample"])


def test_of_many_layers_some_are_asked_and_the_one_whose_part_was_chosen(memory, info, monkeypatch):
    monkeypatch.setattr(layers, "_MOST_SUMMED", 1)
    parted = replace(info, layers=tuple(replace(own, views=(f"{own.name}.part",)) for own in info.layers))
    panel = layers_panel(View(memory, parted, replace(WITHOUT, layer="2.part")))
    assert [(one.own.name, one.chosen, len(one.shares)) for one in panel.layers] == [("0", False, 4), ("2", True, 4)]
    assert panel.count == 3


@pytest.mark.parametrize("row", [22])
def test_margins_are_those_of_the_memory_at_each_step(memory, info, row):
    panel = timeline_panel(View(memory, info, replace(PLAIN, row=row)))
    assert (panel.layer, panel.steps[0], panel.steps[-1], len(panel.steps)) == ("4", 0, info.steps, training.POINTS)
    names = [line.name for line in panel.margins]
    assert str(memory.query_set("shapes").labels[row]) in names
    leading = set()
    for place, step in enumerate(panel.steps):
        output = np.asarray(memory.output("4", f"shapes/{row}", at_step=step), dtype=np.float64)[0]
        leading.add(str(output.argmax()))
        for line in panel.margins:
            others = np.delete(output, int(line.name)).max()
            assert line.values[place] == pytest.approx(output[int(line.name)] - others)
    assert leading <= set(names)


def test_with_less_time_fewer_steps_are_shown_evenly(memory, info, monkeypatch):
    monkeypatch.setattr(training, "SECONDS", 0.0)
    panel = timeline_panel(View(memory, info, PLAIN))
    assert (panel.steps, panel.asked) == ((info.steps,), training.POINTS)
    assert all(len(line.values) == 1 for line in panel.margins)
    found = list(training._from_coarse_to_fine(list(range(9))))
    assert found[:3] == [8, 0, 4]
    assert sorted(found) == list(range(9))


def test_lines_of_one_chart_have_different_colours():
    assert training._apart([3, 259, 279, 289]) == [3, 9, 0, 1]
    assert training._apart([1, 4, 7]) == [1, 4, 7]

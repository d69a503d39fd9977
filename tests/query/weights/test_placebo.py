"""Placebos hold to outputs under the sets that they leave out, for rules that are linear and rules that scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.answers.outputs import FEWEST_RANDOM, Placebos, outside
from dualform.errors import BadInput
from dualform.query import needs
from dualform.query.placebo import _random_sets, _samples
from dualform.query.weights.group_weights import group_weights
from dualform.query.weights.reconstruction import recorded
from dualform.query.weights.trajectory import no_slot
from dualform.query.where.mask import Selection
from tests.trainings import learn, take_steps

RULES = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.02),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}


class Net(nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.hidden, self.head, self.tokens = nn.Linear(6, 8), nn.Linear(8, 4), tokens

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(x)))


def record(path, rule, tokens=False, samples=60, steps=24):
    torch.manual_seed(0)
    shape = (samples, 3, 6) if tokens else (samples, 6)
    inputs, labels = torch.randn(shape), torch.randint(0, 4, shape[:-1])
    net = Net(tokens)
    optimizer = RULES[rule](net.parameters())
    with dualform.Recorder(net, optimizer, path, quiet=True) as recorder:
        take_steps(
            recorder,
            optimizer,
            ((step, torch.randperm(samples)[:8]) for step in range(steps)),
            lambda step, index: nn.functional.cross_entropy(net(inputs[index]).flatten(0, -2), labels[index].flatten()),
            dataset=lambda step, index: f"part {step % 3}",
            label=lambda step, index: labels[index],
            sample=lambda step, index: index,
        )
        recorder.query_set("test", inputs[:9], label=labels[:9])
    return path


@pytest.fixture(scope="module", params=["SGD", "Rprop", "AdamW of tokens"])
def memory(request, tmp_path_factory):
    rule, _, tokens = request.param.partition(" of ")
    with dualform.open(record(tmp_path_factory.mktemp("placebo") / "run", rule, bool(tokens))) as memory:
        yield memory


def changes(memory, found, ids):
    """float64[n]: of the margin, where the slots of these ids are left out."""
    full = np.asarray(memory.output("head", "test"), np.float64)
    ablated = np.asarray(memory.output("head", "test", {"not slot": ids}), np.float64)
    return margins(ablated, found.predicted) - margins(full, found.predicted)


def margins(outputs, predicted):
    """float64[n]: the predicted output less the largest other one."""
    return np.array([own[p] - np.delete(own, p).max() for own, p in zip(outputs, predicted, strict=True)])


def test_changes_and_base_rates_are_those_of_the_outputs_without_each_set(memory):
    """Corrected and broken, of how many that could be; random sets are of whole samples."""
    found = memory.placebo("head", "test", "dataset <> 'part 1'", n=6)
    labels, outputs = found.labels, np.asarray(memory.output("head", "test"), np.float64)
    right = outputs.argmax(1) == labels
    assert (found.correct, found.misclassified) == (right.sum(), (~right).sum())
    view = memory._view
    layer = view.snapshot.layer("head")
    known = _samples(view, {"head": layer}, None, lambda: None)
    sets, numbers = _random_sets(known, found.removed, 6), known.numbers["head"]
    left_out = [members[sets.numbers["head"]] for members in sets.members]
    assert found.unit == "samples"
    for number, out in enumerate(left_out):
        gone = np.unique(numbers[out])
        assert abs(len(gone) - found.removed) <= max(2, 0.13 * known.count)
        assert not np.isin(numbers[~out], gone).any()
        apart = found.random_changes[:, number] - changes(memory, found, np.flatnonzero(out))
        assert np.abs(apart).max() < 1e-4 * np.abs(outputs).max()
    filters = ["dataset <> 'part 1'", *({"not slot": np.flatnonzero(out)} for out in left_out)]
    for number, where in enumerate(filters):
        after = np.asarray(memory.output("head", "test", where), np.float64).argmax(1) == labels
        assert found.corrected[number] == (after & ~right).sum()
        assert found.broken[number] == (~after & right).sum()
    summary = found.summary()
    assert (summary["corrected"]["of"], summary["broken"]["of"]) == (found.misclassified, found.correct)
    assert summary["broken"]["random"]["median"] == np.median(found.broken[1:7])


@pytest.mark.parametrize("room", [None, 1000])
def test_shares_of_groups_are_what_each_filter_alone_leaves(memory, monkeypatch, room):
    """group_weights runs the training once for all groups; recorded runs it for one. Entries may be in no group."""
    view = memory._view
    if room is not None:  # for factors of a few updates at a time
        monkeypatch.setattr(needs, "SHARES", room)
        view.cache.clear()
    layer = view.snapshot.layer("head")
    numbers = np.random.default_rng(0).integers(0, 6, view.snapshot.entries("head").count)
    without = recorded(view, layer, no_slot(view), None, lambda: None)
    found = group_weights(view, layer, {"head": numbers}, 5, None, lambda: None)
    assert len(found) == 5
    for group, own in enumerate(found):
        own_slots = Selection(f"group {group}", numbers == group, stored=False)
        alone = recorded(view, layer, {"head": own_slots}, None, lambda: None)
        scale = np.abs(alone.weight - without.weight).max()
        assert np.abs(own.weight - (alone.weight - without.weight)).max() <= 1e-9 * scale + 1e-12
        assert np.abs(own.bias - (alone.bias - without.bias)).max() <= 1e-9 * scale + 1e-12


def test_the_answer_is_the_same_again_and_in_another_engine(memory):
    with dualform.open(memory.path) as one, dualform.open(memory.path) as two:
        first, again = (own.placebo("head", "test", "label <> 1") for own in (one, two))
        alone = one.placebo("head", "test/3", "label <> 1")
    assert np.array_equal(first.changes, again.changes)
    each = len(alone.changes)  # a row for each position of an example
    assert np.allclose(alone.changes, first.changes[3 * each : 4 * each], rtol=0, atol=1e-9)


def test_an_unusual_change_lies_outside_both_nulls(memory):
    found = memory.placebo("head", "test", "label <> 2 AND dataset <> 'part 0'", n=40)
    assert len(found.siblings) >= 5
    expected = outside(found.change, found.random_changes) & outside(found.change, found.sibling_changes)
    assert found.unusual.tolist() == expected.tolist()
    few = memory.placebo("head", "test", "label <> 2", n=40)
    assert len(few.siblings) == 3
    assert few.unusual.tolist() == outside(few.change, few.random_changes).tolist()


def placebos(random, siblings, second=1, labels=(0, 1)):
    """Of two queries: the ablation makes both predictions another class, the sets do not; both are far outside."""
    sets = 1 + random + siblings
    changes, outcomes = np.zeros((2, sets)), np.zeros((2, sets), dtype=np.int64)
    changes[:, 0], outcomes[:, 0] = 100, 1
    names = tuple(f"label = {number}" for number in range(siblings))
    predicted, seconds = np.zeros(2, dtype=np.int64), np.full(2, second)
    margin = np.ones(2)
    return Placebos(np.array(labels), predicted, seconds, margin, changes, outcomes, random, names, "", 1, 9, "samples")


@pytest.mark.parametrize(
    ("random", "siblings", "decides"), [(1, 0, False), (19, 0, False), (19, 9, False), (20, 0, True)]
)
def test_few_random_sets_decide_nothing(random, siblings, decides):
    assert FEWEST_RANDOM == 20
    found = placebos(random, siblings)
    assert found.unusual.tolist() == [decides] * 2
    summary = found.summary()
    assert (summary["unusual"], summary["corrected"]["unusual"]) == (2 * decides, decides)
    assert (summary["corrected"]["ablation"], summary["broken"]["ablation"]) == (1, 1)


def test_outside_is_the_central_95_percent():
    null = np.arange(101.0)[None]
    values = np.array([-1.0, 2.4, 2.6, 50.0, 97.4, 97.6, 200.0])
    assert outside(values, np.repeat(null, 7, axis=0)).tolist() == [True, True, False, False, False, True, True]
    assert not outside(np.ones(3), np.empty((3, 0))).any()


def test_a_layer_of_one_output_has_itself_as_margin(tmp_path):
    torch.manual_seed(0)
    net, inputs = nn.Sequential(nn.Linear(4, 1)), torch.randn(20, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with dualform.Recorder(net, optimizer, tmp_path / "run", quiet=True) as recorder:
        take_steps(
            recorder,
            optimizer,
            10,
            lambda _: (net(inputs) - inputs.sum(1, keepdim=True)).square().mean(),
            sample=torch.arange(20),
            dataset="a",
        )
        recorder.query_set("test", inputs[:5], label=(inputs[:5].sum(1) > 0).long())
    with dualform.open(tmp_path / "run") as memory:
        found = memory.placebo(queries="test", where="sample < 15")
        full, ablated = (np.asarray(memory.output(queries="test", where=own))[:, 0] for own in (None, "sample < 15"))
    assert found.second.tolist() == [-1] * 5
    assert set(found.labels.tolist()) == {0, 1}
    assert not {"corrected", "broken"} & found.summary().keys()
    assert np.allclose(found.margin, full, atol=1e-6)
    assert np.allclose(found.change, ablated - full, atol=1e-5)


def test_without_samples_rows_are_drawn(tmp_path):
    torch.manual_seed(0)
    net, inputs, labels = nn.Sequential(nn.Linear(4, 3)), torch.randn(20, 4), torch.arange(20) % 3
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with dualform.Recorder(net, optimizer, tmp_path / "run", quiet=True) as recorder:
        take_steps(recorder, optimizer, 10, lambda _: nn.functional.cross_entropy(net(inputs), labels), label=labels)
        recorder.query_set("test", inputs)
    with dualform.open(tmp_path / "run") as memory:
        found = memory.placebo(queries="test", where="label <> 2")
        assert (found.unit, found.total, found.removed) == ("rows", 200, 60)
        spans = memory.placebo(queries="test", where="step >= 4")
        assert (spans.removed, spans.without_siblings) == (80, "")
        assert "steps 3 to 6" in spans.siblings


SEEN, HALF = 6, 12


class Routed(nn.Module):
    """Some steps go through another head, and the layer itself does not see their samples."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head, self.other = nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(6, 3)
        self.elsewhere = False

    def forward(self, x):
        return (self.other if self.elsewhere else self.head)(torch.tanh(self.hidden(x)))


@pytest.fixture(scope="module", params=["SGD", "AdamW"])
def routed(request, tmp_path_factory):
    """`head` sees samples 0 to 5 in even steps before HALF, 6 to 20 after it; `other` sees 30 to 39 in odd steps."""
    torch.manual_seed(0)
    net, inputs, labels = Routed(), torch.randn(40, 5), torch.randint(0, 3, (40,))
    optimizer = RULES[request.param](net.parameters())
    path = tmp_path_factory.mktemp("routed") / "run"
    with dualform.Recorder(net, optimizer, path, quiet=True) as recorder:
        for step in range(2 * HALF):
            net.elsewhere = bool(step % 2)
            first, last = (30, 40) if net.elsewhere else (0, SEEN) if step < HALF else (SEEN, 21)
            index = first + torch.randperm(last - first)[:4]
            with recorder.step(sample=index, label=labels[index], dataset="a"):
                learn(optimizer, nn.functional.cross_entropy(net(inputs[index]), labels[index]))
        net.elsewhere = False
        recorder.query_set("test", inputs[:7], label=labels[:7])
    with dualform.open(path) as memory:
        assert all(reconstruction.exact for reconstruction in memory.verify().values()), "though heads take turns"
        yield memory


def changes_under(memory, found, where, at_step):
    full, ablated = (
        np.asarray(memory.output("head", "test", own, at_step=at_step, allow_inexact=True), np.float64)
        for own in (None, where)
    )
    return margins(ablated, found.predicted) - margins(full, found.predicted)


def test_random_sets_are_of_samples_that_the_layer_saw_before_at_step(routed):
    """Of six samples one is removed, so that the random sets are each of the six alone."""
    found = routed.placebo("head", "test", "sample <> 2", n=50, at_step=HALF)
    assert (found.removed, found.total, found.unit, found.random) == (1, SEEN, "samples", SEEN)
    alone = [changes_under(routed, found, f"sample <> {own}", HALF) for own in range(SEEN)]
    scale = np.abs(alone).max()
    assert scale > 1e-3
    distances = np.abs(found.random_changes.T[:, None] - np.array(alone)[None]).max(axis=2)
    assert sorted(distances.argmin(axis=1)) == list(range(SEEN))
    assert distances.min(axis=1).max() < 1e-4 * scale
    assert found.siblings == tuple(f"sample = {own}" for own in range(SEEN) if own != 2)
    assert np.abs(found.sibling_changes.T - np.delete(alone, 2, axis=0)).max() < 1e-4 * scale
    assert not found.unusual.any()  # six sets are too few


def test_samples_of_another_layer_of_the_space_are_not_drawn(routed):
    for layer, odd in (("head", 0), ("other", 1)):
        (row,) = routed.sql(
            f"SELECT count(DISTINCT sample) AS n, min(sample) AS one FROM slots WHERE step % 2 = {odd}"
        ).records()
        found = routed.placebo(layer, np.ones((1, 6), np.float32), f"sample <> {row['one']}")
        assert (found.removed, found.total) == (1, row["n"])


def test_other_spans_are_of_steps_of_the_layer_before_at_step(routed):
    found = routed.placebo("head", "test", "step NOT BETWEEN 4 AND 7", n=5, at_step=HALF)
    assert found.siblings == ("steps 0 to 2", "steps 2 to 4", "steps 6 to 8", "steps 8 to 10")
    for name, column in zip(found.siblings, found.sibling_changes.T, strict=True):
        first, _, last = name.removeprefix("steps ").partition(" to ")
        expected = changes_under(routed, found, f"step NOT BETWEEN {first} AND {last}", HALF)
        assert np.abs(expected).max() > 1e-4
        assert np.abs(column - expected).max() < 1e-4 * np.abs(expected).max() + 1e-6


@pytest.mark.parametrize(("where", "at_step"), [("sample <> 9", HALF), ("step < 20", HALF), ("sample <> 2", 0)])
def test_what_leaves_out_nothing_before_at_step_is_refused(routed, where, at_step):
    with pytest.raises(BadInput, match="where leaves out no slot before at_step") as refused:
        routed.placebo("head", "test", where, at_step=at_step)
    assert refused.value.field == "at_step"

"""Placebos hold to outputs under the sets that they leave out, for rules that are linear and rules that scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.answers.placebos import outside
from dualform.query.placebo import _random_sets, _samples
from dualform.query.weights.group_weights import group_weights
from dualform.query.weights.rebuilt_weights import recorded, recorded_without_slots
from dualform.query.where.mask import Selection

RULES = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.02),
    "AMSGrad": lambda p: torch.optim.Adam(p, lr=0.02, amsgrad=True, weight_decay=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
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
        for step in range(steps):
            index = torch.randperm(samples)[:8]
            with recorder.step(dataset=f"part {step % 3}", label=labels[index], sample=index):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(inputs[index]).flatten(0, -2), labels[index].flatten()).backward()
                optimizer.step()
        recorder.query_set("test", inputs[:9], label=labels[:9])
    return path


@pytest.fixture(scope="module", params=[*RULES, "AdamW of tokens", "SGD of tokens"])
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


@pytest.mark.parametrize("where", ["dataset <> 'part 1'", "sample >= 4", "dataset = 'part 1' AND label < 2"])
def test_random_sets_are_outputs_without_their_samples(memory, where):
    found = memory.placebo("head", "test", where, n=8)
    view = memory._view
    layer = view.snapshot.layer("head")
    known = _samples(view, {"head": layer}, None, lambda: None)
    numbers = known.numbers["head"]
    sets = _random_sets(known, found.removed, 8)
    scale = np.abs(np.asarray(memory.output("head", "test"))).max()
    assert found.unit == "samples"
    for number, members in enumerate(sets.members):
        out = members[sets.numbers["head"]]
        left_out = np.unique(numbers[out])
        assert abs(len(left_out) - found.removed) <= max(2, 0.13 * known.count)
        assert not np.isin(numbers[~out], left_out).any()  # whole samples
        assert (
            np.abs(found.random_changes[:, number] - changes(memory, found, np.flatnonzero(out))).max() < 1e-4 * scale
        )


def test_the_ablation_itself_and_its_siblings_are_outputs(memory):
    found = memory.placebo("head", "test", "label <> 1")
    scale = np.abs(np.asarray(memory.output("head", "test"))).max()
    label = np.ma.getdata(memory.slots(np.arange(memory._view.snapshot.count(_space(memory))), _space(memory))["label"])
    assert found.siblings == ("label = 0", "label = 2", "label = 3")
    for column, value in zip([0, -3, -2, -1], [1, 0, 2, 3], strict=True):
        expected = changes(memory, found, np.flatnonzero(label == value))
        assert np.abs(found.changes[:, column] - expected).max() < 1e-4 * scale


def _space(memory):
    return next(own.space for own in memory.info().layers if own.name == "head")


def test_shares_of_groups_are_what_each_filter_alone_leaves(memory):
    """group_weights runs the training once for all groups; recorded runs it for one."""
    view = memory._view
    layer = view.snapshot.layer("head")
    numbers = np.random.default_rng(0).integers(0, 5, view.snapshot.entries("head").count)
    without = recorded_without_slots(view, layer, None, lambda: None)
    for group, own in enumerate(group_weights(view, layer, {"head": numbers}, 5, None, lambda: None)):
        alone = recorded(view, layer, Selection(f"group {group}", numbers == group, stored=False), None, lambda: None)
        scale = np.abs(alone.weight - without.weight).max()
        assert np.abs(own.weight - (alone.weight - without.weight)).max() <= 1e-9 * scale + 1e-12
        assert np.abs(own.bias - (alone.bias - without.bias)).max() <= 1e-9 * scale + 1e-12


def test_the_answer_is_the_same_again_and_in_another_process(tmp_path):
    run = record(tmp_path / "run", "AdamW")
    with dualform.open(run) as one, dualform.open(run) as two:
        first, again = (own.placebo("head", "test", "label <> 1") for own in (one, two))
        alone = one.placebo("head", "test/3", "label <> 1")
    assert np.array_equal(first.changes, again.changes)
    assert np.allclose(alone.changes, first.changes[3:4], rtol=0, atol=1e-9)


def test_an_unusual_change_lies_outside_both_nulls(memory):
    found = memory.placebo("head", "test", "label <> 2 AND dataset <> 'part 0'", n=40)
    assert len(found.siblings) >= 5
    expected = outside(found.change, found.random_changes) & outside(found.change, found.sibling_changes)
    assert found.unusual.tolist() == expected.tolist()
    few = memory.placebo("head", "test", "label <> 2", n=40)
    assert len(few.siblings) == 3
    assert few.unusual.tolist() == outside(few.change, few.random_changes).tolist()


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
        for _ in range(10):
            with recorder.step(sample=torch.arange(20), dataset="a"):
                optimizer.zero_grad()
                (net(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
                optimizer.step()
        recorder.query_set("test", inputs[:5])
    with dualform.open(tmp_path / "run") as memory:
        found = memory.placebo(queries="test", where="sample < 15")
        full, ablated = (np.asarray(memory.output(queries="test", where=own))[:, 0] for own in (None, "sample < 15"))
    assert found.second.tolist() == [-1] * 5
    assert np.allclose(found.margin, full, atol=1e-6)
    assert np.allclose(found.change, ablated - full, atol=1e-5)


def test_without_samples_rows_are_drawn(tmp_path):
    torch.manual_seed(0)
    net, inputs = nn.Sequential(nn.Linear(4, 3)), torch.randn(20, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with dualform.Recorder(net, optimizer, tmp_path / "run", quiet=True) as recorder:
        for _ in range(10):
            with recorder.step(label=torch.arange(20) % 3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(inputs), torch.arange(20) % 3).backward()
                optimizer.step()
        recorder.query_set("test", inputs[:5])
    with dualform.open(tmp_path / "run") as memory:
        found = memory.placebo(queries="test", where="label <> 2")
        assert (found.unit, found.total, found.removed) == ("rows", 200, 60)
        spans = memory.placebo(queries="test", where="step >= 4")
        assert (spans.removed, spans.without_siblings) == (80, "")
        assert "steps 3 to 6" in spans.siblings


def test_a_query_is_answered_alike_in_any_batch(tmp_path):
    torch.manual_seed(0)
    net, inputs = nn.Sequential(nn.Linear(37, 5)), torch.randn(60, 37)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with dualform.Recorder(net, optimizer, tmp_path / "run", quiet=True) as recorder:
        for _ in range(10):
            with recorder.step(sample=torch.arange(60), label=torch.arange(60) % 5, dataset="a"):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(inputs), torch.arange(60) % 5).backward()
                optimizer.step()
        recorder.query_set("test", inputs)
    with dualform.open(tmp_path / "run") as memory:
        whole = memory.placebo(queries="test", where="label <> 2")
        for start, stop in ((0, 1), (3, 10), (17, 60)):
            part = memory.placebo(queries=inputs[start:stop].numpy(), where="label <> 2")
            assert np.array_equal(whole.changes[start:stop], part.changes)

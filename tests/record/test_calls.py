"""Every call of a layer whose gradient arrives is slots of its own; a call that comes to nothing is none."""

import copy
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dualform.errors import BadInput, RecordingError
from dualform.record.slots import step_record
from dualform.record.slots.step_record import CallOrder
from tests.trainings import learn

from .listed import Opened, assert_rebuilt, snapshot


class Network(nn.Module):
    """Three layers, of which a step calls what it likes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)


def record(path, steps, loss_of, model=None, **said):
    """Train on the losses `loss_of(model, x)`; returns the sink, the inputs and the weights before and after."""
    model = model or Network()
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5), path)
    generator, inputs, snapshots = torch.Generator().manual_seed(1), [], [snapshot(model)]
    with opened.recorder:
        for number in range(steps):
            inputs.append(torch.randn(5, 4, generator=generator))
            with opened.recorder.step(**said):
                learn(opened.optimizer, loss_of(model, inputs[-1], number))
            snapshots.append(snapshot(model))
    return opened.sink, inputs, snapshots


def test_a_siamese_network(tmp_path):
    def loss(model, x, number):
        return (model.second(torch.relu(model.first(x))) - model.second(torch.relu(model.first(-x)))).square().sum()

    sink, inputs, snapshots = record(tmp_path / "m", 3, loss, label=np.arange(5))
    assert sink.defects == []
    assert [[rows.call for rows in batch.layers["first"]] for batch in sink.recorded] == [[0, 1]] * 3
    assert [extent.call for extent in sink.batches[0].extents] == [0, 1]
    assert (sink.keys("first") == torch.cat([part for x in inputs for part in (x, -x)]).numpy()).all()
    assert sink.column("label") == [*range(5)] * 6
    assert sink.column("call") == ([0] * 5 + [1] * 5) * 3
    moved = ("first.weight", "first.bias", "second.weight")  # the second bias has no gradient but rounding
    assert_rebuilt(sink, [{name: values[name] for name in moved} for values in snapshots])


def test_a_layer_that_is_not_called_is_absent(tmp_path):
    def loss(model, x, number):
        hidden = model.first(x)
        return (model.second(hidden) if number != 1 else hidden).square().sum()

    sink, _, snapshots = record(tmp_path / "m", 3, loss)
    assert [list(batch.layers) for batch in sink.recorded] == [["first", "second"], ["first"], ["first", "second"]]
    assert sink.keys("second").shape == (10, 4)
    assert (np.abs(sink.keys("second")).sum(1) > 0).all()
    assert sink.defects == []
    assert sink.skipped == {"third": "it was not called in a recorded step"}
    assert_rebuilt(sink, [{n: w for n, w in values.items() if "third" not in n} for values in snapshots])


def test_a_layer_joins_at_the_first_step_that_reaches_it(tmp_path):
    def loss(model, x, number):
        hidden = model.second(x)
        return (model.first(hidden) if number >= 2 else hidden).square().sum()

    sink, _, snapshots = record(tmp_path / "m", 4, loss, label=np.arange(5))
    assert [layer.name for layer in sink.header.layers] == ["second"]
    assert [[layer.name for layer in batch.joined] for batch in sink.recorded] == [[], [], ["first"], []]
    assert sink.batches[2].joined[0].space == "sample"
    assert not sink.batches[2].joined[0].repeats
    assert set(sink.header.skipped) == {"first", "third"}
    assert set(sink.skipped) == {"third"}
    assert sink.defects == []
    assert_rebuilt(sink, [{n: w for n, w in values.items() if "third" not in n} for values in snapshots])


def test_calls_without_a_gradient_have_no_number(tmp_path):
    def loss(model, x, number):
        with torch.no_grad():
            model.first(x * 2)
        model.first(x * 3)
        return (model.first(x * 4) + model.first(x * 5).detach() + model.first(x * 6)).square().sum()

    sink, (x,), _ = record(tmp_path / "m", 1, loss)
    assert sink.column("call") == [0] * 5 + [1] * 5
    assert (sink.keys("first") == torch.cat([x * 4, x * 6]).numpy()).all()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_repeats_no_slot(tmp_path, reentrant):
    def loss(model, x, number):
        x = x.requires_grad_()
        return checkpoint(lambda y: model.second(torch.relu(model.first(y))), x, use_reentrant=reentrant).square().sum()

    sink, (x,), _ = record(tmp_path / "m", 1, loss)
    assert (sink.keys("first") == x.detach().numpy()).all()
    assert len(sink.keys("second")) == 5
    assert sink.column("call") == [0] * 5


class Parts(nn.Module):
    """Calls one layer again and again: `c`, and in a checkpoint what stands between a pair of brackets."""

    def __init__(self, calls):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.layer, self.calls, self.seen = nn.Linear(4, 4), nn.Linear(4, 4), calls, []

    def forward(self, x):
        self.seen = []
        return self._run(self.first(x), self.calls)

    def _run(self, x, calls):
        depth = start = 0
        for place, call in enumerate(calls):
            if call == "(":
                start, depth = (start, depth + 1) if depth else (place + 1, 1)
            elif call == ")":
                depth -= 1
                if not depth:
                    part = calls[start:place]
                    x = checkpoint(lambda y, part=part: self._run(y, part), x, use_reentrant=True)
            elif not depth:
                if torch._C._current_graph_task_id() < 0:
                    self.seen.append(x.detach().clone())
                x = torch.tanh(self.layer(x))
        return x


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")  # torch's, of parts within parts
@pytest.mark.parametrize("calls", ["(c)(c)(c)", "c(cc)c(c)", "(c(c)c)c", "(c((c)c)(cc))((c)(c))"])
def test_calls_that_reentrant_checkpoints_run_again_are_numbered_as_they_were_made(tmp_path, calls):
    model = Parts(calls)
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    seen, snapshots = [], [snapshot(model)]
    with opened.recorder:
        for _ in range(2):
            with opened.recorder.step(label=np.arange(5)):
                opened.optimizer.zero_grad()
                with torch.no_grad():
                    model.layer(torch.zeros(1, 4))  # what comes to nothing has no number
                model(torch.randn(5, 4)).square().sum().backward()
                opened.optimizer.step()
            seen += model.seen
            snapshots.append(snapshot(model))
    count = calls.count("c")
    assert [part.call for _, part in opened.sink.parts("layer")] == [*range(count)] * 2
    np.testing.assert_array_equal(opened.sink.keys("layer"), torch.cat(seen).numpy())
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)


def test_a_device_that_numbers_nodes_by_itself_leaves_parts_within_parts_in_doubt(monkeypatch):
    """It runs them again in a thread of its own."""
    nodes, now, thread = [], [0], [1]
    monkeypatch.setattr(torch._C, "_current_autograd_node", lambda: nodes[-1] if nodes else None)
    monkeypatch.setattr(torch._C._autograd, "_get_sequence_nr", lambda: now[0])
    monkeypatch.setattr(step_record, "get_ident", lambda: thread[0])
    order = CallOrder()
    now[0] = 6
    order.without_gradient()  # in the part of node 5
    now[0] = 8
    assert order.now() == (8,)
    nodes.append(SimpleNamespace(_sequence_nr=lambda: 5))
    thread[0], now[0] = 2, 1
    assert order.now() == (5, 1)
    order.without_gradient()  # in the part of node 0, which is the device's own
    nodes.append(SimpleNamespace(_sequence_nr=lambda: 0))
    assert order.now() is None


def test_where_their_order_is_in_doubt_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(CallOrder, "now", lambda order: None)
    model = Parts("(c)c")
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    with opened.recorder, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            with opened.recorder.step():
                model(torch.randn(5, 4)).square().sum().backward()
    assert [str(warning.message) for warning in told] == [
        "the calls of layer 'layer' at step 0 ran again in nested checkpoints, so their order is unknown and "
        "the column `call` counts in the order of the second runs, also in later steps. Use checkpoint(…, "
        "use_reentrant=False)."
    ]
    assert len(opened.sink.keys("layer")) == 2 * 10


def test_micro_batches_without_rows_of_their_own(tmp_path):
    model = Network()
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    parts = torch.randn(5, 4), torch.randn(3, 4)
    with opened.recorder, opened.recorder.step(dataset="a"):
        for part in parts:
            model.first(part).square().sum().backward()
        opened.optimizer.step()
    sink = opened.sink
    assert (sink.keys("first") == torch.cat(parts).numpy()).all()
    assert sink.column("row") == [0, 1, 2, 3, 4, 0, 1, 2]
    assert sink.column("dataset") == ["a"] * 8
    assert sink.defects == []


def test_micro_batches_with_rows_of_their_own_are_refused(tmp_path):
    def loss(model, x, number):
        return model.first(x[:3]).square().sum() + model.first(x[2:]).square().sum()

    with pytest.raises(BadInput) as caught:
        record(tmp_path / "m", 1, loss, label=np.arange(5))
    assert str(caught.value) == (
        "label has shape [5], but the recorded layers saw batches of [3] (sample). Pass one value, one for each row "
        "[B], or one for each token [B, L]. Put each micro-batch into its own recorder.step, of "
        "which only the last one "
        "updates."
    )
    assert caught.value.field == "label"


def test_an_adversarial_step(tmp_path):
    """The gradient of the inputs in between is taken by autograd.grad, through a call that counts."""

    def loss(model, x, number):
        x = x.requires_grad_()
        clean = model.second(torch.relu(model.first(x))).square().mean()
        (slope,) = torch.autograd.grad(clean, x, retain_graph=True)
        return clean + model.second(torch.relu(model.first(x.detach() + 0.1 * slope.sign()))).square().mean()

    sink, _, _ = record(tmp_path / "m", 2, loss, label=np.arange(5))
    assert [[rows.call for rows in batch.layers["second"]] for batch in sink.recorded] == [[0, 1]] * 2


def test_a_shared_layer_that_sees_other_batches_in_each_call(tmp_path):
    def loss(model, x, number):
        return model.first(x).square().sum() + model.first(x[:2]).square().sum() + model.second(x).square().sum()

    sink, _, _ = record(tmp_path / "m", 1, loss)
    assert [(extent.call, extent.rows) for extent in sink.batches[0].extents] == [(0, 5), (1, 2)]
    assert [(n, [r.call for r in rows]) for n, rows in sink.batches[0].layers.items()] == [
        ("first", [0, 1]),
        ("second", [0]),
    ]
    assert len(sink.batches[0].samples["label"]) == 5


def test_the_second_calls_of_two_layers_must_agree(tmp_path):
    def loss(model, x, number):
        both = model.first(x).sum() + model.second(x).sum()
        return both + model.first(x[:2]).sum() + model.second(x[:3]).sum()

    with pytest.raises(
        RecordingError, match=r"^layers 'first' and 'second' saw different batches at step 0: \[2\] and"
    ):
        record(tmp_path / "m", 1, loss)


def test_an_empty_call_is_none(tmp_path):
    def loss(model, x, number):
        return model.first(x[:0]).sum() + model.first(x).square().sum()

    sink, (x,), _ = record(tmp_path / "m", 1, loss)
    assert sink.column("call") == [0] * 5
    assert (sink.keys("first") == x.numpy()).all()


def test_a_model_and_its_copy_do_not_share_slots(tmp_path):
    model = Network()
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    x = torch.randn(5, 4)
    with opened.recorder:
        twin = copy.deepcopy(model)
        with opened.recorder.step():
            (model.first(x) - twin.first(x * 2)).square().sum().backward()
    assert (opened.sink.keys("first") == x.numpy()).all()

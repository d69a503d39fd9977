"""Every call of a layer whose gradient arrives is slots of its own; what does not fit has none, and is told of."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from dualform.errors import BadInput
from dualform.record.slots import step_record
from dualform.record.slots.spaces import Spaces
from dualform.record.slots.step_record import CallOrder
from tests.record.listed import Opened, assert_rebuilt, opened_on, snapshot
from tests.trainings import learn


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
@pytest.mark.parametrize("calls", ["c(cc)c(c)", "(c((c)c)(cc))((c)(c))"])
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


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.e = nn.Linear(4, 4), nn.Linear(4, 4)


def record_pair(path, steps, loss_of, **said):
    """Train a pair; returns the sink and the warnings of each step."""
    model = Pair()
    opened, told = opened_on(model, path), []
    with opened.recorder:
        for number in range(steps):
            with warnings.catch_warnings(record=True) as seen, opened.recorder.step(**said):
                warnings.simplefilter("always")
                learn(opened.optimizer, loss_of(model, number))
            told.append([str(warning.message) for warning in seen])
    return opened.sink, told


def test_a_second_call_that_does_not_fit_leaves_the_first_its_slots(tmp_path):
    parts = torch.randn(4, 4), torch.randn(2, 4)

    def loss(model, number):
        whole = model.a(parts[0]).square().sum() + model.e(parts[0]).square().sum()
        return whole + (model.a(parts[1]).square().sum() if number else 0)

    sink, told = record_pair(tmp_path / "m", 3, loss, label=np.arange(4))
    assert [[rows.call for rows in batch.layers["a"]] for batch in sink.recorded] == [[0]] * 3
    assert [[rows.call for rows in batch.layers["e"]] for batch in sink.recorded] == [[0]] * 3
    np.testing.assert_array_equal(sink.keys("a"), np.tile(parts[0].numpy(), (3, 1)))
    assert sink.column("label") == [0, 1, 2, 3] * 3
    assert ("a", 1, "layer 'a' saw 2 rows at step 1, but label has 4") in sink.defects
    assert [len(of) for of in told] == [0, 1, 0]  # once a layer
    assert told[1] == [
        "layer 'a' saw 2 rows at step 1, but label has 4. The slots of that call are not recorded, and scores "
        "of layer 'a' leave them out, also in later steps. If its rows are the tokens of a batch, put it into "
        "their space with spaces=. If the model chooses them, use Recorder(routed=…) and step(at=…)."
    ]


def test_of_calls_that_part_from_another_layer_those_that_fit_stay_and_keep_their_numbers(tmp_path):
    parts = torch.randn(3, 4), torch.randn(2, 4), torch.randn(5, 4)

    def loss(model, number):
        of_e = parts if not number else (parts[0][:1], parts[1], parts[2][:4])
        return sum(model.a(x).square().sum() for x in parts) + sum(model.e(x).square().sum() for x in of_e)

    sink, told = record_pair(tmp_path / "m", 2, loss)
    assert [[rows.call for rows in batch.layers["e"]] for batch in sink.recorded] == [[0, 1, 2], [1]]
    np.testing.assert_array_equal(sink.parts("e")[3][1].keys, parts[1].numpy())
    assert [len(of) for of in told] == [0, 1]
    assert told[1][0].startswith(
        "layers 'a' and 'e' saw different batches at step 1: [3] and [1]. The slots of that call are not recorded, and "
        "scores of layer 'e' leave them out, also in later steps. Give layers that see another batch their own "
        "space, as spaces={'e': 'sample_2'}"
    )


def test_a_layer_of_a_later_step_does_not_oust_those_that_had_slots(tmp_path):
    x = torch.randn(3, 4)

    def loss(model, number):
        return model.e(x).square().sum() + (model.a(x[:2]).square().sum() if number else 0)

    sink, told = record_pair(tmp_path / "m", 2, loss)
    assert len(sink.keys("e")) == 6
    assert sink.skipped == {"a": "layers 'e' and 'a' saw different batches at step 1: [3] and [2]"}
    assert [len(of) for of in told] == [0, 1]


X = torch.randn(4, 4)


def routed_on(model, path):
    return Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), path, routed=["e"])


def one_step(opened, model, rows, sayings, **said):
    """Call `e` on each of `rows`, having said the saying beside it."""
    with opened.recorder.step(label=[10, 11, 12, 13], **said) as step:
        loss = model.a(X).square().sum()
        for chosen, saying in zip(rows, sayings, strict=True):
            if saying is not None:
                step.at("e", **saying)
            loss = loss + model.e(X[chosen]).square().sum()
        loss.backward()


def test_each_call_has_the_rows_said_before_it(tmp_path):
    model, rows = Pair(), [[0, 2], [], [1, 3], [3]]
    opened = routed_on(model, tmp_path / "m")
    sayings = [
        {"row": np.array(chosen, int), "position": np.array(chosen, int) * 2, "gate": len(chosen)} for chosen in rows
    ]
    with opened.recorder:
        one_step(opened, model, rows, sayings)
        one_step(opened, model, rows[:1], sayings[:1])
    sink = opened.sink
    assert sink.column("call", "e") == [0, 0, 1, 1, 2, 0, 0]
    assert sink.column("row", "e") == [0, 2, 1, 3, 3, 0, 2]
    assert sink.column("position", "e") == [0, 4, 2, 6, 6, 0, 4]
    assert sink.column("label", "e") == [10, 12, 11, 13, 13, 10, 12]
    np.testing.assert_array_equal(sink.keys("e"), X[[0, 2, 1, 3, 3, 0, 2]].numpy())


def test_one_saying_for_two_calls_of_one_size_is_refused_at_the_first_step(tmp_path):
    model = Pair()
    opened = routed_on(model, tmp_path / "m")
    with opened.recorder, pytest.raises(BadInput) as caught:
        one_step(opened, model, [[0, 2], [1, 3]], [{"row": [0, 2]}, None])
    assert str(caught.value) == (
        "row of space 'e' was passed once for 2 calls at step 0. Call step.at('e', row=…) "
        "once before each call that a gradient reaches."
    )
    assert caught.value.field == "row"


def test_later_the_rows_of_ambiguous_calls_are_unknown_and_the_training_goes_on(tmp_path):
    model = Pair()
    opened = routed_on(model, tmp_path / "m")
    with opened.recorder:
        one_step(opened, model, [[0, 2]], [{"row": [0, 2]}])
        with pytest.warns(RuntimeWarning) as told:
            one_step(opened, model, [[0, 2], [1, 3]], [None, {"row": [1, 3]}], dataset="a")
        one_step(opened, model, [[0, 2], [1, 3]], [{"row": [0, 2]}, {"row": [1, 3, 0]}])  # a size that fits no call
    assert [str(warning.message) for warning in told] == [
        "row of space 'e' was passed once for 2 calls at step 1. It is not recorded for these slots, also in "
        "later steps. Call step.at('e', row=…) once before each "
        "call that a gradient reaches."
    ]
    sink = opened.sink
    assert sink.column("row", "e") == [0, 2] + [None] * 8
    assert sink.column("label", "e") == [10, 12] + [None] * 8
    assert sink.column("dataset", "e") == [None, None] + ["a"] * 4 + [None] * 4
    assert len(sink.keys("e")) == 10


def test_one_value_holds_for_all_calls_and_a_repeated_saying_for_one(tmp_path):
    model = Pair()
    opened = routed_on(model, tmp_path / "m")
    with opened.recorder:
        one_step(opened, model, [[0], [1, 3]], [{"expert": 7}, None])
        one_step(opened, model, [[1, 2]], [{"row": [1, 2]}], at={"e": {"row": [1, 2]}})
    assert opened.sink.batches[0].extents[0].columns["expert"].tolist() == [7]
    assert opened.sink.batches[0].extents[1].columns["expert"].tolist() == [7, 7]
    assert opened.sink.column("row", "e") == [None] * 3 + [1, 2]


def test_each_combination_of_shapes_is_aligned_once_whatever_a_mask_leaves(tmp_path, monkeypatch):
    met, meet = [], Spaces.meet
    monkeypatch.setattr(Spaces, "meet", lambda *given: met.append(given) or meet(*given))
    model = nn.Linear(3, 2)
    opened, kept, labels = opened_on(model, tmp_path / "m"), [], []
    with opened.recorder:
        for number, (length, masked) in enumerate([(3, True), (5, False), (3, True), (3, False), (5, False)]):
            x, label = torch.randn(2, length, 3), np.array([number, 9])
            mask = (
                np.arange(2 * length).reshape(2, length) % (number + 2) != 0 if masked else np.ones((2, length), bool)
            )
            with opened.recorder.step(label=label, **({"mask": mask} if masked else {})):
                model(x).square().sum().backward()
            kept.append(x[torch.from_numpy(mask)])
            labels += np.repeat(label, length)[mask.reshape(-1)].tolist()
    assert len(met) == 3
    np.testing.assert_array_equal(opened.sink.keys(""), torch.cat(kept).numpy())
    assert opened.sink.column("label", "token") == labels


LAYERS = {"one": "token", "two": "token", "head": "sample"}


class Drawn(nn.Module):
    """Three layers that a program calls; those of tokens may see their batch time-first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)


@st.composite
def steps(draw, first):
    """A step's rows, the lengths of its k-th calls, and its calls in order: (layer, what becomes of it)."""
    regular = draw(st.booleans())
    length = draw(st.integers(1, 4))
    fates = st.sampled_from(["loss", "loss", "loss", "silent", "detached"])
    calls = draw(st.lists(st.tuples(st.sampled_from(list(LAYERS)), fates), min_size=1, max_size=7))
    if first:
        calls = [("one", "loss"), *calls]
    return {
        "rows": draw(st.integers(1, 4)),
        "lengths": [length] * 8 if regular else draw(st.lists(st.integers(1, 4), min_size=8, max_size=8)),
        "calls": calls,
        "label": draw(st.sampled_from(["none", "one", "rows"])),
        "word": regular and draw(st.booleans()),
        "mask": regular and draw(st.booleans()),
        "twice": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
    }


@st.composite
def programs(draw):
    return draw(st.booleans()), [draw(steps(number == 0)) for number in range(draw(st.integers(1, 4)))]


def loss_of(model, step, time_first, called=None):
    """Runs a step's calls; `called(layer, input, output)` sees those that reach the loss."""
    generator, counts, terms = torch.Generator().manual_seed(step["seed"]), dict.fromkeys(LAYERS, 0), []
    for name, fate in step["calls"]:
        rows, length = step["rows"], step["lengths"][counts[name]]
        shape = (rows,) if LAYERS[name] == "sample" else (length, rows) if time_first else (rows, length)
        x, layer = torch.randn(*shape, 3, generator=generator), getattr(model, name)
        if fate == "silent":
            with torch.no_grad():
                layer(x)
            continue
        output = layer(x)
        if fate == "loss":
            if called is not None:
                called(name, x, output)
            counts[name] += 1
            terms.append(torch.tanh(output).square().sum())
    return sum(terms) if terms else None


def backward(loss, twice):
    if loss is not None:
        loss.backward(retain_graph=twice)
        if twice:
            loss.backward()


def captured(program, time_first):
    """By step: (layer, call) -> input and gradient as rows x positions, by hooks on the outputs; and the weights."""
    model, found = Drawn(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in program:
        signals, numbers = {}, dict.fromkeys(LAYERS, 0)

        def called(name, x, output, signals=signals, numbers=numbers):
            place = (name, numbers[name])
            numbers[name] += 1
            signals[place] = [x, torch.zeros_like(output)]

            def arrived(gradient, total=signals[place][1]):
                total += gradient  # returns None: what a hook returns would take the gradient's place

            output.register_hook(arrived)

        optimizer.zero_grad()
        backward(loss_of(model, step, time_first, called), step["twice"])
        optimizer.step()
        tokens = {name for name, space in LAYERS.items() if space == "token"}
        found.append(
            {
                place: [part.transpose(0, 1) if time_first and place[0] in tokens else part for part in parts]
                for place, parts in signals.items()
            }
        )
    return found, [p.detach().clone() for p in model.parameters()]


def said_of(step):
    """A step's arguments, their first axis the batch."""
    rng, rows, length = np.random.default_rng(step["seed"]), step["rows"], step["lengths"][0]
    said = {"label": {"none": None, "one": 7, "rows": rng.integers(9, size=rows)}[step["label"]]}
    if step["word"]:
        said["word"] = rng.integers(99, size=(rows, length))
    if step["mask"]:
        said["mask"] = rng.random((rows, length)) < 0.7
    return said


def of_space(space, step, said, signals):
    """The columns of a space's slots and each layer's rows, by plain loops."""
    columns, parts = [], {name: [] for name, of in LAYERS.items() if of == space}
    for call in sorted({number for name, number in signals if LAYERS[name] == space}):
        for row in range(step["rows"]):
            for position in range(step["lengths"][call]) if space == "token" else [None]:
                if space == "token" and "mask" in said and not said["mask"][row, position]:
                    continue
                label = said["label"]
                word = said["word"][row, position] if space == "token" and "word" in said else None
                columns.append((call, row, position, label[row] if step["label"] == "rows" else label, word))
                for name, rows in parts.items():
                    if (name, call) in signals:
                        key, error = signals[name, call]
                        rows.append([part[row] if position is None else part[row, position] for part in (key, error)])
    return columns, parts


@settings(max_examples=20, deadline=None)
@given(programs())
def test_slots_are_those_of_plain_hooks(tmp_path_factory, drawn):
    time_first, program = drawn
    expected, weights = captured(program, time_first)
    model = Drawn()
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path_factory.mktemp("m") / "m")
    with opened.recorder:
        for step in program:
            with opened.recorder.step(batch_dim=int(time_first), **said_of(step)):
                opened.optimizer.zero_grad()
                backward(loss_of(model, step, time_first), step["twice"])
                opened.optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    sink = opened.sink
    # Padding that reaches the loss, as it does here, is a gradient that no slot holds.
    assert sink.defects == [] or any(step["mask"] for step in program)
    assert len(sink.recorded) == len(program)
    assert set(sink.layer_names) == {name for signals in expected for name, _ in signals}
    for space in ("token", "sample"):
        made = [of_space(space, s, said_of(s), signals) for s, signals in zip(program, expected, strict=True)]
        columns = [column for of_step, _ in made for column in of_step]
        names = ("call", "row", "position", "label", "word")
        assert list(zip(*(sink.column(name, space) for name in names), strict=True)) == columns
        for name in (name for name, of in LAYERS.items() if of == space):
            rows = [pair for _, parts in made for pair in parts[name]]
            if name not in sink.layer_names:
                assert not rows
                continue
            keys, errors = sink.keys(name), sink.values(name)
            assert len(keys) == len(errors) == len(rows)
            for found, (key, error) in zip(zip(keys, errors, strict=True), rows, strict=True):
                np.testing.assert_array_equal(found[0], key.numpy())
                np.testing.assert_array_equal(found[1], error.numpy())

"""Random interleavings of layers, calls, lengths, absences and masks, against a capture by plain hooks."""

import numpy as np
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from .listed import Opened

LAYERS = {"one": "token", "two": "token", "head": "sample"}


class Network(nn.Module):
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
    model, found = Network(), []
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


@settings(max_examples=40, deadline=None)
@given(programs())
def test_slots_are_those_of_plain_hooks(tmp_path_factory, drawn):
    time_first, program = drawn
    expected, weights = captured(program, time_first)
    model = Network()
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

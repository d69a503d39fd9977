"""A routed layer that is called several times: the k-th saying is of the k-th call, and nothing else is guessed."""

import numpy as np
import pytest
import torch
from torch import nn

from dualform.errors import BadInput

from .listed import Opened


class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.e = nn.Linear(3, 3), nn.Linear(3, 3)


X = torch.randn(4, 3)


def opened_on(model, path):
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
    model, rows = Routed(), [[0, 2], [], [1, 3], [3]]
    opened = opened_on(model, tmp_path / "m")
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
    model = Routed()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder, pytest.raises(BadInput) as caught:
        one_step(opened, model, [[0, 2], [1, 3]], [{"row": [0, 2]}, None])
    assert str(caught.value) == (
        "row of space 'e' was passed once for 2 calls at step 0. Call step.at('e', row=…) "
        "once before each call that a gradient reaches."
    )
    assert caught.value.field == "row"


def test_later_the_rows_of_ambiguous_calls_are_unknown_and_the_training_goes_on(tmp_path):
    model = Routed()
    opened = opened_on(model, tmp_path / "m")
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
    model = Routed()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        one_step(opened, model, [[0], [1, 3]], [{"expert": 7}, None])
        one_step(opened, model, [[1, 2]], [{"row": [1, 2]}], at={"e": {"row": [1, 2]}})
    assert opened.sink.batches[0].extents[0].columns["expert"].tolist() == [7]
    assert opened.sink.batches[0].extents[1].columns["expert"].tolist() == [7, 7]
    assert opened.sink.column("row", "e") == [None] * 3 + [1, 2]

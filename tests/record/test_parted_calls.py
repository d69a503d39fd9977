"""A call that does not fit the others of its space has no slots; the calls that fit have theirs, and it is told."""

import warnings

import numpy as np
import torch
from torch import nn

from tests.trainings import learn

from .listed import Opened


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.e = nn.Linear(4, 4), nn.Linear(4, 4)


def opened_on(model, path, **options):
    return Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), path, **options)


def record(path, steps, loss_of, **said):
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

    sink, told = record(tmp_path / "m", 3, loss, label=np.arange(4))
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

    sink, told = record(tmp_path / "m", 2, loss)
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

    sink, told = record(tmp_path / "m", 2, loss)
    assert len(sink.keys("e")) == 6
    assert sink.skipped == {"a": "layers 'e' and 'a' saw different batches at step 1: [3] and [2]"}
    assert [len(of) for of in told] == [0, 1]

"""Recurrent layers that cannot be recorded, and calls of them: each says what to do instead."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from dualform.errors import RecordingError
from dualform.record.recorder import Recorder

from .listed import Opened

REFUSED = {
    "layers": (
        nn.LSTM(2, 3, num_layers=2),
        "it stacks 2 layers and shows only the last one's states: use one nn.LSTM for each",
    ),
    "directions": (
        nn.GRU(2, 3, bidirectional=True),
        "it is bidirectional: use one nn.GRU for each direction, and flip the input of the second",
    ),
    "projection": (
        nn.LSTM(2, 3, proj_size=2),
        "it projects its states (proj_size): use one without it and an nn.Linear",
    ),
    "parametrized": (
        nn.utils.parametrizations.weight_norm(nn.GRU(2, 3), "weight_hh_l0"),
        "a weight of it is parametrized: the optimizer does not update the weight itself",
    ),
    "frozen": (nn.LSTM(2, 3).requires_grad_(False), "its weight is frozen"),
}


@pytest.mark.parametrize(("layer", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_tapped_says_what_to_do(tmp_path, layer, reason):
    model = nn.ModuleDict({"layer": layer, "head": nn.Linear(3, 2)})
    recorder = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    assert recorder.skipped["layer"] == reason


def test_packed_sequences_are_refused_where_they_are_met(tmp_path):
    layer = nn.LSTM(2, 3, batch_first=True)
    opened = Opened(layer, torch.optim.SGD(layer.parameters(), lr=0.1), tmp_path / "m")
    packed = pack_padded_sequence(torch.randn(2, 4, 2), torch.tensor([4, 2]), batch_first=True)
    with opened.recorder:
        with pytest.raises(RecordingError) as caught, opened.recorder.step():
            layer(packed)
        layer(packed)  # outside a step it is nobody's business
    assert str(caught.value) == (
        "layer '' was given a PackedSequence, which cannot be recorded. Pass the padded "
        "tensor and recorder.step(mask=…), or leave the layer out with layers=."
    )


def test_a_packed_sequence_after_the_first_step_is_a_defect(tmp_path):
    layer = nn.LSTM(2, 3, batch_first=True)
    opened = Opened(layer, torch.optim.SGD(layer.parameters(), lr=0.1), tmp_path / "m")
    packed = pack_padded_sequence(torch.randn(2, 4, 2), torch.tensor([4, 2]), batch_first=True)
    with opened.recorder:
        for given in (torch.randn(2, 4, 2), packed):
            with opened.recorder.step():
                output = layer(given)[0]
                (output if isinstance(output, torch.Tensor) else output.data).sum().backward()
    assert [list(batch.layers) for batch in opened.sink.recorded] == [[""], []]
    assert opened.sink.defects == [("", 1, "layer '' was given a PackedSequence, which cannot be recorded")]


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("where", ["output", "state"])
def test_a_step_with_nan_is_not_recorded(tmp_path, where, values):
    layer = nn.GRU(2, 3, batch_first=True)
    opened = Opened(layer, torch.optim.SGD(layer.parameters(), lr=0.1), tmp_path / "m", values=values)

    def step(weight):
        with opened.recorder.step():
            output, state = layer(torch.randn(2, 4, 2))
            (
                output.sum() * weight + state.sum() if where == "output" else output.sum() + state.sum() * weight
            ).backward()

    with opened.recorder:
        step(1.0)
        step(float("nan"))
    assert [batch.step for batch in opened.sink.recorded] == [0]
    assert opened.recorder.steps == 1

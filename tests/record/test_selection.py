"""Every layer is recorded, or listed with the reason why not."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from dualform.errors import AlreadyExists, BadInput, NotFound, RecordingError
from dualform.record.recorder import Recorder


class Own(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class Plain(nn.Linear):
    """A subclass that computes what nn.Linear does."""


class Zoo(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.embed, self.lstm, self.norm = (
            nn.Conv2d(1, 2, 3),
            nn.Embedding(5, 4),
            nn.LSTM(4, 4),
            nn.LayerNorm(4),
        )
        self.relu, self.rnn = nn.ReLU(), nn.RNN(4, 4)
        self.plain, self.own, self.frozen, self.left_out = Plain(4, 4), Own(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.changed = parametrize.register_parametrization(nn.Linear(4, 4), "weight", nn.Tanh())
        self.frozen.requires_grad_(False)


def recorder(tmp_path, **options):
    model = Zoo()
    parameters = [p for name, p in model.named_parameters() if not name.startswith("left_out")]
    return Recorder(model, torch.optim.SGD(parameters, lr=0.1), tmp_path / "m", **options)


def test_reasons(tmp_path):
    made = recorder(tmp_path)
    names = ["conv", "embed", "lstm", "plain", "block.0", "block.1", "changed"]
    assert [tap.name for tap in made._training.plan.taps] == names
    assert made.skipped == {
        "rnn": "there is no tap for RNN",
        "norm": "other parameters: LayerNorm multiplies by no matrix",
        "own": "Own has a forward of its own",
        "frozen": "its weight is frozen",
        "left_out": "its weight is not among the optimizer's parameters",
    }


@pytest.mark.parametrize("layers", ["block.*", ["block.0", "block.1"]], ids=["pattern", "names"])
def test_names_and_patterns(tmp_path, layers):
    made = recorder(tmp_path, layers=layers)
    assert [tap.name for tap in made._training.plan.taps] == ["block.0", "block.1"]
    assert made.skipped["plain"] == "layers= leaves it out"


def test_a_pattern_that_matches_nothing(tmp_path):
    with pytest.raises(NotFound) as caught:
        recorder(tmp_path, layers=["block.0", "head*"])
    assert str(caught.value) == (
        "layers='head*' matches no layer that there is a tap for. Those are 'conv', 'embed', 'lstm', 'plain', 'own', "
        "'frozen', 'left_out', 'block.0', 'block.1', 'changed'."
    )


def test_nothing_to_record(tmp_path):
    model = nn.PReLU()
    reason = "the model itself: other parameters: PReLU multiplies by no matrix"
    with pytest.raises(RecordingError, match=rf"^the model has no layer to record: {reason}\.$"):
        Recorder(model, torch.optim.SGD(model.parameters(), lr=1), tmp_path / "m")


def test_a_folder_that_holds_something_and_a_thing_that_is_no_optimizer(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "file").touch()
    with pytest.raises(AlreadyExists):
        recorder(tmp_path)
    with pytest.raises(BadInput, match=r"^optimizer is float\. Give the torch optimizer\.$"):
        Recorder(nn.Linear(2, 2), 0.1, tmp_path / "n")


class Head(nn.Module):
    """Holds the bias of its own layer, as BERT's head does."""

    def __init__(self):
        super().__init__()
        self.decoder = nn.Linear(3, 2)
        self.bias = self.decoder.bias

    def forward(self, x):
        return self.decoder(x)


def test_a_parameter_that_a_layer_holds_is_not_skipped_under_another_name(tmp_path):
    model = Head()
    recorder = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    assert (list(recorder.summary.layers), recorder.skipped) == (["decoder"], {})


def test_copies_on_several_devices_are_refused_by_name(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.DataParallel(nn.Linear(4, 2)))
    with pytest.raises(RecordingError) as caught:
        Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    assert str(caught.value) == (
        "the part '1' of the model is an nn.DataParallel, which runs copies of its layers on several devices at once. "
        "Train with DistributedDataParallel, one process a device; on one device, without either."
    )

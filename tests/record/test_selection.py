"""Every layer is recorded, or listed with the reason why not."""

from contextlib import ExitStack

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import dualform
from dualform import tap
from dualform.errors import AlreadyExists, BadInput, NotFound, RecordingError
from dualform.record.recorder import Recorder
from tests.trainings import learn


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
        "rnn": "RNN is not supported",
        "norm": "not a matrix product (LayerNorm)",
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
        "layers='head*' does not match any layer that can be recorded. Layers: 'conv', 'embed', "
        "'lstm', 'plain', 'own', "
        "'frozen', 'left_out', 'block.0', 'block.1', 'changed'."
    )


def test_nothing_to_record(tmp_path):
    model = nn.PReLU()
    reason = r"the model itself: not a matrix product \(PReLU\)"
    with pytest.raises(
        RecordingError, match=rf"^Nothing to record: every layer was skipped \({reason}\)\. Create the optimizer from"
    ):
        Recorder(model, torch.optim.SGD(model.parameters(), lr=1), tmp_path / "m")


class Scaled(nn.Module):
    """A frozen layer whose output a vector scales, as IA3 trains it, and another shifts."""

    def __init__(self, shape=(1, 4)):
        super().__init__()
        self.layer = nn.Linear(10, 4).requires_grad_(False)
        self.scale, self.shift = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return self.layer(x) * self.scale + self.shift


@pytest.mark.parametrize("inside", [True, False], ids=["an update", "no update"])
def test_a_training_of_vectors_is_refused_at_its_first_step(tmp_path, inside):
    model, x = Scaled(), torch.randn(8, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = Recorder(model, optimizer, tmp_path / "m", on_error="stop_recording")
    before = model.scale.detach().clone()

    def train():
        with made.step():
            model(x).square().sum().backward()
            if inside:
                optimizer.step()

    with made:
        with made.step(), torch.no_grad():
            model(x)  # an evaluation trains nothing
        with pytest.raises(RecordingError) as refused:
            train()
    why = "it goes into mul, not into a matrix product that the recorder can see"
    assert str(refused.value) == (
        f"Nothing to record in the first step: scale: {why}; shift: it is not a matrix; layer: its weight is frozen. "
        "Train the weight of at least one layer: vectors that scale or shift have no slots."
    )
    assert made.skipped["scale"] == why
    assert torch.equal(before, model.scale)
    assert not (tmp_path / "m").exists()


def test_a_training_of_plain_vectors_is_refused_before_it_begins(tmp_path):
    model = Scaled((4,))
    with pytest.raises(RecordingError, match=r"^Nothing to record: .*layer: its weight is frozen"):
        Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")


def test_an_end_without_a_memory_names_the_parameters_that_were_no_layers(tmp_path):
    model = Scaled()
    with (
        pytest.warns(RuntimeWarning, match=r"Nothing was recorded.*: scale: no product with it was seen in the first"),
        Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m", quiet=True) as made,
        made.step(),
    ):
        pass


def test_a_folder_that_holds_something_and_a_thing_that_is_no_optimizer(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "file").touch()
    with pytest.raises(AlreadyExists):
        recorder(tmp_path)
    with pytest.raises(
        BadInput,
        match=r"^optimizer must be a torch optimizer, not float\. Pass the torch\.optim\.Optimizer inside it\.$",
    ):
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
        "Part '1' of the model is an nn.DataParallel, which runs copies of its layers on "
        "several devices at once. Use DistributedDataParallel with one process for each "
        "device, or one device without either."
    )


class Others(nn.Module):
    """Layers and matrices that are of no type that is recorded, or run without hooks, beside one that is recorded."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.phase, self.turn = nn.Linear(4, 4, dtype=torch.cfloat), nn.Conv1d(1, 1, 1, dtype=torch.cfloat)
        self.own, self.named = nn.Parameter(torch.randn(4, 4).cfloat()), nn.Parameter(torch.randn(4, 4).cfloat())
        self.scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        self.traced = torch.jit.trace(nn.Linear(4, 4), torch.ones(2, 4))

    def forward(self, x):
        x = self.traced(self.scripted(self.layer(x))).cfloat()
        return (self.turn(self.phase(x)[:, None])[:, 0] @ self.own + tap(x, self.named, "named")).abs()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("layers", [None, ["layer"]], ids=["all", "one"])
def test_layers_of_other_types_and_those_that_run_without_hooks_are_skipped(tmp_path, layers):
    def train(recorded):
        model = Others()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with ExitStack() as stack:
            if recorded:
                recorder = Recorder(model, optimizer, tmp_path / "m", layers, quiet=True)
                stack.enter_context(recorder)
            for x in torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1)):
                with recorder.step() if recorded else ExitStack():
                    learn(optimizer, model(x).square().sum())
        return model, recorder.skipped if recorded else {}

    (model, skipped), (plain, _) = train(True), train(False)
    numbers = "is complex64, and what is recorded is float16 to float64"
    hookless = "it was compiled by torch.jit, whose modules run without hooks"
    assert {name: skipped[name] for name in skipped if name != "named"} == {
        "phase": f"its weight {numbers}",
        "turn": f"its weight {numbers}",
        "own": f"its type {numbers}",
        "scripted.0": hookless,
        "traced": hookless,
    }
    assert skipped["named"] == f"its type {numbers}"
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    with dualform.open(tmp_path / "m") as memory:
        assert memory.verify()["layer"].status.name == "exact"
        weights = memory.weights()
        assert all(weights[name].dtype == own.dtype for name, own in model.state_dict().items())
        assert all(torch.equal(weights[name], own) for name, own in model.state_dict().items() if own.is_complex())


def test_a_layer_of_eight_bits_is_skipped(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3).to(torch.float8_e4m3fn))
    made = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    assert made.skipped == {"1": "its weight is float8_e4m3fn, and what is recorded is float16 to float64"}

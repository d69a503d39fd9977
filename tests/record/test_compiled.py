"""What torch.compile makes of a training is recorded, and comes out as it would without the recorder.

Most of this runs under a backend that traces forward and backward, and runs what was traced as it is.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import RecordingError
from dualform.record.discovery import selection
from dualform.record.recorder import Recorder
from tests.networks import samples, tokens, ways_to_train  # noqa: F401  (they name their networks)
from tests.networks.network import NETWORKS, train
from tests.reliability import soaking
from tests.trainings import learn

from .listed import Opened, assert_rebuilt, batches, small_net, snapshot

pytestmark = [  # torch's own, as it traces autograd functions, and parts whose input another part computes
    pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled_training(network, path=None, backend="aot_eager", **options):
    """The trained model, of which every call was compiled; recorded where there is a path."""
    made: dict[int, nn.Module] = {}

    def loss(model, inputs):
        if id(model) not in made:
            made.clear()
            made[id(model)] = torch.compile(model, backend=backend, **options)
        return network.loss(made[id(model)], inputs)

    torch._dynamo.reset()
    recorder = None if path is None else lambda model, optimizer: Recorder(model, optimizer, path, **network.options)
    return train(replace(network, name="compiled", loss=loss), recorder)


FULL = ["checkpointed", "bfloat16-autocast", "embedding-bag"]
PARTS = ["lstm"]


@pytest.mark.parametrize(("name", "full"), [*((name, True) for name in FULL), *((name, False) for name in PARTS)])
def test_networks_are_recorded_whole_and_keep_their_bits(tmp_path, monkeypatch, name, full):
    network = NETWORKS[name]
    monkeypatch.setitem(NETWORKS, "compiled", network)
    alone = compiled_training(network, fullgraph=full).state_dict()
    recorded = compiled_training(network, tmp_path / "m", fullgraph=full).state_dict()
    for key, value in recorded.items():
        assert torch.equal(value, alone[key]), key
    train(network, lambda model, optimizer: Recorder(model, optimizer, tmp_path / "eager", **network.options))
    memory, other = dualform.open(tmp_path / "m"), dualform.open(tmp_path / "eager")
    assert memory.info().slots == other.info().slots
    statuses = {layer.name: layer.status.name for layer in memory.info().layers}
    assert statuses == {layer.name: layer.status.name for layer in other.info().layers}
    for layer in statuses:
        keys, expected = memory.keys(layer), other.keys(layer)
        assert keys.shape == expected.shape
        assert np.allclose(keys, expected, rtol=1e-3, atol=1e-3), layer


def products():
    return nn.Sequential(nn.Linear(samples.D, 8, bias=False), nn.Linear(8, samples.CLASSES, bias=False))


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_by_inductor(tmp_path, monkeypatch):
    """In the short form a network of products alone, for which inductor calls no C++ compiler."""
    monkeypatch.setitem(NETWORKS, "compiled", NETWORKS["siamese"])
    network = NETWORKS["siamese"] if soaking() else replace(NETWORKS["mlp"], name="compiled", build=products)
    alone = compiled_training(network, backend="inductor", fullgraph=True).state_dict()
    recorded = compiled_training(network, tmp_path / "m", backend="inductor", fullgraph=True).state_dict()
    assert {key for key, value in recorded.items() if torch.equal(value, alone[key])} == alone.keys()
    reconstructions = dualform.open(tmp_path / "m").verify()
    assert all(reconstruction.reconstruction_error <= 1e-5 for reconstruction in reconstructions.values())


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def opened_on(model, path):
    return Opened(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5), path)


def compiled(function):
    return torch.compile(function, backend="aot_eager", fullgraph=True)


def run(opened, model, loss_of, steps=3):
    """Returns the inputs, and the weights before and after each step."""
    generator, inputs, snapshots = torch.Generator().manual_seed(1), [], [snapshot(model)]
    with opened.recorder:
        for _ in range(steps):
            inputs.append(torch.randn(5, 4, generator=generator))
            with opened.recorder.step():
                opened.optimizer.zero_grad()
                loss_of(inputs[-1])
                opened.optimizer.step()
            snapshots.append(snapshot(model))
    return inputs, snapshots


def test_equal_calls_are_slots_of_their_own_in_forward_order(tmp_path):
    model = Network()
    opened = opened_on(model, tmp_path / "m")

    @compiled
    def loss(x):
        same = model.second(x) + model.second(x)
        return (same * model.second(2 * x) * model.first(x)).mean()

    inputs, snapshots = run(opened, model, lambda x: loss(x).backward())
    assert opened.sink.defects == []
    assert (opened.sink.keys("second") == torch.cat([part for x in inputs for part in (x, x, 2 * x)]).numpy()).all()
    assert opened.sink.column("call") == ([0] * 5 + [1] * 5 + [2] * 5) * 3
    assert [layer.repeats for layer in opened.sink.layers] == [True, True]
    assert_rebuilt(opened.sink, snapshots)


def test_a_second_pass_back_through_the_same_calls(tmp_path):
    model = Network()
    opened = opened_on(model, tmp_path / "m")
    forward = compiled(model)

    def twice(x):
        loss = forward(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()

    _, snapshots = run(opened, model, twice)
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)


def test_other_sizes_modes_and_calls_outside_a_step(tmp_path):
    model = Network()
    opened = opened_on(model, tmp_path / "m")
    forward = compiled(model)

    def loss(x):
        forward(x[:3]).square().sum().backward()
        with torch.no_grad():
            forward(x)
        model.eval()
        forward(x).square().sum().backward()
        model.train()

    inputs, snapshots = run(opened, model, loss)
    forward(torch.ones(5, 4)).sum().backward()
    assert (opened.sink.keys("first") == torch.cat([part for x in inputs for part in (x[:3], x)]).numpy()).all()
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)


@pytest.mark.parametrize("how", ["wrapped", "in place", "a wrapped part"])
def test_models_given_compiled(tmp_path, how):
    model, twin = small_net(), small_net()
    given = trained = model
    if how == "wrapped":
        given = trained = torch.compile(model, backend="aot_eager")
    elif how == "in place":
        model.compile(backend="aot_eager")
    else:
        model[2] = torch.compile(model[2], backend="aot_eager")
    opened = opened_on(given, tmp_path / "m")
    snapshots = [snapshot(model)]
    with opened.recorder:
        for x, y in batches(3):
            with opened.recorder.step(label=y):
                learn(opened.optimizer, cross_entropy(trained(x), y))
            snapshots.append(snapshot(model))
        opened.recorder.query_set("test", batches(1)[0][0])
    assert opened.sink.layer_names == ["0", "2._orig_mod" if how == "a wrapped part" else "2", "4"]
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)
    assert opened.sink.query_sets["test"][0]["4"].shape == (8, 6)
    twin.load_state_dict({name.replace("_orig_mod.", ""): value for name, value in model.state_dict().items()})
    assert (opened.sink.query_sets["test"][2] == twin(batches(1)[0][0]).detach().numpy()).all()


@pytest.mark.parametrize(("part", "zeroed"), [(False, False), (True, True)], ids=["the model", "a part, zeroed"])
def test_what_ran_compiled_before_recording_began_is_refused(tmp_path, part, zeroed):
    model = small_net()
    if part:
        model[0] = torch.compile(model[0], backend="aot_eager")
    else:
        model = torch.compile(model, backend="aot_eager")
    x, y = batches(1)[0]
    cross_entropy(model(x), y).backward()
    opened = opened_on(model, tmp_path / "m")
    opened.optimizer.zero_grad()

    def train():
        with opened.recorder, opened.recorder.step(label=y):
            cross_entropy(model(x), y).backward()
            opened.optimizer.step()
            if zeroed:
                opened.optimizer.zero_grad()

    with pytest.raises(RecordingError) as raised:
        train()
    assert str(raised.value) == (
        f"{'Part ' + repr('0') + ' of the model' if part else 'The model'} was compiled by torch.compile before "
        "recording began, so its layers cannot be recorded. Enter the recorder before the first compiled call, or call "
        "torch._dynamo.reset() once it is entered."
    )


def test_calls_that_a_module_compiles_itself_notice_the_recorder(tmp_path):
    model = small_net()
    model.compile(backend="aot_eager")
    x, y = batches(1)[0]
    cross_entropy(model(x), y).backward()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder, opened.recorder.step(label=y):
        cross_entropy(model(x), y).backward()
    assert opened.sink.layer_names == ["0", "2", "4"]


def test_a_gradient_of_an_earlier_steps_compiled_pass_is_told_of(tmp_path):
    model = Network()
    opened = opened_on(model, tmp_path / "m")
    forward = compiled(model)
    with opened.recorder:
        for number in range(3):
            with opened.recorder.step():
                loss = forward(torch.ones(5, 4)).square().sum()
                if number == 1:
                    kept = forward(torch.ones(5, 4)).square().sum()
                if number == 2:
                    kept.backward()
                loss.backward()
    assert [len(opened.sink.parts(layer)) for layer in ("first", "second")] == [3, 3]
    reason = "the gradient of layer {0!r} arrived outside the step that its forward pass ran in, after step 1"
    assert opened.sink.defects == [(layer, 1, reason.format(layer)) for layer in ("second", "first")]


def test_compiled_code_that_says_nothing_is_no_exact_record(tmp_path):
    """As where it runs from a CUDA graph, or a compilation without hooks is taken again."""
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer, tmp_path / "m")
    forward = compiled(model)
    from dualform.record.taps import autograd

    with recorder:
        for number, (x, y) in enumerate(batches(6)):
            with recorder.step(label=y):
                optimizer.zero_grad()
                loss = cross_entropy(forward(x), y)
                silent = {h: autograd._JOINED.pop(h) for h in list(autograd._JOINED)[:1]} if number == 3 else {}
                loss.backward()
                autograd._JOINED.update(silent)
                optimizer.step()
    statuses = {layer.name: layer.status for layer in dualform.open(tmp_path / "m").info().layers}
    assert [status.name for status in statuses.values()] == ["approximate", "exact", "exact"]
    assert (
        "no call of the layer was seen, as where its weight is used elsewhere, or where compiled code runs from a "
        in (statuses["0"].reason)
    )


def test_the_operator_keeps_out_of_cuda_graphs():
    assert torch.Tag.cudagraph_unsafe in torch.ops.dualform.report.default.tags


def test_a_torch_without_ordered_effects_is_refused_compiled_models(tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "COMPILES", False)
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        RecordingError, match=r"^The model was compiled with torch\.compile, which dualform cannot record under torch "
    ):
        Recorder(torch.compile(model, backend="aot_eager"), optimizer, tmp_path / "m")
    Recorder(model, optimizer, tmp_path / "m")


def test_a_frozen_layer_has_no_slots_and_the_code_is_made_anew(tmp_path):
    model = Network()
    opened = opened_on(model, tmp_path / "m")
    forward = compiled(model)
    frozen = iter([False, True, False])

    def loss(x):
        model.first.requires_grad_(not next(frozen))
        forward(x).square().sum().backward()

    _, snapshots = run(opened, model, loss)
    assert [step for step, _ in opened.sink.parts("first")] == [0, 2]
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)

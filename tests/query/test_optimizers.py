"""Networks trained by torch's optimizers, from recorder to masked weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import Inexact, RecordingError
from dualform.query.weights import trajectory
from tests.cases import some
from tests.record.listed import batches, small_net, snapshot
from tests.trainings import learn

STEPS = 30
WAYS = {
    "amsgrad": (optim.Adam, {"lr": 3e-3, "amsgrad": True, "weight_decay": 0.1}),
    "amsgrad, fused": (optim.AdamW, {"lr": 3e-3, "amsgrad": True, "fused": True}),
    "nadam": (optim.NAdam, {"lr": 3e-3, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": (optim.RAdam, {"lr": 3e-2}),
    "adamax": (optim.Adamax, {"lr": 3e-3, "weight_decay": 0.1}),
    "rmsprop": (optim.RMSprop, {"lr": 3e-3}),
    "rmsprop, momentum": (optim.RMSprop, {"lr": 1e-3, "momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    "adagrad": (optim.Adagrad, {"lr": 5e-2, "lr_decay": 0.05, "initial_accumulator_value": 0.1, "foreach": True}),
    "adadelta": (optim.Adadelta, {"lr": 1.0}),
    "asgd": (optim.ASGD, {"lr": 0.1}),
    "rprop": (optim.Rprop, {"lr": 1e-3}),
    "adafactor": (optim.Adafactor, {"lr": 1e-2, "weight_decay": 0.1}),
}


def trained(model, optimizer, x, y):
    learn(optimizer, cross_entropy(model(x), y))


def record(path, way, before=0, between=None):
    """The parameters once so many steps were recorded; `before`: updates that were not."""
    model, (kind, options) = small_net(), WAYS[way]
    optimizer = kind(model.parameters(), **options)
    for x, y in batches(before, seed=2):
        trained(model, optimizer, x, y)
    history = [snapshot(model)]
    with dualform.Recorder(model, optimizer, path) as recorder:
        for number, (x, y) in enumerate(batches(STEPS)):
            optimizer.param_groups[0]["lr"] = options["lr"] / (1 + number / 20)
            with recorder.step(label=y):
                trained(model, optimizer, x, y)
            if between is not None:
                between(number, model)
            history.append(snapshot(model))
    return history


@pytest.fixture(scope="module", params=WAYS)
def recorded(request, tmp_path_factory):
    """A memory, and the parameters at each step of its training; three updates came before."""
    path = tmp_path_factory.mktemp("optimizers") / "m"
    history = record(path, request.param, before=3)
    with dualform.open(path) as memory:
        yield memory, history


def test_the_record_rebuilds_the_weights_at_any_step(recorded):
    memory, history = recorded
    for layer, found in some(memory.verify().items()):
        assert found.reconstruction_error <= 1e-5, layer
        assert found.exact
    for at_step in (0, 1, 17, STEPS):
        found = memory.weights(at_step=at_step, allow_inexact=at_step in (1, 17))  # Adafactor is not watched
        for parameter, weight in history[at_step].items():
            assert found[parameter].numpy() == pytest.approx(weight, abs=2e-6)


def test_the_shares_of_masks_add_up_to_the_whole(recorded):
    memory, _ = recorded

    def of(where):
        return memory.weights(where)["2.weight"].double()

    whole, parts = of(None), [of(f"label = {label}") for label in range(3)]
    rests = [of(f"label <> {label}") for label in range(3)]
    # What no slot brought, W_0 above all, stands in each answer once.
    twice = [part + rest for part, rest in zip(parts, rests, strict=True)]
    close = 1e-6 * max(float(one.abs().max()) for one in (*parts, *rests))
    assert all(torch.allclose(one, twice[0], rtol=0, atol=2 * close) for one in twice)
    assert torch.allclose(sum(parts), 2 * twice[0] - whole, rtol=0, atol=6 * close)
    assert all(float((part - whole).norm()) > 0.01 * float(whole.norm()) for part in parts)


@pytest.mark.parametrize("way", ["rmsprop, momentum", "rprop"])
def test_a_weight_that_is_moved_by_hand_dates_the_departure(tmp_path, way):
    def nudge(number, model):
        if number == 12:
            with torch.no_grad():
                model[2].weight.add_(0.05 * torch.randn(6, 7))

    record(tmp_path / "m", way, between=nudge)
    with dualform.open(tmp_path / "m") as memory:
        statuses = {layer.name: layer.status for layer in memory.info().layers}
        assert (statuses["0"].name, statuses["4"].name) == ("exact", "exact")
        assert (statuses["2"].name, statuses["2"].since) == ("approximate", 12)


def record_plainly(path, model, optimizer, steps):
    with dualform.Recorder(model, optimizer, path) as recorder:
        for x, y in batches(steps):
            with recorder.step(label=y):
                trained(model, optimizer, x, y)


def test_what_muon_trained_is_exact_to_bfloat16(tmp_path):
    torch.manual_seed(0)
    layers = (nn.Linear(5, 16, bias=False), nn.Linear(16, 8, bias=False), nn.Linear(8, 3, bias=False))
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    record_plainly(tmp_path / "m", model, optim.Muon(model.parameters(), lr=1e-2), STEPS)
    with dualform.open(tmp_path / "m") as memory:
        assert [layer.status.name for layer in memory.info().layers] == ["approximate"] * 3
        for layer, found in memory.verify().items():
            assert found.status.name == "exact to bfloat16", layer
            assert 0 < found.reconstruction_error < 2.0**-7
        found = memory.weights()
        assert {status.name for status in found.statuses.values()} == {"exact to bfloat16"}
        for name, weight in snapshot(model).items():
            assert found[name].numpy() == pytest.approx(weight, abs=2e-3)
        with pytest.raises(Inexact, match="Muon was not watched while training"):
            memory.weights(at_step=12)


def test_muon_and_another_optimizer_train_one_layer(tmp_path):
    """Its weight by the one, its bias by the other."""
    model = small_net()
    weights, biases = ([p for p in model.parameters() if p.ndim == axes] for axes in (2, 1))
    optimizers = [optim.Muon(weights, lr=1e-2), optim.AdamW(biases, lr=1e-2)]
    with dualform.Recorder(model, optimizers, tmp_path / "m") as recorder:
        for x, y in batches(STEPS):
            with recorder.step(label=y):
                model.zero_grad()
                cross_entropy(model(x), y).backward()
                for optimizer in optimizers:
                    optimizer.step()
    with dualform.open(tmp_path / "m") as memory:
        for layer, found in some(memory.verify().items()):
            assert found.status.name == "exact to bfloat16", layer
        for name, weight in some(snapshot(model).items()):
            assert memory.weights()[name].numpy() == pytest.approx(weight, abs=2e-3 if weight.ndim == 2 else 2e-6)


@pytest.mark.parametrize("way", ["amsgrad", "rmsprop, momentum"])
def test_a_weight_is_run_again_in_pieces_as_it_is_whole(tmp_path, way, monkeypatch):
    """The state begins without what the first update brings."""
    record(tmp_path / "m", way)
    answers = []
    for piece in (1 << 15, 11):
        monkeypatch.setattr(trajectory, "_PIECE", piece)
        with dualform.open(tmp_path / "m") as memory:
            answers.append([memory.weights(where) for where in (None, "label = 1")])
    for one, other in some(zip(*answers, strict=True)):
        for name, weight in one.items():
            assert torch.equal(weight, other[name])


class Attending(nn.Module):
    """q, k and v are blocks of one parameter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        x = x[:, :, None].expand(-1, -1, 4)
        return self.head(self.attention(x, x, x)[0].mean(1))


def test_a_rule_of_whole_matrices_does_not_answer_for_a_part_of_one(tmp_path):
    model = Attending()
    record_plainly(tmp_path / "m", model, optim.Adafactor(model.parameters()), 3)
    with dualform.open(tmp_path / "m") as memory:
        statuses = {layer.name: layer.status for layer in memory.info().layers}
        assert statuses["attention.q"].name == "scores only"
        assert "Adafactor is run again on whole parameters, of which this layer stands for a part" in (
            statuses["attention.q"].reason
        )
        reconstructions = memory.verify()
        assert reconstructions["attention.q"].reconstruction_error is None
        assert reconstructions["head"].exact
        assert memory.topk("attention.q", np.ones(4, np.float32), k=1).ids.shape == (1,)


def test_adafactor_is_not_followed_where_a_weight_has_more_than_two_axes_and_elsewhere_it_is(tmp_path, capsys):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 4, 3), nn.Flatten(), nn.Linear(12, 3))
    model.register_parameter("position", nn.Parameter(torch.zeros(1, 1, 5)))  # of no layer
    record_plainly(tmp_path / "m", model, optim.Adafactor(model.parameters(), lr=1e-2), STEPS)
    reason = "Adafactor treats the last two axes of a parameter of 3 as a matrix, and this layer all of them"
    assert f"1: only scores: {reason}" in capsys.readouterr().err
    with dualform.open(tmp_path / "m") as memory:
        found = memory.verify()
        assert (found["1"].status.name, found["1"].status.reason) == ("scores only", f"{reason}.")
        assert found["3"].exact


@pytest.mark.parametrize("sizes", [(5, 1), (1, 3)], ids=str)
def test_adafactor_goes_on_with_what_it_kept_of_one_row_or_column(tmp_path, sizes):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, sizes[0]), nn.Linear(sizes[0], sizes[1]), nn.Linear(sizes[1], 3))
    optimizer = optim.Adafactor(model.parameters(), lr=1e-2)
    for x, y in batches(3, seed=2):
        trained(model, optimizer, x, y)
    record_plainly(tmp_path / "m", model, optimizer, STEPS)
    with dualform.open(tmp_path / "m") as memory:
        for layer, found in some(memory.verify().items()):
            assert found.exact, layer
            assert found.reconstruction_error <= 1e-5


def test_lbfgs_is_refused_where_recording_starts(tmp_path):
    model = small_net()
    with pytest.raises(RecordingError) as refused:
        dualform.Recorder(model, optim.LBFGS(model.parameters()), tmp_path / "m")
    assert refused.value.message == (
        "dualform cannot follow the updates of LBFGS: its line search takes several gradients in one update."
    )
    assert "values=False" in refused.value.hint
    assert not (tmp_path / "m").exists()
    dualform.Recorder(model, optim.LBFGS(model.parameters()), tmp_path / "m", values=False)


def test_sparse_adam_is_refused_by_name(tmp_path):
    model = small_net()
    with pytest.raises(
        RecordingError, match="follow the updates of SparseAdam: it moves only the rows of a sparse gradient"
    ):
        dualform.Recorder(model, optim.SparseAdam(model.parameters()), tmp_path / "m")

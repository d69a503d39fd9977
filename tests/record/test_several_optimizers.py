"""Several optimizers at once: each updates parameters of its own, by its own rule and at its own steps."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

from dualform.errors import BadInput, Inexact, RecordingError
from dualform.record.recorder import Recorder
from tests.record.optimizer_trainings import (
    CLOSE,
    ROWS,
    closed as closed,
    distances,
    network,
    recorded,
    sgd_and_adamw,
    together,
)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    path = tmp_path_factory.mktemp("several") / "m"
    return path, *recorded(path, together)


def test_every_step_is_rebuilt_by_the_rule_of_each_parameter(both):
    _, memory, history = both
    assert max(distances(memory, history).values()) < CLOSE
    for name, reconstruction in memory.verify().items():
        assert reconstruction.exact, name
        assert reconstruction.reconstruction_error < CLOSE, name
    for step in (2, len(history) - 1):
        for name, own in memory.weights(at_step=step).items():
            assert torch.allclose(own, history[step][name], atol=1e-6), (step, name)


def test_the_training_is_the_unrecorded_one(both):
    _, _, history = both
    model = network()
    optimizers = sgd_and_adamw(model)

    class Nothing:
        def step(self, **_):
            return warnings.catch_warnings()

    together(model, optimizers, Nothing(), lambda: None)
    assert all(torch.equal(own, history[-1][name]) for name, own in model.state_dict().items())


def test_a_mask_goes_through_each_rule(both):
    """SGD's part against a rerun in NumPy; AdamW's shares add up to the whole."""
    _, memory, history = both
    masked = memory.weights(where="label <> 1")
    rest = memory.weights(where="label = 1")
    for name, whole in memory.weights().items():
        shares = masked[name].double() + rest[name].double() - whole.double()
        none = memory.weights(where="label <> 1", at_step=0)[name] if name != "2.bias" else history[0][name]
        if name in ("2.bias", "4.weight", "4.bias"):
            decay = (1 - 0.01 * 0.01) ** (len(history) - 1)  # the decoupled one shrinks W_0, which no slot brought
            assert torch.allclose(shares, decay * none.double(), atol=1e-5), name
    layer = memory._view.snapshot.layer("0")
    keys, values = (np.asarray(part) for part in _rows(memory, layer))
    kept = memory.slots(np.arange(len(values)))["label"] != 1
    weight, momentum = history[0]["0.weight"].double().numpy(), 0.0
    factors = memory.sql("SELECT step, factor FROM factors WHERE parameter = '0.weight' ORDER BY step").records()
    for row in factors:
        own = slice(ROWS * row["step"], ROWS * (row["step"] + 1))
        gradient = row["factor"] * (values[own] * kept[own, None]).T @ keys[own] + 0.01 * weight
        momentum = 0.9 * momentum + gradient
        weight = weight - 0.05 * momentum
    assert np.allclose(masked["0.weight"].numpy(), weight, atol=1e-6)


def _rows(memory, layer):
    snapshot = memory._view.snapshot
    keys, values = snapshot.keys(layer.name), snapshot.values(layer.name)
    count = values.rows
    return keys.entry_block(0, count).astype(np.float64), values.block(0, count).astype(np.float64)


def test_what_cannot_be_told_of_a_layer_is_refused_for_its_own_optimizer(both):
    _, memory, _ = both
    figures = memory.cancellation("label <> 1")
    assert list(figures) == ["0", "2"]  # of weights alone
    assert list(figures.concentrations) == ["4"]
    with pytest.raises(
        Inexact,
        match="Single slots have no term of their own in layer '2': it was trained with AdamW, which "
        "scales all gradients of a step together",
    ):
        memory.output("2", np.zeros((1, 6), np.float32), kernel="softmax", temperature=1.0)
    memory.output("0", np.zeros((1, 5), np.float32), kernel="softmax", temperature=1.0)


def test_the_tables_name_groups_and_steps_by_optimizer(both):
    path, memory, _ = both
    groups = memory.sql('SELECT "group", count(*) AS n, min(lr) AS lr FROM parameter_groups GROUP BY 1 ORDER BY 1')
    assert groups.records() == [{"group": g, "n": 6, "lr": lr} for g, lr in enumerate((0.05, 0.02, 0.01))]
    steps = memory.sql("SELECT step, lr, updated, first_step FROM steps ORDER BY step").records()
    assert steps == [{"step": n, "lr": 0.05, "updated": True, "first_step": n} for n in range(6)]
    said = json.loads((path / "memory.json").read_text())
    assert [own["rule"] for own in said["optimizers"]] == ["sgd", "adamw"]
    assert said["optimizers"][1]["blocks"] == ["2.bias", "4.weight", "4.bias"]
    # A dualform that knows of one optimizer alone follows none of them.
    assert said["optimizer"]["rule"] == ""
    assert said["optimizer"]["name"] == "SGD and AdamW"
    assert memory.info().optimizer == "SGD and AdamW"


def test_a_memory_of_one_optimizer_says_what_it_said_before(tmp_path):
    def train(model, optimizers, recorder, told):
        together(model, optimizers, recorder, told, steps=2)

    memory, _ = recorded(tmp_path / "m", train, make=lambda model: [torch.optim.SGD(model.parameters(), lr=0.1)])
    said = json.loads((tmp_path / "m" / "memory.json").read_text())
    assert "optimizers" not in said
    assert said["optimizer"] == {"name": "SGD", "rule": "sgd", "reason": ""}
    assert "factors" not in said["columns"]
    assert memory.verify()["0"].exact


def test_one_without_a_rule_leaves_the_others_their_weights(tmp_path):
    class Unknown(torch.optim.SGD):
        pass

    def make(model):
        own = [*model[4].parameters()]
        others = [p for p in model.parameters() if all(p is not other for other in own)]
        return [torch.optim.AdamW(others, lr=0.01), Unknown(own, lr=0.1)]

    with pytest.warns(RuntimeWarning, match="trained with Unknown, for which there is no update rule"):
        memory, history = recorded(tmp_path / "m", together, make=make)
    model = network()
    summary = Recorder(model, make(model), tmp_path / "unused").summary
    assert summary.answers.startswith("the network was trained with Unknown, for which there is no update rule")
    assert summary.answers.endswith("; AdamW: scores, outputs and weights, also with filters and as of every step")
    found = memory.verify()
    assert found["0"].exact
    assert found["2"].exact
    assert found["0"].reconstruction_error < CLOSE
    assert found["4"].status.name == "scores only"
    assert "Unknown" in found["4"].reason
    x = np.ones((1, 5), np.float32)
    live = x @ history[-1]["0.weight"].numpy().T + history[-1]["0.bias"].numpy()
    assert np.allclose(memory.output("0", x), live, atol=1e-5)
    assert memory.topk("4", np.ones((1, 6), np.float32), k=2).ids.tolist()
    with pytest.raises(Inexact, match="Layer '4' cannot be reconstructed"):
        memory.output("4", np.ones((1, 6), np.float32))


def test_what_cannot_be_a_set_of_optimizers_is_refused(tmp_path):
    model = network()
    one = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.Adam(model[4].parameters())
    with pytest.raises(
        RecordingError, match=r"'4.weight' is updated by optimizer 0 \(SGD\) and by optimizer 1 \(Adam\)"
    ):
        Recorder(model, [one, other], tmp_path / "m")
    with pytest.raises(BadInput, match="optimizer must not be an empty list"):
        Recorder(model, [], tmp_path / "m")
    with pytest.raises(BadInput, match="optimizer names the same optimizer twice"):
        Recorder(model, [one, one], tmp_path / "m")
    with pytest.raises(BadInput, match="optimizer must be a torch optimizer, not int"):
        Recorder(model, [one, 3], tmp_path / "m")

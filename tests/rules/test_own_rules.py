"""An optimizer of one's own is followed once its rule is registered, whatever kind of rule it is; and the pages list
all optimizers that have a rule, and all that a rule may say.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import dualform
from dualform import rules
from dualform.errors import Inexact
from dualform.query.weights import reconstruction
from dualform.query.weights.reconstruction import BOUND
from dualform.rules.half_precision_rule import RoundedRule
from dualform.rules.update_rule import LinearRule, UpdateRule
from tests.cases import some
from tests.record.listed import batches, small_net, snapshot
from tests.rules.own import Heavy, Normed, Plain, Sign
from tests.trainings import learn

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"
KINDS = {"sign": Sign, "normed": Normed, "plain": Plain, "heavy": Heavy}
STEPS = 30


def record(path, kind, between=None, steps=STEPS):
    model = small_net()
    optimizer = kind(model.parameters(), lr=0.1 if kind is Plain else 0.01)
    history = [snapshot(model)]
    with dualform.Recorder(model, optimizer, path) as recorder:
        for number, (x, y) in enumerate(batches(steps)):
            with recorder.step(label=y):
                learn(optimizer, cross_entropy(model(x), y))
            if between is not None:
                between(number, model)
            history.append(snapshot(model))
    return model, history


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """By the name of an optimizer: its memory, which is only read, its model, and the parameters at each step."""
    made = {}

    def of(name):
        if name not in made:
            path = tmp_path_factory.mktemp("own") / "m"
            made[name] = path, *record(path, KINDS[name])
        return made[name]

    return of


@pytest.mark.parametrize("name", KINDS)
def test_the_record_rebuilds_the_weights_at_any_step_and_shares_add_up(recorded, name):
    path, _, history = recorded(name)
    with dualform.open(path) as memory:
        for layer, found in some(memory.verify().items()):
            assert found.reconstruction_error <= 1e-5, layer
            assert found.exact
        for at_step in (0, 1, 17, STEPS):
            found = memory.weights(at_step=at_step, allow_inexact=True)
            for parameter, weight in history[at_step].items():
                assert found[parameter].numpy() == pytest.approx(weight, abs=1e-6)
        start = memory.weights(at_step=0, allow_inexact=True)["2.weight"].double()
        whole, *parts = (
            memory.weights(where, at_step=STEPS - 1, allow_inexact=True)["2.weight"].double() - start
            for where in (None, "label = 0", "label = 1", "label = 2")
        )
        assert torch.allclose(sum(parts), whole, atol=1e-6)
        assert all(float(part.norm()) > 0.05 * float(whole.norm()) for part in parts)


def test_what_depends_on_the_whole_gradient_gives_no_coefficient(recorded):
    with dualform.open(recorded("sign")[0]) as memory:
        with pytest.raises(Inexact, match="this run used Sign"):
            memory.coefficients("0", [0])
        found = memory.cancellation("label = 1")
        assert dict(found) == {}
        assert list(found.concentrations) == ["0", "2", "4"]


def nudging(layer, by):
    """Changes a weight that nobody records, once 12 steps were taken."""

    def nudge(number, model):
        if number == 12:
            model[layer].weight.data.add_(by)

    return nudge


def test_a_rule_of_single_numbers_is_watched_through_entries(tmp_path):
    _, history = record(tmp_path / "m", Sign, nudging(2, 0.05 * torch.randn(6, 7)))
    with dualform.open(tmp_path / "m") as memory:
        statuses = {layer.name: layer.status for layer in memory.info().layers}
        assert (statuses["0"].name, statuses["4"].name) == ("exact", "exact")
        assert (statuses["2"].name, statuses["2"].since) == ("approximate", 12)
        assert statuses["2"].error == pytest.approx(memory.verify()["2"].reconstruction_error, rel=1e-3)
        found = memory.output("2", np.ones((1, 7), np.float32), at_step=12)
        expected = history[12]["2.weight"].sum(1) + history[12]["2.bias"]
        assert np.asarray(found)[0] == pytest.approx(expected, abs=1e-5)


NOT_WATCHED = "Normed was not watched while training; `verify` measures the end of it."


def test_a_rule_of_whole_matrices_is_graded_by_verify_alone(recorded):
    path, model, _ = recorded("normed")
    with dualform.open(path) as memory:
        status = memory.info().layers[0].status
        assert (status.name, status.error, status.reason) == ("approximate", None, NOT_WATCHED)
        found, answer = memory.weights(), memory.output("2", np.ones((1, 7), np.float32))
        reconstructions = memory.verify()
        assert all(one.status.name == "exact" for one in reconstructions.values())
        assert found.statuses == {layer: one.status for layer, one in reconstructions.items()}
        assert answer.status == reconstructions["2"].status
        for name, weight in snapshot(model).items():
            assert found[name].numpy() == pytest.approx(weight, abs=1e-6)
        assert memory.info().layers[0].status == status  # which still reads no slot


def test_the_reconstruction_is_measured_once(recorded, monkeypatch):
    measured = []
    monkeypatch.setattr(
        reconstruction, "_certify", lambda view, layer, check, of=reconstruction._certify: measured.append(layer.name)
        or of(view, layer, check),
    )  # fmt: skip
    with dualform.open(recorded("normed")[0]) as memory:
        memory.info()
        memory.weights(at_step=3, allow_inexact=True)
        assert measured == []
        memory.output("2", np.ones((1, 7), np.float32))
        assert measured == ["2"]
        memory.weights("label = 1")
        memory.verify()
    assert sorted(measured) == ["0", "2", "4"]


def test_before_the_end_a_rule_that_was_not_watched_is_answered_on_demand_alone(recorded):
    path, _, history = recorded("normed")
    with dualform.open(path) as memory:
        with pytest.raises(
            Inexact, match="Layer '2' cannot be reconstructed exactly: Normed was not watched"
        ) as refused:
            memory.output("2", np.ones((1, 7), np.float32), at_step=12)
        assert refused.value.hint == (
            "Pass at_step=None for the end of the training, which is measured, or allow_inexact=True."
        )
        with pytest.raises(Inexact) as whole:
            memory.weights(at_step=12)
        assert whole.value.hint == refused.value.hint
        found = memory.weights(at_step=12, allow_inexact=True)
        assert found["2.weight"].numpy() == pytest.approx(history[12]["2.weight"], abs=1e-6)
        with pytest.raises(Inexact, match="Layer '0' cannot be reconstructed exactly: Normed was not watched"):
            memory.cancellation("label = 1", at_step=12)
        assert len(memory.cancellation("label = 1", at_step=12, allow_inexact=True).concentrations) == 3


def test_verify_finds_what_nobody_watched(tmp_path):
    record(tmp_path / "m", Normed, nudging(0, 0.05))
    with dualform.open(tmp_path / "m") as memory:
        status = memory.verify()["0"].status
        assert status.name == "approximate"
        assert status.error > 0.05
        if status.error > BOUND:
            with pytest.raises(Inexact, match="Layer '0' cannot be reconstructed exactly: "):
                memory.output("0", np.ones((1, 5), np.float32))
        found = memory.output("0", np.ones((1, 5), np.float32), allow_inexact=True)
        assert (found.status, found.unrecorded_change) == (status, pytest.approx(status.error))


def test_a_memory_of_a_rule_that_is_not_here_gives_scores_only(recorded, monkeypatch):
    path, *_ = recorded("sign")
    monkeypatch.delitem(rules._BY_TYPE, "tests.rules.own.Sign")
    with dualform.open(path) as memory:
        status = memory.info().layers[0].status
        assert status.name == "scores only"
        assert status.reason == "its update rule 'sign' is not known here (dualform.rules.register tells of it)."
        assert memory.topk("0", np.ones(5, np.float32), k=1).ids.shape == (1,)
        with pytest.raises(Inexact, match="update rule 'sign' is not known here"):
            memory.weights()


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                average = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
                beta1, beta2 = group["betas"]
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                move = average.mul(beta1).add_(parameter.grad, alpha=1 - beta1).sign_()
                parameter.add_(move, alpha=-group["lr"])
                average.mul_(beta2).add_(parameter.grad, alpha=1 - beta2)


def test_the_rule_of_the_page_is_right(tmp_path, monkeypatch):
    monkeypatch.setattr(rules, "_BY_TYPE", dict(rules._BY_TYPE))
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    of_page = {}
    exec(compile(code, str(PAGE), "exec"), of_page)
    assert rules.of_type(type("Lion", (), {"__module__": "my_package"})).name == "lion"
    rules.register(Lion, of_page["Lion"]())
    _, history = record(tmp_path / "m", Lion)
    with dualform.open(tmp_path / "m") as memory:
        for found in memory.verify().values():
            assert found.reconstruction_error <= 1e-5
            assert found.exact
        for parameter, weight in history[17].items():
            assert memory.weights(at_step=17)[parameter].numpy() == pytest.approx(weight, abs=1e-6)


ROOT = Path(__file__).parents[2]
LISTS = {
    "docs/exactness.md": r"\*\*Optimizers\.\*\* (.+?) have rules",
    "docs/rules.md": r"that have rules:\s+(.+?)\.",
}


@pytest.mark.parametrize("page", LISTS)
def test_the_optimizers_that_a_page_lists_are_those_of_the_table(page):
    (listed,) = re.findall(LISTS[page], (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    found = re.split(r",\s+|\s+and\s+", listed)
    ours = [name.rpartition(".")[2] for name in rules._BY_TYPE if name.startswith("torch.optim.")]
    assert sorted(found) == sorted(ours)


@pytest.mark.parametrize("protocol", [UpdateRule, LinearRule, RoundedRule], ids=lambda kind: kind.__name__)
def test_all_that_a_rule_may_say_stands_on_its_page(protocol):
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    said = {*vars(protocol), *protocol.__annotations__}
    said = {name for name in said if not name.startswith("_")}
    assert said
    assert [name for name in sorted(said) if not re.search(rf"`{name}\b|\b(def )?{name}( =|\()", page)] == []

"""Several optimizers at once: each updates its own parameters, by its own rule, at its own steps or passes."""

from __future__ import annotations

import copy
import json
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import BadInput, Inexact, RecordingError
from dualform.query.engine import Engine
from dualform.query.weights.trajectory import build, every_slot
from dualform.record.recorder import Recorder
from tests.record.listed import rows_of, small_net
from tests.record.resumed_training import ROWS, batch
from tests.trainings import learn

CLOSE = 1e-5


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


def sgd_and_adamw(model: nn.Sequential) -> list[torch.optim.Optimizer]:
    """The middle layer's weight is SGD's, its bias AdamW's."""
    weights = [model[0].weight, model[0].bias, model[2].weight]
    groups = [{"params": weights[:1]}, {"params": weights[1:], "lr": 0.02}]
    sgd = torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01)
    return [sgd, torch.optim.AdamW([model[2].bias, *model[4].parameters()], lr=0.01)]


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return copy.deepcopy(model.state_dict())


def distances(memory, history) -> dict[tuple[int, str], float]:
    """By step and parameter: how far the record alone is from the live weights, relative to the distance they moved."""
    view, found = memory._view, {}
    for step, live in enumerate(history):
        for layer in view.snapshot.layers.values():
            for name, own in build(view, layer, every_slot(view), step, lambda: None).items():
                now = live[name].double().numpy()
                way = np.linalg.norm(history[-1][name].double().numpy() - history[0][name].double().numpy())
                found[step, name] = float(np.linalg.norm(own - now)) / max(float(way), 1e-3)
    return found


def recorded(path, train, model=None, make=sgd_and_adamw, **options):
    """`train(model, optimizers, recorder, told)`, which tells after each step."""
    model = model or network()
    optimizers, history = make(model), [state(model)]
    with Recorder(model, optimizers, path, **options) as recorder:
        train(model, optimizers, recorder, lambda: history.append(state(model)))
    memory = dualform.open(path)
    _OPENED.append(memory)
    return memory, history


_OPENED = list[Engine]()


@pytest.fixture(autouse=True, scope="module")
def closed():
    yield
    for memory in _OPENED:
        memory.close()


def together(model, optimizers, recorder, told, twice=None):
    """All of them at each step; `twice`: the step at which the second one updates once more."""
    for number in range(6):
        x, y = batch(number)
        with recorder.step(label=y):
            for optimizer in optimizers:
                optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            for optimizer in [*optimizers, *(optimizers[1:] if number == twice else ())]:
                optimizer.step()
        told()


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
    for allow_inexact in (False, True):
        with pytest.raises(Inexact, match="Layer '4' cannot be reconstructed") as refused:
            memory.weights(allow_inexact=allow_inexact)
        assert refused.value.hint == "Ask for the output of single layers instead: 0, 2."


@pytest.mark.parametrize(
    ("optimizers", "error", "said"),
    [
        (
            lambda model: [torch.optim.SGD(model.parameters()), torch.optim.Adam(model[4].parameters())],
            RecordingError,
            r"'4.weight' is updated by optimizer 0 \(SGD\) and by optimizer 1 \(Adam\)",
        ),
        (lambda model: [], BadInput, "optimizer must not be an empty list"),
        (
            lambda model: [torch.optim.SGD(model.parameters())] * 2,
            BadInput,
            "optimizer names the same optimizer twice",
        ),
        (
            lambda model: [torch.optim.SGD(model.parameters()), 3],
            BadInput,
            "optimizer must be a torch optimizer, not int",
        ),
    ],
    ids=["shared", "none", "twice", "a number"],
)
def test_what_cannot_be_a_set_of_optimizers_is_refused(tmp_path, optimizers, error, said):
    model = network()
    with pytest.raises(error, match=said):
        Recorder(model, optimizers(model), tmp_path / "m")


def stepped_in_backward(model, make):
    """An optimizer for each parameter, which steps as soon as the gradient is there."""
    optimizers = {parameter: make([parameter]) for parameter in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step)
    return list(optimizers.values())


def test_optimizers_that_step_inside_the_backward_pass_are_refused_for_that(tmp_path):
    model = small_net()
    optimizers = stepped_in_backward(model, lambda own: torch.optim.AdamW(own, lr=0.01))
    x, y = batch(0)
    made = dualform.Recorder(model, optimizers, tmp_path / "m", quiet=True)
    with pytest.raises(RecordingError) as refused, made, made.step(label=y):
        cross_entropy(model(x), y).backward()
    assert str(refused.value) == (
        "optimizers stepped inside the backward pass of step 0, before the gradients of optimizer 3 (AdamW) "
        "came, but slots of a step are made at its first update. Step the optimizers after loss.backward() has "
        "returned, not in "
        "hooks of their parameters."
    )
    assert not (tmp_path / "m").exists()


def test_optimizers_that_step_inside_the_backward_pass_of_one_layer_are_recorded(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    optimizers = stepped_in_backward(model, lambda own: torch.optim.AdamW(own, lr=0.01))
    with dualform.Recorder(model, optimizers, tmp_path / "m", quiet=True) as recorder:
        for number in range(6):
            x, y = batch(number)
            with recorder.step(label=y):
                cross_entropy(model(x), y).backward()
    with dualform.open(tmp_path / "m") as memory:
        assert all(own.exact and not own.reason for own in memory.verify().values())
        assert torch.allclose(memory.weights()["weight"], model.weight.detach(), atol=1e-5)


@pytest.mark.parametrize("cleared", [False, True])
def test_what_waits_for_an_optimizer_that_does_not_update_is_bounded(tmp_path, monkeypatch, cleared):
    monkeypatch.setattr("dualform.record.audit.pending.MOST", 6)
    waiting = []

    def train(model, optimizers, recorder, told):
        for number in range(16):
            x, y = batch(number)
            with recorder.step(label=y):
                optimizers[0].zero_grad()
                if cleared:
                    optimizers[1].zero_grad()
                cross_entropy(model(x), y).backward()
                optimizers[0].step()
                if number == 14:
                    optimizers[1].step()
            waiting.append(len(recorder._controller.session.updates._each[1]._pending.steps))
            told()

    memory, history = recorded(tmp_path / "m", train)
    assert max(waiting) == 7
    assert max(distances(memory, history).values()) < CLOSE
    own = [row for row in rows_of(tmp_path / "m", "factors") if (row["parameter"], row["step"]) == ("4.weight", 14)]
    assert {row["first_step"] for row in own} == {14 if cleared else 0}


def test_an_optimizer_that_updates_twice_is_named(tmp_path):
    memory, _ = recorded(tmp_path / "m", partial(together, twice=2))
    found = memory.verify()
    assert found["0"].exact
    assert "optimizer 1 (AdamW) stepped twice inside step 2" in found["4"].reason
    assert not found["4"].exact


@settings(max_examples=6, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.sampled_from(["none", "inside", "after"])] * 2, st.booleans(), st.booleans()),
        min_size=2,
        max_size=6,
    )
)
def test_any_course_of_updates_is_followed(tmp_path_factory, course):
    """By step, when each optimizer updates, if at all, and whether its gradients are cleared after the step."""

    def train(model, optimizers, recorder, told):
        for number, (*when, first_cleared, second_cleared) in enumerate(course):
            x, y = batch(number)
            with recorder.step(label=y):
                cross_entropy(model(x), y).backward()
                for optimizer, moment in zip(optimizers, when, strict=True):
                    if moment == "inside":
                        optimizer.step()
            for optimizer, moment, cleared in zip(optimizers, when, (first_cleared, second_cleared), strict=True):
                if moment == "after":
                    optimizer.step()
                if cleared or moment != "none":
                    optimizer.zero_grad()
            told()

    path = tmp_path_factory.mktemp("course") / "m"
    memory, history = recorded(path, train)
    assert max(distances(memory, history).values()) < 3 * CLOSE
    found = [(row["step"], row["updated"]) for row in rows_of(path, "steps")]
    assert found == [(n, set(own[:2]) != {"none"}) for n, own in enumerate(course)]


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.maker = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 5))
        self.judge = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))

    def losses(self, number):
        """The judge's and the maker's, each to be called when its pass is due."""
        true, _ = batch(number)
        noise = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(-number - 1 & 0xFFFF))

        def of_judge():
            fake = self.maker(noise).detach()
            return self.judge(fake).exp().mean() - self.judge(true).mean()

        return of_judge, lambda: -self.judge(self.maker(noise)).mean()


def adversaries(model):
    return [torch.optim.Adam(model.judge.parameters(), lr=0.01), torch.optim.SGD(model.maker.parameters(), lr=0.1)]


def test_a_forward_pass_that_two_steps_share(tmp_path):
    def train(model, optimizers, recorder, told):
        for number in range(6):
            x, _ = batch(number)
            with recorder.step() as first:
                made = model.maker(x[:, :3])
                learn(optimizers[0], model.judge(made.detach()).exp().mean())
            assert first.updated
            told()
            with recorder.step() as second:
                second.continues(first)
                learn(optimizers[1], -model.judge(made).mean())
            told()

    memory, history = recorded(tmp_path / "m", train, Adversaries(), adversaries)
    assert max(distances(memory, history).values()) < CLOSE
    assert all(reconstruction.exact for reconstruction in memory.verify().values())


def test_a_step_continues_the_one_right_before_it_alone(tmp_path):
    """Whatever came of that one; of another one's forward pass, the samples would be said of the wrong slots."""
    model = Adversaries()
    optimizers = adversaries(model)
    said = {"match": ", which is not the one before it."}

    def one_pass(step, number, factor=1.0):
        optimizers[1].zero_grad()
        (model.maker(batch(number)[0][:, :3]) * factor).mean().backward()
        return step

    with Recorder(model, optimizers, tmp_path / "m", quiet=True) as recorder:
        with recorder.step() as first:
            one_pass(first, 0)
            with pytest.raises(RecordingError, **said):
                first.continues(first)
        with recorder.step() as nothing:  # NaN: it is not recorded
            one_pass(nothing, 1, float("nan"))
        assert recorder.steps == 1
        with recorder.step() as third:
            with pytest.raises(RecordingError, match="Step 1 continues step 0, which is not the one before it"):
                third.continues(first)
            third.continues(nothing)
            one_pass(third, 2)
        with recorder.step() as fourth:
            fourth.continues(third)
            one_pass(fourth, 3)
    assert recorder.steps == 3


def test_both_passes_in_one_step_are_refused_at_the_first_and_named_later(tmp_path):
    def one_step(model, optimizers, recorder, number):
        with recorder.step():
            for loss, optimizer in zip(model.losses(number), optimizers, strict=True):
                learn(optimizer, loss())

    model = Adversaries()
    with (
        pytest.raises(RecordingError, match=r"brought gradients to optimizer 1 \(SGD\)") as refused,
        Recorder(model, adversaries(model), tmp_path / "first") as recorder,
    ):
        one_step(model, recorder._controller.plan.owners.optimizers, recorder, 0)
    assert "each forward and backward pass" in refused.value.hint

    def train(model, optimizers, recorder, told):
        for number in range(4):
            if number < 2:
                for loss, optimizer in zip(model.losses(number), optimizers, strict=True):
                    with recorder.step():
                        learn(optimizer, loss())
            else:
                one_step(model, optimizers, recorder, number)
            told()

    memory, _ = recorded(tmp_path / "later", train, Adversaries(), adversaries)
    found = memory.verify()
    assert not found["maker.0"].exact
    assert not found["maker.2"].exact
    assert "after another optimizer's update inside step 4" in found["maker.0"].reason
    assert memory.weights(at_step=3, allow_inexact=True)


def test_gradients_that_are_cleared_between_passes_are_never_called_exact(tmp_path):
    def train(model, optimizers, recorder, told):
        for number in range(6):
            x, y = batch(number)
            with recorder.step(label=y):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                if number > 2:
                    optimizers[1].zero_grad()
                cross_entropy(model(0.5 * x), y).backward()
                for optimizer in optimizers:
                    optimizer.step()
            told()

    memory, history = recorded(tmp_path / "m", train)
    apart = distances(memory, history)
    wrong = {name for (step, name), distance in apart.items() if distance > 1e-3}
    assert "4.weight" in wrong
    found = memory.verify()
    for layer in memory._view.snapshot.layers.values():
        if wrong.intersection(block.block_name for block in layer.parameters):
            assert not found[layer.name].exact, layer.name
            assert found[layer.name].reason, layer.name
        else:
            assert found[layer.name].exact

"""Parameters and buffers that no slot explains are those of the live network at every step."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import dualform
from dualform.errors import Inexact
from dualform.record import batches
from dualform.store.rows import STORED
from dualform_service.server import Server
from tests.cases import some
from tests.trainings import learn

STEPS = 9


class Normed(nn.Module):
    """Running statistics, norms, a free parameter, a frozen one, and buffers of every type that is kept."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.batch_norm = nn.Conv1d(3, 4, 2, bias=False), nn.BatchNorm1d(4)
        self.head, self.norm = nn.Linear(4, 3), nn.LayerNorm(4)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.frozen = nn.Parameter(torch.randn(2, 2), requires_grad=False)
        self.empty = nn.Parameter(torch.zeros(0, 3))
        for name in STORED:
            self.register_buffer(f"seen_{name}", torch.zeros(2, 3).to(getattr(torch, name)))
        self.register_buffer("average", torch.zeros(3, 4).T)

    def forward(self, x):
        return self.head(self.norm(self.scale * self.batch_norm(self.conv(x)).mean(2)))


def batch(number):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(6, 3, 5, generator=generator), torch.arange(6) % 3


def update(model, optimizer, number):
    x, y = batch(number)
    learn(optimizer, nn.functional.cross_entropy(model(x), y))


def afterwards(model, number):
    """What trainings write once the step is over."""
    with torch.no_grad():
        model.average.lerp_(model.head.weight.T, 0.1)
        for name in STORED:
            getattr(model, f"seen_{name}").add_(1) if name != "bool" else model.seen_bool.logical_not_()


def record(path, make=None, steps=STEPS, leave=None, write=afterwards, **options):
    """The model, and its state as each step begins and at the end."""
    model = Normed()
    optimizer = (make or (lambda own: torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)))(model)
    history = []
    with dualform.Recorder(model, optimizer, path, **options) as recorder:
        for number in range(steps):
            history.append(copy.deepcopy(model.state_dict()))
            with recorder.step(label=batch(number)[1], sample=torch.arange(6)):
                update(model, optimizer, number)
            write(model, number)
            if leave is not None:
                leave(recorder, number)
        history.append(copy.deepcopy(model.state_dict()))
    return model, history


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8) if tensor.numel() else tensor


OPTIMIZERS = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_network_as_of_any_step_is_whole(tmp_path, make):
    _, history = record(tmp_path / "m", make, leave=lambda recorder, number: number == 4 and recorder.flush())
    with warnings.catch_warnings(), dualform.open(tmp_path / "m") as memory:
        warnings.simplefilter("error")
        for at_step, expected in some(enumerate(history)):
            weights = memory.weights(at_step=at_step)
            model = Normed()
            model.load_state_dict(weights)
            assert weights.not_recorded == ()
            recorded = {"conv.weight", "head.weight", "head.bias"}
            assert set(weights.others) == expected.keys() - recorded
            for name, own in model.state_dict().items():
                if name in recorded:
                    way = float((history[-1][name] - history[0][name]).norm())
                    assert float((own - expected[name]).norm()) <= 1e-5 * way
                else:
                    assert torch.equal(bits(own), bits(expected[name])), name
            twin = Normed()
            twin.load_state_dict(expected)
            x = batch(100)[0]
            torch.testing.assert_close(model.eval()(x), twin.eval()(x), rtol=1e-5, atol=1e-5)


def test_no_mask_moves_them(tmp_path):
    _, history = record(tmp_path / "m")
    with dualform.open(tmp_path / "m") as memory, Server(memory) as server, dualform.connect(server.address) as client:
        for asked in (memory, client):
            masked = asked.weights("label <> 1", at_step=5)
            for name in masked.others:
                assert torch.equal(masked[name].float(), history[5][name].float())
            assert not torch.allclose(masked["head.weight"], history[5]["head.weight"], atol=1e-3)
            assert "batch_norm.running_mean" in masked.others


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(batches, "ALWAYS_BYTES", 200)


def test_large_ones_are_kept_every_few_steps_and_refused_between(tmp_path, few):
    size = sum(t.numel() * t.element_size() for n, t in Normed().state_dict().items() if n not in (
        "conv.weight", "head.weight", "head.bias", "frozen",
    ))  # fmt: skip
    every = -(-size // 200)
    said = f"are not stored at every step: whole networks can be rebuilt after every {every} steps"
    with pytest.warns(RuntimeWarning, match=said):
        _, history = record(tmp_path / "m", steps=2 * every + 1)
    with dualform.open(tmp_path / "m") as memory:
        for at_step in range(2 * every + 2):
            if at_step % every and at_step <= 2 * every:
                nearest = at_step if at_step % every == 0 else round(at_step / every) * every
                with pytest.raises(Inexact, match=f"are unknown at step {at_step}: ") as refused:
                    memory.weights(at_step=at_step)
                if abs(nearest - at_step) * 2 != every:
                    assert f"Pass at_step={nearest}, the nearest step that has them" in refused.value.hint
                continue
            found = memory.weights(at_step=at_step)
            assert torch.equal(found["norm.weight"], history[at_step]["norm.weight"])
        with pytest.raises(Inexact):
            memory.weights("label = 1", at_step=1, allow_inexact=True)


def test_a_row_that_nothing_could_hold_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "_MOST_BYTES", 100)
    with pytest.warns(
        RuntimeWarning, match=r"parameters and buffers outside recorded layers take .* MB: only their final values"
    ):
        _, history = record(tmp_path / "m")
    with dualform.open(tmp_path / "m") as memory:
        with pytest.warns(UserWarning, match="not recorded, so they stand as at the end of the training: average, "):
            found = memory.weights(at_step=3)
        assert "frozen" not in found.not_recorded
        assert torch.equal(found["norm.weight"], history[-1]["norm.weight"])


def test_a_memory_that_is_still_recorded_is_whole_up_to_where_the_last_step_began(tmp_path):
    model = Normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, tmp_path / "m") as recorder:
        for number in range(4):
            with recorder.step():
                update(model, optimizer, number)
        state = copy.deepcopy(model.state_dict())
        recorder._controller.session.writer.sink.flush()  # as a commit does that the training did not ask for
        with dualform.open(tmp_path / "m") as memory:
            with pytest.raises(Inexact, match="at step 4") as refused:
                memory.weights()
            assert refused.value.hint.startswith(
                "Pass at_step=3, the nearest step that has them. Outputs of single layers need none."
            )
            with pytest.warns(
                UserWarning, match="so they stand as before its first step, for there is no end: frozen."
            ):
                assert memory.weights(at_step=3).not_recorded == ("frozen",)
        recorder.flush()
        # Nobody knows what becomes of it: asked for the end as well, that is said.
        with dualform.open(tmp_path / "m") as memory, pytest.warns(UserWarning, match="there is no end: frozen."):
            assert torch.equal(memory.weights()["batch_norm.running_var"], state["batch_norm.running_var"])
        with torch.no_grad():
            model.average.fill_(7.0)
        with recorder.step():
            update(model, optimizer, 4)
    with dualform.open(tmp_path / "m") as memory:
        assert float(memory.weights(at_step=4)["average"].mean()) == 7.0, "as the next step began"


def test_what_is_replaced_or_gone_ends_no_training(tmp_path):
    def leave(recorder, number):
        model = recorder._controller.plan.model
        if number == 3:
            model.norm.weight = nn.Parameter(model.norm.weight.detach() * 2)
        if number == 5:
            model.average = torch.zeros(5)
        if number == 7:
            model.average = torch.full((4, 3), 3.0)

    _, history = record(tmp_path / "m", leave=leave, write=lambda *_: None)
    with dualform.open(tmp_path / "m") as memory:
        assert torch.equal(memory.weights(at_step=4)["norm.weight"], history[4]["norm.weight"])
        for at_step in (6, 7):
            with pytest.raises(Inexact, match=f"at step {at_step}"):
                memory.weights(at_step=at_step)
        assert float(memory.weights(at_step=8)["average"].mean()) == 3.0


def test_a_resumed_training_has_those_of_each_run(tmp_path):
    model = Normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    history = []
    for run in "ab":
        with dualform.Recorder(model, optimizer, tmp_path / run) as recorder:
            for number in range(4):
                history.append(copy.deepcopy(model.state_dict()))
                with recorder.step():
                    update(model, optimizer, number)
    with dualform.open([tmp_path / "a", tmp_path / "b"]) as memory:
        for at_step in range(8):
            found = memory.weights(at_step=at_step)
            for name in ("batch_norm.running_mean", "batch_norm.num_batches_tracked", "norm.bias"):
                assert torch.equal(found[name], history[at_step][name])


def test_a_training_of_scores_keeps_none(tmp_path):
    record(tmp_path / "m", values=False)
    assert not (tmp_path / "m" / "shard-00000" / "others").exists()

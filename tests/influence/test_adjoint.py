"""Adjoints against finite differences of whole trainings in float64; what cannot be run once more is refused."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.autograd.function import once_differentiable

import dualform
from dualform.errors import BadInput, Damaged, Inexact, NotFound
from dualform.influence.adjoint import adjoint, retrain
from dualform.influence.rerun import recorded_training
from dualform.store.maintenance.check import check_memory
from dualform.store.manifest import Manifest
from tests.damage import flip
from tests.query.networks import Tied
from tests.trainings import record_steps, take_steps

SAMPLES, ROWS, STEPS = 20, 6, 12
CHECKED = 5


def per_row(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


class Training:
    """A small training that samples' weights may change; by default of an MLP by plain SGD."""

    def __init__(self, model=None, inputs=None, optimizer=None, **said):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(1)
        self.model = (model or mlp)().double()
        self.inputs = torch.randn(SAMPLES, 5, dtype=torch.float64) if inputs is None else inputs(generator)
        self.targets = torch.randint(0, 3, (SAMPLES,))
        self.optimizer = optimizer or (lambda net: torch.optim.SGD(net.parameters(), lr=0.3))
        self.said = Said(**said)
        self.initial = {name: own.clone() for name, own in self.model.state_dict().items()}
        size = ROWS if not self.said.twice else 2 * ROWS
        self.order = [torch.randint(SAMPLES, (size,), generator=generator) for _ in range(self.said.steps)]
        if not self.said.twice:
            self.order = [
                torch.randperm(SAMPLES, generator=generator)[: ROWS - (step == 7)] for step in range(self.said.steps)
            ]
        self.queries = (self.inputs[:4].flip(0) * 0.9, torch.tensor([0, 1, 2, 0]))
        if self.inputs.dtype != torch.float64:
            self.queries = (self.inputs[:4], torch.tensor([0, 1, 2, 0]))

    def run(self, weights=None, path=None):
        said, net = self.said, self.model
        net.load_state_dict(self.initial)
        torch.manual_seed(3)
        optimizer = self.optimizer(net)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7) if said.schedule else None
        recorder = dualform.Recorder(net, optimizer, path, quiet=True, keep_random=said.keep_random) if path else None
        with recorder or nullcontext():
            for step, rows in enumerate(self.order):
                labels = self.targets[rows]
                datasets = ["ab"[int(row) % 2] for row in rows] if said.datasets else "a"
                numbers = rows // 2 if said.datasets else rows
                with recorder.step(sample=numbers, dataset=datasets, label=labels) if recorder else nullcontext():
                    if step % said.accumulate == 0:
                        optimizer.zero_grad()
                    loss = per_row(net(self.noisy(self.inputs[rows])), self.targets[rows])
                    loss = loss if weights is None else loss * weights[rows]
                    loss = loss.mean() if said.mean else loss.sum() if said.summed else loss.sum() / len(rows)
                    loss = said.more(net, loss / said.accumulate)
                    loss.backward()
                    if step % said.accumulate == said.accumulate - 1:
                        said.between(net)
                        optimizer.step()
                        if schedule:
                            schedule.step()

    def noisy(self, inputs):
        return inputs + 0.1 * torch.randn_like(inputs) if self.said.noise else inputs

    def batches(self, step, samples):
        rows = self.order[step]
        assert samples.tolist() == (rows // 2 if self.said.datasets else rows).tolist()
        return self.noisy(self.inputs[rows]), self.targets[rows]

    def begin_bytes(self, path):
        return recorded_training(path, self.model, self.batches, per_row).begin().nbytes

    def losses(self):
        self.model.eval()
        with torch.no_grad():
            found = per_row(self.model(self.queries[0]), self.queries[1]).numpy()
        self.model.train()
        return found

    def adjoint(self, path, **given):
        self.run(path=path)
        arguments = {"queries": self.queries, "loss": per_row, "batches": self.batches, **given}
        return adjoint(path, self.model, **arguments)

    def differences(self, found, size=1e-5):
        """float64[n, S / CHECKED]: by central differences of whole trainings, of every CHECKED-th sample."""
        columns = []
        for number, dataset in zip(found.samples[::CHECKED], found.columns["dataset"][::CHECKED], strict=True):
            sample = 2 * number + (dataset == "b") if self.said.datasets else number
            ends = []
            for change in (size, -size):
                weights = torch.ones(SAMPLES, dtype=torch.float64)
                weights[sample] += change
                self.run(weights)
                ends.append(self.losses())
            columns.append((ends[1] - ends[0]) / (2 * size))
        return np.stack(columns, axis=1)


@dataclass
class Said:
    schedule: bool = False
    accumulate: int = 1
    summed: bool = False
    mean: bool = False
    twice: bool = False
    """Batches with the same sample more than once."""
    steps: int = STEPS
    datasets: bool = False
    """Two datasets number their samples alike."""
    keep_random: bool = False
    noise: bool = False
    """Inputs get noise within each step."""
    more: Any = field(default=lambda net, loss: loss)
    between: Any = field(default=lambda net: None)


def mlp(activation=nn.Tanh):
    return nn.Sequential(nn.Linear(5, 6), activation(), nn.Linear(6, 3))


def normalized(norm):
    return nn.Sequential(nn.Linear(5, 6), norm, nn.Linear(6, 3))


def clipped(norm):
    return lambda net: nn.utils.clip_grad_norm_(net.parameters(), norm)


def sgd(**given):
    return lambda net: torch.optim.SGD(net.parameters(), **{"lr": 0.3, **given})


def adam(kind=torch.optim.Adam, **given):
    return lambda net: kind(net.parameters(), **{"lr": 0.05, "eps": 1e-4, **given})


class Around(nn.Module):
    """An MLP, and what is done to its inputs, which may depend on the mode, and to its outputs."""

    def __init__(self, before=lambda x, training: x, after=lambda outputs: outputs):
        super().__init__()
        self.body, self.before, self.after = mlp(), before, after

    def forward(self, x):
        return self.after(self.body(self.before(x, self.training)))


def dropped():
    return Around(before=lambda x, training: nn.functional.dropout(x, 0.5, training))


def of_own_generator():
    generator = torch.Generator().manual_seed(0)
    return Around(lambda x, training: x + torch.randn(x.shape, generator=generator, dtype=x.dtype) * training)


class Attention(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        self.embedding, self.norm, self.out = nn.Embedding(7, 6), nn.LayerNorm(6), nn.Linear(6, 3)
        self.mixed = nn.Linear(6, 18)

    def forward(self, tokens):
        hidden = self.norm(self.embedding(tokens))
        query, key, value = self.mixed(hidden).chunk(3, dim=-1)
        dropped = self.dropout if self.training else 0.0
        return self.out(nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=dropped)[:, -1])


class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4), nn.Linear(12, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.norm(self.conv(x[:, None]))).flatten(1))


class UnusedHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.unused = mlp(), nn.Linear(5, 2)

    def forward(self, x):
        return self.body(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.layer(x[:, None].expand(-1, 3, -1))[0][:, -1])


class ZeroHead(nn.Module):
    """Its hidden layer has no gradient at first."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(5, 6), nn.Linear(6, 3)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(x)))


def tokens(generator):
    return torch.randint(0, 6, (SAMPLES, 4), generator=generator)


def first_column_zero(generator):
    found = torch.randn(SAMPLES, 5, generator=generator, dtype=torch.float64)
    found[:, 0] = 0
    return found


TRAININGS = {
    "momentum, an unused head": {
        "model": UnusedHead,
        "optimizer": sgd(momentum=0.9, weight_decay=0.01),
        "schedule": True,
    },
    "Nesterov, two datasets": {"optimizer": sgd(momentum=0.9, nesterov=True), "twice": True, "datasets": True},
    "dampening, every update clipped": {"optimizer": sgd(momentum=0.9, dampening=0.3), "between": clipped(0.01)},
    "accumulated, group normalization": {
        "model": Grouped,
        "optimizer": sgd(lr=0.1, momentum=0.9),
        "accumulate": 2,
        "summed": True,
    },
    "maximized, tied weights": {
        "model": Tied,
        "optimizer": sgd(lr=0.05, maximize=True),
        "more": lambda net, loss: -loss,
    },
    "Adam with decay, an LSTM": {"model": Recurrent, "optimizer": adam(weight_decay=0.1), "accumulate": 2},
    "AdamW": {"optimizer": adam(torch.optim.AdamW, weight_decay=0.1), "between": clipped(0.3), "schedule": True},
    "Adam, inputs that are always 0": {"optimizer": adam(), "inputs": first_column_zero},
    "two parameter groups": {
        "optimizer": lambda net: torch.optim.SGD(
            [{"params": net[0].parameters(), "lr": 0.1}, {"params": net[2].parameters(), "weight_decay": 0.1}], lr=0.3
        )
    },
    "a head of zeros, clipped": {"model": ZeroHead, "between": clipped(0.2)},
    "dropout and noise, accumulated": {"model": dropped, "keep_random": True, "noise": True, "accumulate": 2},
    "dropout in attention": {
        "model": lambda: Attention(0.3),
        "inputs": tokens,
        "keep_random": True,
        "optimizer": adam(),
    },
}


@pytest.mark.parametrize("said", TRAININGS)
def test_finite_differences_of_whole_trainings(tmp_path, said):
    training = Training(**TRAININGS[said])
    found = training.adjoint(tmp_path / "run")
    expected = training.differences(found)
    assert np.abs(found.values[:, ::CHECKED] - expected).max() <= 1e-4 * np.abs(expected).max()
    assert np.abs(expected).max() > 1e-4
    training.run()
    assert np.allclose(found.losses, training.losses(), rtol=1e-5)


@pytest.mark.parametrize(
    "said",
    {
        "momentum": {
            "model": dropped,
            "keep_random": True,
            "optimizer": sgd(momentum=0.9, weight_decay=0.01, nesterov=True),
        },
        "AdamW": {"optimizer": adam(torch.optim.AdamW, weight_decay=0.1)},
    }.items(),
    ids=lambda own: own[0],
)
def test_a_rerun_on_the_same_machine_has_the_bits_of_the_training(tmp_path, said):
    """Rounding alone would grow: around the kinks of a ReLU it moves the end of a training by whole percents."""
    training = Training(**said[1], mean=True)
    training.model.float()
    training.inputs, training.queries = training.inputs.float(), (training.queries[0].float(), training.queries[1])
    training.initial = {name: own.float() for name, own in training.initial.items()}
    assert training.adjoint(tmp_path / "run").drift == 0.0


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A training of an MLP by plain SGD, and its memory, which is only read."""
    training, path = Training(), tmp_path_factory.mktemp("adjoint") / "run"
    training.run(path=path)
    return training, path


def test_one_loss_of_all_queries_is_one_query(recorded):
    training, path = recorded
    each = adjoint(path, training.model, training.queries, per_row, training.batches)
    whole = adjoint(path, training.model, training.queries, nn.functional.cross_entropy, training.batches, per_row)
    assert whole.values.shape == (1, SAMPLES)
    assert np.allclose(whole.values[0], each.values.mean(axis=0), atol=1e-6)


class Penalized(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        self.hidden = torch.tanh(self.first(x))
        return self.last(self.hidden)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (1 - x.tanh() ** 2)


class Through(nn.Module):
    def __init__(self, between):
        super().__init__()
        self.first, self.last, self.between = nn.Linear(5, 6), nn.Linear(6, 3), between

    def forward(self, x):
        return self.last(self.between(self.first(x)))


def shifted(x):
    """Each row sees the one before."""
    return torch.tanh(x) + 2 * torch.cat([0 * x[:1], torch.tanh(x[:-1])])


def checkpointed(x):
    return torch.utils.checkpoint.checkpoint(torch.tanh, x, use_reentrant=True)


def gated(x):
    return torch.tanh(x) * torch.sigmoid(x.detach())


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.last = mlp(), 0.0

    def forward(self, x):
        found = self.body(x) * (1 + self.last)
        self.last = float(found.detach().mean())
        return found


class Renormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(7, 5, max_norm=0.5), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.embedding(x).mean(1)))


REFUSED = {
    "a backward that is differentiated once": ({"model": lambda: Through(Once.apply)}, "Second derivatives"),
    "a detached gate": ({"model": lambda: Through(gated)}, "Second derivatives"),
    "an embedding with max_norm": (
        {"model": Renormed, "inputs": tokens, "optimizer": lambda net: torch.optim.SGD(net.parameters(), lr=1.0)},
        "Second derivatives|explain|from one pass",
    ),
    "something kept between passes": (
        {"model": Remembering, "steps": STEPS},
        "from one pass to the next|gets other inputs|other rows",
    ),
    "one norm of all gradients": ({"between": clipped(0.02), "steps": 1}, "about the same norm"),
    "a function of the mean, once": ({"more": lambda net, loss: loss.log(), "steps": 1}, "a constant times it"),
    "a root": ({"more": lambda net, loss: loss.sqrt()}, "times the mean of train_loss"),
    "a penalty of weights": ({"more": lambda net, loss: loss + net[0].weight.square().sum()}, "explain its gradients"),
    "a penalty of activations": (
        {"model": Penalized, "more": lambda net, loss: loss + net.hidden.square().mean()},
        "layer 'first' gets other error signals",
    ),
    "dropout whose states were not stored": ({"model": dropped}, "gets other inputs"),
    "a generator of one's own": (
        {"model": of_own_generator, "keep_random": True},
        "gets other inputs|not those of torch",
    ),
    "dropout in eval mode, too": (
        {"model": lambda: Around(after=lambda outputs: nn.functional.dropout(outputs, 0.3)), "keep_random": True},
        "in eval mode, too",
    ),
    "rows that see the row before": ({"model": lambda: Through(shifted)}, "other rows of the batch"),
    "reentrant checkpoints": ({"model": lambda: Through(checkpointed)}, "without activation checkpointing"),
    "batch normalization": (
        {"model": lambda: normalized(nn.BatchNorm1d(6))},
        "as batch normalization does",
    ),
    "an optimizer without adjoint": ({"optimizer": lambda net: torch.optim.RMSprop(net.parameters())}, "RMSprop"),
    "AMSGrad": ({"optimizer": adam(amsgrad=True)}, "amsgrad"),
    "clipped by layer": (
        {"between": lambda net: [nn.utils.clip_grad_norm_(own.parameters(), 0.05) for own in (net[0], net[2])]},
        "differently",
    ),
    "unknown settings": (
        {
            "model": lambda: normalized(nn.LayerNorm(6)),
            "optimizer": lambda net: torch.optim.SGD(
                [{"params": [*net[0].parameters(), *net[2].parameters()], "weight_decay": 0.1},
                 {"params": net[1].parameters()}], lr=0.3
            ),
        },
        "settings",
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_a_training_that_cannot_be_run_once_more_is_refused(tmp_path, said):
    given, why = REFUSED[said]
    with pytest.raises(Inexact, match=why):
        Training(**{"steps": 6, **given}).adjoint(tmp_path / "run")


def test_rows_in_another_order_and_another_loss_are_refused(recorded):
    training, path = recorded

    def turned(step, samples):
        inputs, targets = training.batches(step, samples)
        return inputs.flip(0), targets.flip(0)

    with pytest.raises(Inexact, match=r"at step 0: layer .* gets other inputs"):
        adjoint(path, training.model, training.queries, per_row, turned)

    def smoothed(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)

    with pytest.raises(Inexact, match="gets other error signals"):
        adjoint(path, training.model, training.queries, per_row, training.batches, smoothed)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"batches": lambda step, samples: (torch.ones(3, 5).double(), torch.ones(3).long())},
            "returned 3 rows and 3 targets for step 0",
        ),
        ({"train_loss": nn.functional.cross_entropy}, "train_loss must return one number for each of 6 rows"),
        ({"loss": lambda outputs, targets: outputs}, "loss must return one number for each of 4 queries"),
        ({"loss": lambda outputs, targets: (outputs.argmax(1) == targets).float()}, "does not depend on any parameter"),
        ({"loss": lambda outputs, targets: 1.0}, "must return a tensor"),
        ({"train_loss": lambda outputs, targets: targets.double()}, "does not depend on any parameter"),
        ({"batches": None}, "batches must be a function"),
        ({"batches": lambda step, samples: None}, "batches must be inputs and targets"),
        ({"queries": torch.ones(2, 5).double()}, "queries must be inputs and targets"),
        ({"queries": (torch.ones(2, 5).double(), torch.zeros(3).long())}, "2 inputs and 3 targets"),
    ],
)
def test_arguments_that_do_not_fit(recorded, given, why):
    training, path = recorded
    usual = {"queries": training.queries, "loss": per_row, "batches": training.batches, "train_loss": per_row}
    with pytest.raises(BadInput, match=why):
        adjoint(path, training.model, **{**usual, **given})


def test_a_record_without_samples_is_refused(tmp_path):
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    record_steps(
        dualform.Recorder(net, optimizer, tmp_path / "run", quiet=True),
        optimizer,
        1,
        lambda _: net(torch.ones(2, 5)).sum(),
    )
    with pytest.raises(Inexact, match="no sample"):
        adjoint(tmp_path / "run", net, (torch.ones(2, 5), torch.zeros(2).long()), per_row, lambda step, samples: None)


def test_sums_and_the_table_are_of_the_samples_of_each_dataset(tmp_path):
    training = Training(datasets=True, twice=True)
    found = training.adjoint(tmp_path / "run")
    assert found.seen.sum() == 2 * ROWS * STEPS
    datasets = found.columns["dataset"].tolist()
    assert [*zip(datasets, found.samples, strict=True)] == sorted(zip(datasets, found.samples, strict=True))
    labels = training.targets.numpy()[2 * found.samples + (found.columns["dataset"] == "b")]
    assert found.columns["label"].tolist() == labels.tolist()
    sums = found.sums("label")
    assert sums.groups == ((0,), (1,), (2,))
    assert sums.counts.tolist() == np.bincount(labels).tolist()
    for label in range(3):
        assert np.allclose(sums.sums[:, label], found.values[:, labels == label].sum(axis=1), rtol=1e-5, atol=1e-7)
        assert np.allclose(sums.sums[:, label], found.without(labels == label))
    with pytest.raises(NotFound, match="'row'"):
        found.sums("row")
    table = found.table()
    assert table["value"].tolist() == found.values.ravel().tolist()
    assert table["sample"].tolist() == found.samples.tolist() * 4
    assert found.best(2, 1) == [(found.samples[place := int(np.abs(found.values[2]).argmax())], found.values[2, place])]
    with pytest.raises(BadInput, match="Several datasets"):
        found.without([0])
    first = found.columns["dataset"] == "a"
    assert np.allclose(found.without(first), found.sums("dataset").sums[:, 0])


def test_an_adjoint_with_little_ram_that_is_cut_off_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    """Four passes of one query each through 12 updates, with weights that are computed again."""
    monkeypatch.setattr("dualform.influence.adjoint._SECONDS", 0.0)
    monkeypatch.setattr("dualform.influence.adjoint._SHARE", 0)
    training, file = Training(optimizer=adam()), tmp_path / "file"
    whole = training.adjoint(tmp_path / "run")
    each = training.begin_bytes(tmp_path / "run")
    ram, ends = 2 * 9 * each, 13
    arguments = tmp_path / "run", training.model, training.queries, per_row, training.batches
    seen = []

    def until(what, done, total):
        seen.append((what, done, total))
        if (what, done) == ("carrying back", ends):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adjoint(*arguments, ram=ram, checkpoint=file, progress=until)
    assert seen[-1] == ("carrying back", ends, 48)
    others = training.queries[0] + 1e-9, training.queries[1]
    for asked in (
        lambda: adjoint(*arguments[:2], others, *arguments[3:], checkpoint=file),
        lambda: adjoint(*arguments[:3], lambda *given: 2 * per_row(*given), *arguments[4:], per_row, checkpoint=file),
        lambda: retrain(*arguments, without=[[1]], checkpoint=file),
    ):
        with pytest.raises(BadInput, match="no checkpoint of this computation"):
            asked()
    with pytest.raises(BadInput, match="the limit is"):
        adjoint(*arguments, ram=each)
    seen.clear()
    found = adjoint(*arguments, ram=ram + each, checkpoint=file, progress=lambda *own: seen.append(own))
    assert np.array_equal(found.values, whole.values)
    assert not file.exists()
    assert seen[0] == ("running the training again", 0, 12)
    back = [told for told in seen if told[0] == "carrying back"]
    assert back == [("carrying back", done, 48) for done in range(ends, 49)]


def test_retrainings_that_are_cut_off_go_on_from_their_checkpoint(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr("dualform.influence.adjoint._SECONDS", 0.0)
    monkeypatch.setattr("dualform.influence.adjoint._SHARE", 0)
    (training, path), file = recorded, tmp_path / "file"
    arguments = path, training.model, training.queries, per_row, training.batches
    whole = retrain(*arguments, random=6, share=0.2)

    def until(what, done, total):
        if (what, done, total) == ("training again", 4, 6):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retrain(*arguments, random=6, share=0.2, checkpoint=file, progress=until)
    with pytest.raises(BadInput, match="no checkpoint of this computation"):
        retrain(*arguments, random=6, share=0.2, seed=1, checkpoint=file)
    told = []
    found = retrain(*arguments, random=6, share=0.2, checkpoint=file, progress=lambda *own: told.append(own))
    assert np.array_equal(found.losses, whole.losses)
    assert [done for what, done, _ in told if what == "training again"] == [4, 5, 6]
    file.write_bytes(b"something else")
    with pytest.raises(BadInput, match="no checkpoint"):
        retrain(*arguments, random=6, share=0.2, checkpoint=file)


@pytest.mark.parametrize("file", ["", 5, ".", "none/file"])
def test_a_checkpoint_that_cannot_be_written_is_refused_first(recorded, tmp_path, monkeypatch, file):
    monkeypatch.chdir(tmp_path)
    training, path = recorded
    arguments = path, training.model, training.queries, per_row, lambda *_: pytest.fail("it began")
    with pytest.raises(BadInput, match="checkpoint"):
        adjoint(*arguments, checkpoint=file)
    with pytest.raises(BadInput, match="checkpoint"):
        retrain(*arguments, without=[[1]], checkpoint=file)


def test_a_checkpoint_that_is_not_saved_ends_nothing(recorded, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dualform.influence.adjoint._SECONDS", 0.0)
    monkeypatch.setattr("dualform.influence.adjoint.write_new", full)
    training, path = recorded
    arguments = path, training.model, training.queries, per_row, training.batches
    whole = adjoint(*arguments)
    with pytest.warns(RuntimeWarning, match="the checkpoint was not saved"):
        found = adjoint(*arguments, checkpoint=tmp_path / "file")
    assert np.array_equal(found.values, whole.values)
    assert not list(tmp_path.glob("file*"))


def test_what_cannot_be_kept_at_the_end_is_in_the_checkpoint(tmp_path, monkeypatch):
    training, file = Training(), tmp_path / "file"
    whole = training.adjoint(tmp_path / "run")
    arguments = tmp_path / "run", training.model, training.queries, per_row, training.batches
    again = retrain(*arguments, random=3, share=0.2)
    with monkeypatch.context() as broken:
        broken.setattr(
            "dualform.store.maintenance.attributions.write_whole", lambda *_: (_ for _ in ()).throw(OSError(28, "full"))
        )
        for asked, more in ((adjoint, {}), (retrain, {"random": 3, "share": 0.2})):
            with pytest.raises(OSError, match="full"):
                asked(*arguments, name="kept", checkpoint=file.with_suffix(f".{asked.__name__}"), **more)
    told = []
    found = adjoint(
        *arguments, name="kept", checkpoint=file.with_suffix(".adjoint"), progress=lambda *own: told.append(own)
    )
    assert np.array_equal(found.values, whole.values)
    assert all(what == "running the training again" for what, *_ in told)
    found = retrain(*arguments, random=3, share=0.2, name="kept", checkpoint=file.with_suffix(".retrain"))
    assert np.array_equal(found.losses, again.losses)
    assert not list(tmp_path.glob("file*"))


def test_an_estimate_says_what_will_be_done(tmp_path):
    training = Training(optimizer=adam())
    training.run(path=tmp_path / "run")
    arguments = tmp_path / "run", training.model, training.queries, per_row, training.batches
    cost = dualform.estimate_adjoint(*arguments)
    each = training.begin_bytes(tmp_path / "run")
    assert (cost.queries, cost.updates, cost.passes, cost.bytes) == (4, STEPS, 1, (STEPS + 6 * 4) * each)
    assert 0 < cost.seconds_a_retraining < cost.seconds
    assert str(cost).startswith("4 queries through 12 updates in 1 pass: about ")
    assert dualform.estimate_adjoint(*arguments, ram=2 * 9 * each).passes == 4
    with pytest.raises(BadInput, match="the limit is"):
        dualform.estimate_adjoint(*arguments, ram=each)


def test_retrainings_are_those_with_weight_0(tmp_path):
    training = Training(optimizer=adam(), between=clipped(0.3), twice=True)
    training.run(path=tmp_path / "run")
    sets = [[3], [0, 7, 19], range(5)]
    arguments = tmp_path / "run", training.model, training.queries, per_row, training.batches
    found = retrain(*arguments, without=sets)
    for number, own in enumerate(sets):
        weights = torch.ones(SAMPLES, dtype=torch.float64)
        weights[list(own)] = 0
        training.run(weights)
        assert np.allclose(found.losses[number], training.losses(), rtol=1e-6)
    training.run()
    assert np.allclose(found.complete, training.losses(), rtol=1e-6)
    labels = training.targets.numpy()[found.samples]
    by_label = retrain(*arguments, without=["label = 1", "sample IN (0, 7, 19)"])
    assert np.array_equal(by_label.sets[0], labels == 1)
    assert np.array_equal(by_label.losses[1], found.losses[1])
    for wrong, why in (
        ("label = 9", "No sample matches"),
        ("step = 3", "not the same for all rows"),
        ([77], "no sample 77"),
        ([], "must be numbers"),
        ([True, False], "must be numbers"),
    ):
        with pytest.raises(BadInput, match=why):
            retrain(*arguments, without=[wrong])
    with pytest.raises(BadInput, match="no set"):
        retrain(*arguments, without=[])


def test_what_is_kept_is_read_by_sql(tmp_path):
    training = Training()
    found = training.adjoint(tmp_path / "run", name="first")
    arguments = tmp_path / "run", training.model, training.queries, per_row, training.batches
    retrained = retrain(*arguments, without=[[3], [4, 5]], name="first")
    adjoint(*arguments, name="second")
    with dualform.open(tmp_path / "run") as memory:
        rows = memory.sql("SELECT * FROM adjoints WHERE name = 'first' ORDER BY query, sample")
        assert rows["value"].tolist() == found.values.ravel().tolist()
        assert rows["sample"].tolist() == found.samples.tolist() * 4
        assert set(rows["steps"].tolist()) == {STEPS}
        by_label = memory.sql(
            "SELECT query, label, sum(value) AS total FROM adjoints WHERE name = 'second' GROUP BY ALL ORDER BY ALL"
        )
        assert np.allclose(by_label["total"], found.sums("label").sums.ravel(), rtol=1e-5)
        again = memory.sql("SELECT * FROM retrainings ORDER BY set, query")
        assert again["change"].tolist() == retrained.changes.ravel().tolist()
        assert again["left_out"].tolist() == [1] * 4 + [2] * 4
        left_out = memory.sql("SELECT set, dataset, sample FROM left_out WHERE name = 'first' ORDER BY ALL")
        assert [tuple(row.values()) for row in left_out.records()] == [(0, "a", 3), (1, "a", 4), (1, "a", 5)]
    assert check_memory(tmp_path / "run") == []
    for asked in (adjoint, retrain):
        with pytest.raises(BadInput, match="cannot name rows"):
            asked(tmp_path / "none", *arguments[1:], name="a/b")


def test_columns_of_samples_that_are_called_as_kept_ones(tmp_path):
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "run", quiet=True),
        optimizer,
        3,
        lambda _: model(x).square().sum(1).mean(),
        sample=range(4),
        name=[7, 8, 9, 10],
        value=0.5,
        steps=[1, 1, 2, 2],
        colour="red",
    )

    def loss(outputs, targets):
        return outputs.square().sum(1)

    found = dualform.adjoint(
        tmp_path / "run", model, (x[:1], torch.zeros(1)), loss, lambda step, rows: (x[rows], rows), name="kept"
    )
    with dualform.open(tmp_path / "run") as memory:
        rows = memory.sql("SELECT * FROM adjoints ORDER BY sample").records()
    assert set(rows[0]) == {"name", "query", "example", "dataset", "sample", "label", "colour", "value", "steps"}
    assert [row["value"] for row in rows] == found.values[0].tolist()
    assert {(row["name"], row["steps"], row["colour"]) for row in rows} == {("kept", 3, "red")}


def test_kept_rows_name_the_stored_example_that_a_query_is(tmp_path):
    torch.manual_seed(0)
    model, x, held = nn.Linear(3, 2), torch.randn(4, 3), torch.randn(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, tmp_path / "run", quiet=True) as recorder:
        for name in ("before", "held"):  # the last weights are those of the second one
            take_steps(recorder, optimizer, 3, lambda _: model(x).square().sum(1).mean(), sample=range(4))
            recorder.query_set(name, held)

    def each(outputs, targets):
        return outputs.square().sum(1)

    def keep(call, name, queries, loss=each, **options):
        given = tmp_path / "run", model, (queries, torch.zeros(len(queries))), loss, lambda step, rows: (x[rows], rows)
        call(*given, each, name=name, **options)

    queries = torch.stack([held[3], x[0], held[0], held[0] + 0.01])
    keep(adjoint, "a", queries)
    keep(retrain, "a", queries, without=[[1]])
    keep(adjoint, "of-all", held[:2], lambda outputs, targets: outputs.square().sum())
    with dualform.open(tmp_path / "run") as memory:
        for table in ("adjoints", "retrainings"):
            found = memory.sql(f"SELECT DISTINCT query, example FROM {table} WHERE name = 'a' ORDER BY query")
            assert found["example"].tolist() == ["held/3", None, "held/0", None]
        whole = memory.sql("SELECT DISTINCT query, example FROM adjoints WHERE name = 'of-all'")
        assert whole["example"].tolist() == [None]


def test_rows_are_kept_together_and_without_a_dataset_they_are_found(tmp_path, monkeypatch):
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(outputs, targets):
        return outputs.square().sum(1)

    arguments = model, (x[:1], torch.zeros(1)), loss, lambda step, rows: (x[rows], rows)
    with dualform.Recorder(model, optimizer, tmp_path / "run", quiet=True) as recorder:
        take_steps(recorder, optimizer, 3, lambda _: model(x).square().sum(1).mean(), sample=range(4))
        recorder.flush()
        with pytest.raises(BadInput, match="still recorded"):
            dualform.adjoint(tmp_path / "run", copy.deepcopy(model), *arguments[1:], name="kept")
    predicted = dualform.adjoint(tmp_path / "run", *arguments, name="kept")
    first = dualform.retrain(tmp_path / "run", *arguments, without=[[0], [1]], name="kept")
    question = (
        "SELECT set, any_value(change) AS change, sum(value) AS predicted FROM retrainings JOIN left_out "
        "USING (name, set) JOIN adjoints USING (name, query, dataset, sample) GROUP BY ALL ORDER BY ALL"
    )

    def kept():
        with dualform.open(tmp_path / "run") as memory:
            return memory.sql(question)

    with monkeypatch.context() as broken:
        broken.setattr(Manifest, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(OSError, match="full"):
            dualform.retrain(tmp_path / "run", *arguments, without=[[2], [3]], name="kept")
    rows = kept()
    assert rows["change"].tolist() == first.changes[:, 0].tolist()
    assert np.allclose(rows["predicted"], predicted.values[0, :2])
    second = dualform.retrain(tmp_path / "run", *arguments, without=[[2], [3]], name="kept")
    assert kept()["change"].tolist() == second.changes[:, 0].tolist()
    assert len(list((tmp_path / "run" / "attributions").iterdir())) <= 5  # two of the one that was cut off
    assert check_memory(tmp_path / "run") == []


def test_kept_rows_that_were_damaged_are_an_error_and_go_with_deleted_samples(tmp_path):
    training = Training()
    training.adjoint(tmp_path / "run", name="first")
    (file,) = (tmp_path / "run" / "attributions").iterdir()
    content = file.read_bytes()
    flip(file, file.stat().st_size // 2)
    with (
        dualform.open(tmp_path / "run") as memory,
        pytest.raises(Damaged, match=r"adjoints-first-\w+\.arrow was altered"),
    ):
        memory.sql("SELECT * FROM adjoints")
    assert "adjoints-first-" in check_memory(tmp_path / "run")[0]
    file.write_bytes(content)
    dualform.delete(tmp_path / "run", "sample = 3")
    assert not list((tmp_path / "run" / "attributions").iterdir())
    with dualform.open(tmp_path / "run") as memory:
        tables = ("adjoints", "retrainings", "left_out")
        assert [len(memory.sql(f"SELECT * FROM {table}")) for table in tables] == [0, 0, 0]
    with pytest.raises(Inexact, match="samples were deleted"):
        adjoint(tmp_path / "run", training.model, training.queries, per_row, training.batches)


def test_agreement_with_retrainings(tmp_path):
    training = Training(optimizer=sgd(lr=0.05))
    found = training.adjoint(tmp_path / "run")
    retrained = retrain(
        tmp_path / "run", training.model, training.queries, per_row, training.batches, random=12, share=0.05
    )
    assert retrained.sets.sum(axis=1).tolist() == [1] * 12
    agreement = found.agreement(retrained)
    predicted = np.array([found.without(own) for own in retrained.sets])
    ranks = [own.argsort(axis=0).argsort(axis=0) for own in (predicted, retrained.changes)]  # no two are equal
    each = [np.corrcoef(*(own[:, query] for own in ranks))[0, 1] for query in range(4)]
    assert agreement.correlation == pytest.approx(np.mean(each))
    assert agreement.low <= agreement.correlation <= agreement.high
    assert agreement.correlation > 0.9
    assert str(agreement).startswith("Predicts retraining: rank correlation ")
    backwards = replace(found, values=-found.values).agreement(retrained)
    assert "Does not predict retraining" in str(backwards)
    few = replace(retrained, sets=retrained.sets[:5], losses=retrained.losses[:5])
    with pytest.raises(BadInput, match="5 retrainings"):
        found.agreement(few)


def test_the_caller_s_things_stay_as_they_are(tmp_path):
    training = Training()
    targets = training.queries[1].clone()

    def careless(outputs, labels):
        found = per_row(outputs, labels.clone())
        labels.zero_()
        return found

    training.run(path=tmp_path / "run")
    for own in training.model.parameters():
        own.requires_grad_(False)
        own.grad = None
    training.model.eval()
    torch.manual_seed(5)
    before = {name: own.clone() for name, own in training.model.state_dict().items()}
    adjoint(tmp_path / "run", training.model, training.queries, careless, training.batches, per_row)
    assert torch.equal(torch.get_rng_state(), torch.manual_seed(5).get_state())
    assert torch.equal(training.queries[1], targets)
    assert not training.model.training
    assert all(own.grad is None and not own.requires_grad for own in training.model.parameters())
    assert all(torch.equal(own, before[name]) for name, own in training.model.state_dict().items())


@pytest.mark.parametrize(
    "given", [{"random": 0}, {"random": 2.5}, {"share": 2.0}, {"share": "x"}, {"seed": -1}, {"without": 5}]
)
def test_retrainings_that_cannot_be(recorded, given):
    training, path = recorded
    with pytest.raises(BadInput):
        retrain(path, training.model, training.queries, per_row, training.batches, **given)

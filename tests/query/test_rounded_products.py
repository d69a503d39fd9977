"""Gradients that autocast rounds are rebuilt as it rounded them, so that masters in float32 are, too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import dualform
from dualform.query.view import View
from dualform.store import tables
from dualform.store.maintenance.check import check_memory
from dualform.store.reading.merged_tables import Products
from dualform.store.reading.runs import Runs
from dualform.store.reading.snapshot import Snapshot
from tests.cases import some
from tests.coverage.rows import convolutions_are_one_product
from tests.record.rank_threads import COUNT, Fleet

STEPS, ROWS, LENGTH, TOKENS = 20, 8, 5, 11
NEAR = 1e-5
"""Of the way: what a record that rounds as the training did may miss. One that does not misses 3e-4 and more."""


class Encoder(nn.Module):
    """A block of self-attention, whose head is the embedding again."""

    def __init__(self):
        super().__init__()
        self.tokens, self.q, self.k, self.v = nn.Embedding(TOKENS, 16), *(nn.Linear(16, 16) for _ in range(3))
        self.k.bias = None  # a softmax does not see it
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, TOKENS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        x = self.tokens(x)
        attended = nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))
        return self.head(self.norm(x + attended)).flatten(0, 1)


class Siamese(nn.Module):
    """One layer called four times; under checkpointing, each call is made again in backward."""

    def __init__(self, again=None):
        super().__init__()
        self.layer, self.last, self.again = nn.Linear(12, 12), nn.Linear(12, 3), again

    def forward(self, x):
        for turn in range(4):
            x = x.roll(turn, 1) + torch.tanh(self.called(x))
        return self.last(x)

    def called(self, x):
        if self.again is None or not x.requires_grad:
            return self.layer(x)
        return checkpoint(self.layer, x, use_reentrant=self.again)


def mlp():
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))


def conv():
    return nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 2), nn.Flatten(),
        nn.Linear(24, 3),
    )  # fmt: skip


def data(network, step):
    generator = torch.Generator().manual_seed(step)
    if network is Encoder:
        x = torch.randint(TOKENS, (ROWS, LENGTH), generator=generator)
        return x, x.roll(1, 1).reshape(-1)
    x = torch.randn(ROWS, 12, generator=generator)
    return x, x[:, :3].argmax(1)


def together(model, x, y, scaler, **autocast):
    with torch.autocast("cpu", **autocast):
        out = model(x)
    scaler.scale(cross_entropy(out.float(), y)).backward()


def one_by_one(model, x, y, scaler, **autocast):
    """Two backward passes through the same copies of the weights."""
    with torch.autocast("cpu", **autocast):
        outs = [model(x), model(-x)]
    for out in outs:
        cross_entropy(out.float(), y).backward()


def twice(model, x, y, scaler, **autocast):
    """Two backward passes through the same calls."""
    with torch.autocast("cpu", **autocast):
        out = model(x)
    cross_entropy(out.float(), y).backward(retain_graph=True)
    out.float().square().mean().backward()


def train(
    network, path, backward=together, *, dtype=torch.bfloat16, made=None, steps=range(STEPS), accumulated=1, off=()
):
    """Record a training; returns model and optimizer."""
    torch.manual_seed(0)
    model = network() if made is None else made[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3) if made is None else made[1]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=dtype == torch.float16)
    with dualform.Recorder(model, optimizer, path) as recorder:
        for step in steps:
            with recorder.step(label=range(ROWS)):
                backward(model, *data(network, step), scaler, dtype=dtype, enabled=step not in off)
                if step % accumulated == accumulated - 1:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
    return model, optimizer


def errors(memory):
    return {layer: reconstruction.reconstruction_error for layer, reconstruction in memory.verify().items()}


def assert_near(path):
    with dualform.open(path) as memory:
        found = errors(memory)
        assert max(found.values()) <= NEAR, found
        assert {layer.status.name for layer in memory.info().layers} == {"exact"}
        assert max(layer.status.error for layer in memory.info().layers) <= NEAR
    return found


def without_rounding(path, monkeypatch):
    """What the record misses where products are not rounded."""
    none = Products(*[np.empty(0, np.int64)] * 5, np.empty(0, object))
    with monkeypatch.context() as patched:
        patched.setattr(View, "products", lambda view, layer: none)
        with dualform.open(path) as memory:
            return errors(memory)


@pytest.mark.parametrize(
    "network",
    [mlp, conv, Encoder, Siamese, lambda: Siamese(False), lambda: Siamese(True)],
    ids=["mlp", "conv", "encoder", "siamese", "checkpointed", "reentrant"],
)
def test_adamw_under_autocast_is_rebuilt_as_it_rounded(tmp_path, monkeypatch, network):
    if network is conv and not convolutions_are_one_product():
        pytest.skip("torch rounds the gradient of a bfloat16 convolution sample by sample here (docs/exactness.md)")
    train(network, tmp_path / "m")
    found = assert_near(tmp_path / "m")
    assert all(error > 20 * found[layer] for layer, error in without_rounding(tmp_path / "m", monkeypatch).items())


@pytest.mark.parametrize("network", [mlp, Siamese], ids=["mlp", "siamese"])
def test_float16_with_a_scaler(tmp_path, network):
    train(network, tmp_path / "m", dtype=torch.float16)
    assert_near(tmp_path / "m")


@pytest.mark.parametrize(
    "options",
    [{"accumulated": 4}, {"backward": one_by_one}, {"off": range(7, 12)}],
    ids=["accumulated", "one by one", "autocast is off for a while"],
)
def test_each_pass_is_rounded_by_itself(tmp_path, options):
    train(Siamese, tmp_path / "m", **options)
    assert_near(tmp_path / "m")


def test_what_cannot_be_told_apart_is_not_rounded_and_graded_as_measured(tmp_path):
    train(mlp, tmp_path / "m", twice)
    assert Snapshot.open(tmp_path / "m").table("products").num_rows == 0
    with dualform.open(tmp_path / "m") as memory:
        for layer in memory.info().layers:
            assert layer.status.error == pytest.approx(errors(memory)[layer.name], rel=0.5)
            assert layer.status.error > 1e-4


def test_masked_weights_of_a_partition_add_up(tmp_path):
    train(Siamese, tmp_path / "m")
    with dualform.open(tmp_path / "m") as memory:
        few, many, even, odd = (
            memory.weights(where=where)
            for where in ("label < 3", "label >= 3", "label IN (0, 2)", "label NOT IN (0, 2)")
        )
    for name in some(few):
        # Each of both is the whole, and what no slot brought: the initial weights, and what rounding added.
        np.testing.assert_allclose(few[name] + many[name], even[name] + odd[name], atol=3e-6)
        assert (few[name] - even[name]).abs().max() > 1e-3


def test_ranks_round_before_they_average(tmp_path):
    def make(model):
        return torch.optim.AdamW(model.parameters(), lr=3e-3)

    torch.manual_seed(0)
    models = [mlp() for _ in range(COUNT)]
    for model in models:
        model.load_state_dict(models[0].state_dict())
    fleet = Fleet(tmp_path / "m", models=models, make=make)

    def on_rank(rank, model, optimizer, recorder):
        for step in range(STEPS):
            x, y = data(mlp, COUNT * step + rank)
            with recorder.step():
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):  # threads share the cache
                    out = model(x)
                cross_entropy(out.float(), y).backward()
                fleet.average(rank, model)
                optimizer.step()

    fleet.run(on_rank)
    assert_near(tmp_path / "m")
    found, count = Snapshot.open(tmp_path / "m").products("0"), COUNT * STEPS
    assert found.first.tolist() == list(range(0, ROWS * count, ROWS))
    assert len(set(zip(found.step, found.copy, strict=True))) == count


def test_runs_keep_their_products(tmp_path):
    made = train(Siamese, tmp_path / "a", steps=range(10))
    train(Siamese, tmp_path / "b", made=made, steps=range(10, STEPS))
    folders = [tmp_path / "a", tmp_path / "b"]
    with dualform.open(folders) as memory:
        assert max(errors(memory).values()) <= NEAR
    assert Runs.of(folders).products("layer").step.tolist() == np.repeat(np.arange(STEPS), 4).tolist()


def test_a_memory_of_before_opens_without_the_table(tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        before.delitem(tables.TABLES, "products")
        train(mlp, tmp_path / "m", off=range(STEPS))
    with dualform.open(tmp_path / "m") as memory:
        assert max(errors(memory).values()) <= NEAR
    assert Snapshot.open(tmp_path / "m").table("products").num_rows == 0
    assert check_memory(tmp_path / "m") == []

"""What a question about weights needs of an engine's memory: that of the layers which make its answer."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput
from dualform.query import engine, needs
from dualform.query.resolved import resolve
from dualform.query.sums import grouping
from dualform.query.sums.group_sum import group_sum
from dualform.query.view import never
from dualform.questions import GroupSum, Vectors
from tests.query import arrays
from tests.trainings import record_steps
from tests.wire.values import same

WIDE, STEPS, ROWS = 700, 4, 8


class Net(nn.Module):
    """A small layer before wide ones, and one that is not recorded."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.narrow, self.wide, self.last = nn.Linear(5, 5), nn.Linear(5, WIDE), nn.Linear(WIDE, 5)
        self.square, self.norm = nn.Linear(WIDE, WIDE), nn.LayerNorm(WIDE)

    def forward(self, x):
        return self.last(self.norm(self.square(self.wide(self.narrow(x)))))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    model, path = Net(), tmp_path_factory.mktemp("needs") / "run"
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    record_steps(
        dualform.Recorder(model, optimizer, path, quiet=True),
        optimizer,
        (torch.Generator().manual_seed(step) for step in range(STEPS)),
        lambda generator: model(torch.randn(ROWS, 5, generator=generator)).square().sum(),
        label=torch.arange(ROWS),
    )
    return path


@pytest.fixture
def small(monkeypatch):
    """Work and what is held take little, so that weights are most of what questions need."""
    for name, size in {"WORK": 1 << 20, "HELD_BYTES": 1 << 20, "LEAST": 3 << 20}.items():
        monkeypatch.setattr(needs, name, size)
    monkeypatch.setattr(engine, "anonymous_bytes", lambda: 0)


QUERY = np.ones((1, 5), np.float32)


def test_an_output_needs_its_own_layer_not_the_network(run, small):
    with dualform.open(run) as free, dualform.open(run, ram="16 MB") as bounded:
        asked = {"where": "label < 4"}
        assert same(bounded.output("narrow", QUERY, **asked).values, free.output("narrow", QUERY, **asked).values)
        assert bounded.cancellation("label < 4", layer="narrow") == free.cancellation("label < 4", layer="narrow")
        for whole in (
            bounded.weights,
            bounded.verify,
            lambda: bounded.output("square", np.ones((1, WIDE), np.float32)),
        ):
            with pytest.raises(BadInput, match=r"needs about .* of RAM") as caught:
                whole()
            assert (caught.value.field, caught.value.hint) == ("ram", "Open the memory with more RAM.")
        with pytest.raises(BadInput, match="needs about") as caught:
            bounded.cancellation("label < 4")
        assert caught.value.hint == "Ask of one layer, or open the memory with more RAM."


@pytest.mark.parametrize("layer", ["narrow", "square"])
def test_what_an_output_takes_is_less_than_what_it_claims(run, layer):
    with dualform.open(run) as memory:
        own = memory._view.snapshot.layer(layer)
        claimed = needs.of_weights(memory._view, own) - needs._blocks([own], memory._view.snapshot)
        query = np.ones((1, memory._view.snapshot.layer(layer).d_in), np.float32)
        memory.topk(layer, query, where="label < 4")  # masks and columns are counted apart
        tracemalloc.start()
        try:
            memory.output(layer, query, where="label < 4")
            taken = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert taken <= claimed + 2**20
    assert claimed <= 4 * taken + 2**20, "and not far from it"


def test_layers_that_hold_a_parameter_of_the_layer_count_with_it(tmp_path):
    model = nn.Sequential(nn.Embedding(300, 16), nn.Linear(16, 300, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    spaces = {"0": "token", "1": "token"}
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True, spaces=spaces),
        optimizer,
        1,
        lambda _: model(torch.arange(6).reshape(2, 3)).square().sum(),
        label=[0, 1],
    )
    with dualform.open(tmp_path / "m") as memory:
        view = memory._view
        assert needs.of_weights(view, view.snapshot.layer("0")) == needs.of_weights(view)


@pytest.mark.parametrize(
    ("ask", "instead"),
    [
        (lambda memory: memory.topk("narrow", QUERY), "Ask with fewer queries at once, or by fewer groups, or open"),
        (lambda memory: memory.group_sum("narrow", QUERY, by="label"), "Ask with fewer queries at once, or by"),
        (lambda memory: memory.slots([0, 1]), "Look up fewer slots at once, or open the memory with more RAM."),
    ],
    ids=["topk", "sums", "slots"],
)
def test_a_refusal_says_what_would_need_less(run, small, monkeypatch, ask, instead):
    with dualform.open(run, ram="16 MB") as memory:
        ask(memory)
        monkeypatch.setattr(needs, "_of_layer", lambda resolved: 1 << 30)
        monkeypatch.setattr(needs, "_NUMBER", 1 << 30)
        with pytest.raises(BadInput, match="needs about") as caught:
            ask(memory)
        assert caught.value.hint.startswith(instead)


def test_sums_by_many_groups_hold_the_scores_of_one_batch(monkeypatch, rng):
    entries, groups, queries = 200_000, 5_000, 3 * grouping.BATCH
    monkeypatch.setattr(grouping, "BUDGET", 0)
    made = arrays.memory(
        {"fc": rng.standard_normal((entries, 4), np.float32)}, {"sample": rng.integers(0, groups, entries)}
    )
    memory = arrays.engine(made)
    asked = GroupSum("fc", Vectors(rng.standard_normal((queries, 4), np.float32)), ("sample",))
    memory.ask(asked)
    resolved = resolve(memory._view, asked, never)
    tracemalloc.start()
    try:
        group_sum(resolved, never)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    claimed = needs.of_group_sum(resolved) - needs._of_layer(resolved)
    batch, answer = 8 * grouping.BATCH * entries, 8 * queries * groups
    assert peak < 1.8 * batch + answer
    assert peak < claimed < 2 * (batch + answer) + 8 * needs._COLUMNS * entries

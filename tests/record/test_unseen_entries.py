"""Under Adam a large weight is watched at some of its entries. What happens to the others is not exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import Inexact

STEPS, TOKENS, ROW = 30, 5000, 4321
WRITTEN = "weights were changed outside the optimizer's update, after that of step {0} (from step {0} on)."


class Bag(nn.Module):
    """An embedding far larger than what is watched of it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(TOKENS, 8), nn.Linear(8, 4)

    def forward(self, tokens):
        return self.head(self.embedding(tokens).mean(1))


def record(path, edit=None, between=None):
    """Train with AdamW; `edit(model)` before each update, `between(number, model, optimizer)` after each step."""
    model, generator = Bag(), torch.Generator().manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with dualform.Recorder(model, optimizer, path) as recorder:
        for number in range(STEPS):
            tokens = torch.randint(1, TOKENS, (8, 5), generator=generator)
            tokens[:, 3:] = 0
            with recorder.step():
                optimizer.zero_grad()
                cross_entropy(model(tokens), torch.randint(0, 4, (8,), generator=generator)).backward()
                if edit is not None:
                    edit(model)
                optimizer.step()
            if between is not None:
                between(number, model, optimizer)
    return model


def statuses(path):
    with dualform.open(path) as memory:
        return {layer.name: layer.status for layer in memory.info().layers}


def test_an_honest_training_is_exact(tmp_path):
    record(tmp_path / "m")
    assert [status.name for status in statuses(tmp_path / "m").values()] == ["exact", "exact"]


def test_a_row_that_is_zeroed_after_each_step_is_dated_and_measured(tmp_path):
    def zero(number, model, optimizer):
        with torch.no_grad():
            model.embedding.weight[0] = 0

    record(tmp_path / "m", between=zero)
    found = statuses(tmp_path / "m")
    assert (found["embedding"].name, found["embedding"].since) == ("approximate", 0)
    assert found["embedding"].reason == WRITTEN.format(0)
    with dualform.open(tmp_path / "m") as memory:
        assert found["embedding"].error == pytest.approx(memory.verify()["embedding"].reconstruction_error, rel=0.5)
        with pytest.raises(Inexact, match="weights were changed"):
            memory.weights()


@pytest.mark.parametrize("through_data", [False, True])
def test_one_entry_that_is_written_to_is_dated(tmp_path, through_data):
    def write(number, model, optimizer):
        if number == 12:
            tensor = model.embedding.weight.data if through_data else model.embedding.weight.detach()
            tensor[ROW, 3] = 50.0

    record(tmp_path / "m", between=write)
    found = statuses(tmp_path / "m")["embedding"]
    assert (found.name, found.since, found.reason) == ("approximate", 12, WRITTEN.format(12))
    assert found.error == pytest.approx(1.0, rel=0.1)


def test_what_is_taken_back_before_the_next_update_is_no_write(tmp_path):
    def lend(number, model, optimizer):
        kept = model.embedding.weight.detach().clone()
        with torch.no_grad():
            model.embedding.weight.mul_(0.9)
            model.embedding.weight.copy_(kept)

    record(tmp_path / "m", between=lend)
    assert statuses(tmp_path / "m")["embedding"].name == "exact"


@pytest.mark.parametrize("kind", ["exp_avg", "exp_avg_sq"])
def test_a_statistic_that_is_written_to_is_not_known_to_be_exact_from_then_on(tmp_path, kind):
    def write(number, model, optimizer):
        if number == 12:
            optimizer.state[model.embedding.weight][kind][ROW, 3] = 1.0

    record(tmp_path / "m", between=write)
    found = statuses(tmp_path / "m")["embedding"]
    assert (found.name, found.error, found.since) == ("approximate", None, 13)
    assert (
        found.reason == f"the optimizer's {kind} of embedding.weight was written to before step 13 (from step 13 on)."
    )
    with dualform.open(tmp_path / "m") as memory:
        assert memory.output("embedding", np.eye(TOKENS, dtype=np.float32)[[ROW]], at_step=13).status.name == "exact"
        with pytest.raises(Inexact, match="was written to before step 13"):
            memory.output("embedding", np.eye(TOKENS, dtype=np.float32)[[ROW]], at_step=14)


def test_a_gradient_that_the_slots_do_not_explain_is_not_known_to_be_exact_from_then_on(tmp_path):
    def edit(model):
        model.embedding.weight.grad[ROW] += 1.0

    record(tmp_path / "m", edit=edit)
    for at_step in (1, 10, STEPS):
        with dualform.open(tmp_path / "m") as memory, pytest.raises(Inexact, match="is not in the recorded slots"):
            memory.output("embedding", np.eye(TOKENS, dtype=np.float32)[[ROW]], at_step=at_step)
    found = statuses(tmp_path / "m")
    assert (found["embedding"].name, found["embedding"].error, found["embedding"].since) == ("approximate", None, 0)
    assert found["head"].name == "exact"


def test_gradients_that_were_rounded_to_bfloat16_are_explained(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with dualform.Recorder(model, optimizer, tmp_path / "m") as recorder:
        for _ in range(STEPS):
            with recorder.step():
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    loss = cross_entropy(model(torch.randn(16, 64)), torch.randint(0, 4, (16,)))
                loss.backward()
                optimizer.step()
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().layers[0].status.error < 2.0**-5

"""A layer whose weight is Muon's, which is not watched, and whose bias is AdamW's, which is."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import Inexact
from tests.cases import some

STEPS, WHEN = 24, 12


def train(path, between=None, decay=0.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))
    weights, biases = ([p for p in model.parameters() if p.ndim == axes] for axes in (2, 1))
    optimizers = [optim.Muon(weights, lr=0.02), optim.AdamW(biases, lr=1e-4, weight_decay=decay)]
    with dualform.Recorder(model, optimizers, path) as recorder:
        for step in range(STEPS):
            x, y = torch.randn(16, 16), torch.randint(0, 4, (16,))
            with recorder.step(label=y):
                model.zero_grad()
                cross_entropy(model(x), y).backward()
                for optimizer in optimizers:
                    optimizer.step()
            if between is not None and step == WHEN:
                with torch.no_grad():
                    between(model)
    return dualform.open(path)


def test_blocks_that_moved_by_their_rules_make_an_exact_layer(tmp_path):
    with train(tmp_path / "m") as memory:
        for found in some(memory.verify().values()):
            assert (found.status.name, found.status.reason, found.status.since) == ("exact to bfloat16", "", None)
            assert 0 < found.reconstruction_error < 2.0**-7


def test_a_watched_bias_that_was_moved_by_hand_is_off_since_then(tmp_path):
    """It goes a hundredth of its layer's way, so that the error of all of the layer shows nothing."""
    reason = f"weights were changed outside the optimizer's update, after that of step {WHEN} (from step {WHEN} on)."
    with train(tmp_path / "m", lambda model: model[0].bias.add_(1e-3 * torch.randn(24))) as memory:
        found = memory.verify()
        assert found["0"].reconstruction_error < 2.0**-7
        assert (found["0"].status.name, found["0"].status.since, found["0"].status.reason) == (
            "approximate",
            WHEN,
            reason,
        )
        assert found["0"].status.error == found["0"].reconstruction_error
        assert found["2"].status.name == "exact to bfloat16"
        statuses = {layer.name: layer.status for layer in memory.info().layers}
        assert (statuses["0"].since, statuses["0"].reason, statuses["0"].error) == (WHEN, reason, None)
        assert "Muon was not watched" in statuses["2"].reason
        assert memory.output("0", torch.zeros(1, 16).numpy()).status == found["0"].status
        with pytest.raises(Inexact, match="changed outside"):
            memory.output("0", torch.zeros(1, 16).numpy(), at_step=WHEN + 1)


def test_an_unwatched_weight_that_was_moved_by_hand_is_named(tmp_path):
    with train(tmp_path / "m", lambda model: model[2].weight.mul_(1.1)) as memory:
        found = memory.verify()
        assert found["0"].status.name == "exact to bfloat16"
        assert found["2"].status.name == "approximate"
        assert found["2"].status.reason.startswith("the record misses 2.weight by ")
        assert found["2"].status.reason.endswith(" of the distance it moved; Muon was not watched.")

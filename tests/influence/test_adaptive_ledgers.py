"""Ledgers under rules that treat each number on its own, as Adam does: gradients are carried back through them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import dualform
from dualform.influence import adjoint_scores
from tests.influence.trainings import (
    KINDS,
)

STEPS = 12


ADAPTIVE = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.005, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
}


@pytest.mark.parametrize("name", ADAPTIVE)
def test_rules_that_treat_each_number_on_its_own_add_up(tmp_path, name):
    training = replace(KINDS["linear layers"], optimizer=lambda model: ADAPTIVE[name](model.parameters()))
    training.record(tmp_path / "m", STEPS)
    found = dualform.ledger(tmp_path / "m", training.make(), training.influence(method="path", tail=0.0))
    change = np.abs(found.final - found.initial).max()
    assert np.abs(found.residual).max() <= 1e-3 * change
    assert np.abs(found.lines["truncated"]).max() <= 1e-9
    assert (np.abs(found.lines["decay"]).max() > 1e-6) == (name == "AdamW")


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_layer_adds_up_under_adam(tmp_path, name):
    training = replace(KINDS[name], optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01))
    training.record(tmp_path / "m", STEPS)
    found = dualform.ledger(tmp_path / "m", training.make(), training.influence(method="path", tail=0.0))
    assert np.abs(found.residual).max() <= 1e-2 * np.abs(found.final - found.initial).max()
    assert np.abs(found.lines["truncated"]).max() <= 1e-9


def test_gradients_that_are_carried_back_fade(tmp_path):
    """So many updates are held that the first of them are let go several times."""
    training = replace(
        KINDS["linear layers"], optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.3, 0.9))
    )
    training.record(tmp_path / "m", 40)
    whole, cut = (
        dualform.ledger(tmp_path / "m", training.make(), training.influence(method="path", tail=tail))
        for tail in (0.0, 0.03)
    )
    assert 1e-6 < np.abs(cut.lines["truncated"]).max() < 0.01 * np.abs(whole.sums).sum(1).max()
    np.testing.assert_allclose(cut.sums.sum(1) + cut.lines["truncated"], whole.sums.sum(1), atol=1e-9)
    np.testing.assert_allclose(cut.sums, whole.sums, atol=0.02 * np.abs(whole.sums).max())


@pytest.mark.parametrize("name", ["linear layers", "attention", "a tied weight"])
def test_examples_are_carried_back_in_parts(tmp_path, monkeypatch, name):
    training = replace(KINDS[name], optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01))
    training.record(tmp_path / "m", 4)
    whole = dualform.ledger(tmp_path / "m", training.make(), training.influence())
    monkeypatch.setattr(adjoint_scores, "_MATRICES_BYTES", 1000)
    parts = dualform.ledger(tmp_path / "m", training.make(), training.influence())
    np.testing.assert_allclose(parts.sums, whole.sums, rtol=1e-9, atol=1e-15)

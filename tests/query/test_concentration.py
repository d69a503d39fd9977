"""How far a mask moves weights under a rule that scales gradients, and in how few of their entries."""

from __future__ import annotations

import math
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

import dualform
from dualform.query.view import Cache, never
from dualform.query.weights import trajectory
from dualform.query.weights.cancellation import _figures
from dualform.query.where.mask import Selection
from tests.query.adam_trainings import naive
from tests.trainings import record_steps

NAMES = {"0": 35, "2": 42, "4": 18}
"""Entries of each layer's weight, of tests.record.listed.small_net."""


@pytest.fixture
def trained(by_adamw):
    path, _, history = by_adamw
    return path, history


def oracle(masked: np.ndarray, whole: np.ndarray, initial: np.ndarray) -> tuple[float, float]:
    """By sorting, of flat float64 vectors."""
    moves = np.abs(masked - whole)
    squares = np.sort(moves**2)[::-1]
    few = -(-len(squares) // 100)
    return float(squares[:few].sum() / squares.sum()), float(moves.max() / np.linalg.norm(whole - initial))


@pytest.mark.parametrize("where", ["label <> 1", "step < 20", "step >= 39"])
def test_the_figures_are_those_of_a_plain_loop(trained, where):
    with dualform.open(trained[0]) as memory:
        found = memory.cancellation(where)
        assert list(found.concentrations) == list(NAMES)
        for layer, one in found.concentrations.items():
            names = [f"{layer}.weight", f"{layer}.bias"]
            masked, whole = (
                np.concatenate([naive(memory, name, layer, mask).reshape(-1) for name in names])
                for mask in (where, "label >= 0")
            )
            initial = np.concatenate([trained[1][0][name].reshape(-1) for name in names])
            share, greatest = oracle(masked, whole, initial)
            assert one.share == pytest.approx(share, rel=1e-5)
            assert one.greatest == pytest.approx(greatest, rel=1e-5)


def test_a_mask_that_leaves_all_moves_nothing(trained):
    with dualform.open(trained[0]) as memory:
        one = memory.cancellation("label >= 0", layer="0").concentrations["0"]
        assert math.isnan(one.share)
        assert one.greatest == 0
        assert math.isnan(memory.cancellation("label = 1", at_step=0).concentrations["0"].share)


def test_no_answer_depends_on_masks_that_were_asked_before(trained):
    """The bits of all slots' weights are those of their own run, beside whatever mask the whole was run before."""
    with dualform.open(trained[0]) as fresh:
        expected = fresh.weights()
    with dualform.open(trained[0]) as memory:
        for where in ("label = 1", "step % 3 = 0"):
            memory.weights(where)
            memory.cancellation(where)
        found = memory.weights()
    assert all(np.array_equal(found[name], own) for name, own in expected.items())


def test_the_whole_and_what_stays_wait_for_no_one_who_waits_for_them(monkeypatch):
    """Two questions about one mask, where neither finds the other's weights held: as those of a large network."""
    wanted, found = (np.ones((2, 3)), np.zeros((2, 3))), dict[str, np.ndarray]()
    monkeypatch.setattr(trajectory, "_run", lambda *_: time.sleep(0.2) or wanted)
    view, block = SimpleNamespace(cache=Cache(1)), SimpleNamespace(block_name="0.weight", transposed=False)
    holder = SimpleNamespace(name="0"), block, Selection("label = 1", np.array([True, False]))

    def ask(question):
        found[question.__name__] = question(view, block, [holder], None, never)

    asking = [
        threading.Thread(target=ask, args=[question], daemon=True)
        for question in (trajectory.trajectory, trajectory.whole_beside)
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(60)
    assert found["whole_beside"] is wanted[0]
    assert found["trajectory"] is wanted[1]


def test_the_whole_beside_a_mask_takes_no_pass_of_its_own(trained, monkeypatch):
    passes = []
    run = trajectory._run
    monkeypatch.setattr(
        trajectory, "_run", lambda view, block, *more: passes.append(block.block_name) or run(view, block, *more)
    )
    with dualform.open(trained[0]) as memory:
        masked = memory.weights("label <> 1")
        assert len(passes) == 6
        memory.cancellation("label <> 1")
        assert len(passes) == 6
    with dualform.open(trained[0]) as memory:
        memory.cancellation("label <> 1")
        assert all(torch.equal(own, masked[name]) for name, own in memory.weights("label <> 1").items())


def test_a_gradient_that_all_but_cancels_gathers_the_move_in_one_entry(tmp_path):
    """Two rows of each batch push one entry to opposite sides, but for a thousandth."""
    model = nn.Linear(150, 1, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.ones(2, 150)
    x[1] = -0.5
    x[1, 7] = -0.999
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m"), optimizer, 20, lambda _: model(x).sum(), label=[0, 1]
    )
    with dualform.open(tmp_path / "m") as memory:
        (one,) = memory.cancellation("label = 0").concentrations.values()
        moved = (memory.weights("label = 0")["weight"] - memory.weights()["weight"]).abs().reshape(-1)
    assert int(moved.argmax()) == 7
    assert one.share > 0.99
    assert one.greatest == pytest.approx(999 / math.sqrt(150), rel=0.01)


def test_masks_of_two_spaces_and_a_block_that_layers_share(tmp_path):
    """The figures are of the weights that the same masks leave."""
    embedding, head = nn.Embedding(9, 4), nn.Linear(4, 9)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, nn.Tanh(), head)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    initial = embedding.weight.detach().clone().double()
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m", spaces={"0": "read", "2": "said"}),
        optimizer,
        (torch.randint(9, (3, 5), generator=torch.Generator().manual_seed(step)) for step in range(12)),
        lambda tokens: nn.functional.cross_entropy(model(tokens[:, :-1]).reshape(-1, 9), tokens[:, 1:].reshape(-1)),
        label=[0, 1, 2],
    )
    with dualform.open(tmp_path / "m") as memory:
        masks = {"read": "label <> 1"}
        found = memory.cancellation(masks).concentrations
        assert list(found) == ["0"], "nothing was asked of the other space"
        masked, whole = (memory.weights(where)["0.weight"].double() for where in (masks, None))
    share, greatest = oracle(*(one.numpy().reshape(-1) for one in (masked, whole, initial)))
    assert found["0"].share == pytest.approx(share, rel=1e-3)
    assert found["0"].greatest == pytest.approx(greatest, rel=1e-3)


@given(st.lists(st.floats(0, 1e200), min_size=1, max_size=300).filter(any), st.floats(1e-3, 1e3))
def test_figures_of_any_moves(moves, way):
    found = _figures(np.array(moves), way)
    scaled = np.array(moves) / max(moves)
    squares = np.sort(scaled**2)[::-1]
    assert found.share == pytest.approx(squares[: math.ceil(len(moves) / 100)].sum() / squares.sum())
    assert found.greatest == pytest.approx(max(moves) / way)


def test_what_never_moved_as_a_whole():
    assert _figures(np.array([1.0, 0.0]), 0.0).greatest == math.inf

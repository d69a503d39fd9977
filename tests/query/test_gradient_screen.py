"""The best slots of gradients as their screen finds them: those of all scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import dualform
from dualform import kernels
from dualform.questions import ExampleGradients, LayerGradients
from tests.cases import some
from tests.trainings import record_steps

from .gradient_networks import CLASSES, NETWORKS, Case, loss


class Deep(nn.Module):
    """Three layers, the last of them without a bias, and more samples than a screen would keep."""

    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 12), nn.Tanh())
        self.head = nn.Linear(12, CLASSES, bias=False)

    def forward(self, inputs):
        return self.head(self.parts(inputs))


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    torch.manual_seed(0)
    model, path = Deep(), tmp_path_factory.mktemp("gradients") / "m"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    every = torch.randn(300, 20)
    record_steps(
        dualform.Recorder(model, optimizer, path, quiet=True),
        optimizer,
        ((step, torch.randint(0, 300, (100,))) for step in range(40)),
        lambda step, index: loss(model(every[index] * (1 + step % 3)), index % CLASSES).mean(),
        label=lambda step, index: index % 5,
        sample=lambda step, index: index,
    )
    return model, path


@pytest.mark.parametrize("where", [None, "label <> 1"])
@pytest.mark.parametrize("layers", ["*", "head", ["parts.0", "head"]])
def test_the_screen_finds_what_all_scores_say(deep, layers, where):
    model, path = deep
    with dualform.open(path, backend="numpy") as scan, dualform.open(path, backend="int8") as screen:
        asked = scan.gradients(model, torch.randn(6, 20), torch.arange(6) % CLASSES, loss)
        expected, found = (memory.topk(layers, asked, 5, where, score="gradient") for memory in (scan, screen))
        assert found.ids.tobytes() == expected.ids.tobytes()
        assert found.flat_scores.tobytes() == expected.flat_scores.tobytes()
        if kernels.library() is not None:
            assert screen.tally.fallbacks == 0


@pytest.mark.parametrize("name", NETWORKS)
def test_the_screen_leaves_to_the_scan_what_it_cannot_tell(name, tmp_path):
    case = Case(name, tmp_path / "m")
    last = "2" if name == "mlp" else "head"
    with dualform.open(tmp_path / "m", backend="int8") as screen:
        expected = case.memory.group_sum(last, case.asked, by="slot", score="gradient")
        found = screen.topk(last, case.asked, 2, score="gradient")
        slots = [key[0] for key in expected.groups]
        for own, sums in some(zip(found.slots, expected.sums, strict=True)):
            assert own.tolist() == [slots[g] for g in np.lexsort((slots, -sums))[:2]]


def test_examples_whose_error_signals_are_zero_or_beyond_float32_are_answered(deep):
    _, path = deep
    rng = np.random.default_rng(0)
    keys, errors = rng.normal(size=(4, 20)), rng.normal(size=(4, 16))
    errors[1], errors[2], keys[3] = 0, errors[2] * 1e-30, keys[3] * 1e25
    asked = ExampleGradients(4, {"parts.0": LayerGradients(keys, errors, np.arange(4))})
    with dualform.open(path, backend="numpy") as scan, dualform.open(path, backend="int8") as screen:
        expected, found = (memory.topk("parts.0", asked, 5, score="gradient") for memory in (scan, screen))
    assert found.ids.tobytes() == expected.ids.tobytes()
    assert found.flat_scores.tobytes() == expected.flat_scores.tobytes()


@pytest.fixture(scope="module")
def scanned_and_screened(deep):
    _, path = deep
    with dualform.open(path, backend="numpy") as scan, dualform.open(path, backend="int8") as screen:
        yield scan, screen


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(-12, 12), min_size=4, max_size=4),
    places=st.integers(0, 3),
    rows=st.integers(1, 6),
    k=st.integers(1, 20),
)
def test_the_screen_loses_no_slot_whatever_the_rows(scanned_and_screened, seed, sizes, places, rows, k):
    """Of any sizes, some rows of zeros, and of a row's numbers only a few apart from zero."""
    rng = np.random.default_rng(seed)

    def drawn(width, size):
        found = rng.normal(size=(2 * rows, width)) * 10.0 ** (size / 2)
        found[rng.random(2 * rows) < 0.2] = 0
        if places:
            found[:, places:] = 0
        return found

    examples = np.repeat([0, 1], rows)
    layers = {
        "parts.0": LayerGradients(drawn(20, sizes[0]), drawn(16, sizes[1]), examples),
        "head": LayerGradients(drawn(12, sizes[2]), drawn(CLASSES, sizes[3]), examples),
    }
    asked = ExampleGradients(2, layers)
    expected, found = (memory.topk("*", asked, k, score="gradient") for memory in scanned_and_screened)
    assert found.ids.tobytes() == expected.ids.tobytes()
    assert found.flat_scores.tobytes() == expected.flat_scores.tobytes()

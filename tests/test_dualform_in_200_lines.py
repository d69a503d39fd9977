"""The whole idea in one file: its answers are the product's."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from tests.trainings import learn

FILE = Path(__file__).parent.parent / "clients" / "examples" / "dualform_in_200_lines.py"
STEPS, ROWS = 12, 8


@pytest.fixture(scope="module")
def short():
    spec = importlib.util.spec_from_file_location("dualform_in_200_lines", FILE)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def both(short, tmp_path_factory):
    """A training that both record, with the model that it leaves."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
    path = tmp_path_factory.mktemp("short") / "run"
    own = short.Recorder(model, optimizer)
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        for step in range(STEPS):
            x, label = torch.randn(ROWS, 6), torch.randint(3, (ROWS,))
            said = {"label": label.numpy(), "sample": np.arange(step * ROWS, (step + 1) * ROWS)}
            with recorder.step(**said), own.step(**said):
                learn(optimizer, nn.functional.cross_entropy(model(x), label))
    with dualform.open(path) as memory:
        yield model, own.memory(), memory


@pytest.mark.parametrize(("layer", "width"), [("0", 6), ("2", 5)])
def test_scores_sums_and_contributions_are_those_of_the_product(both, layer, width):
    _, own, memory = both
    query = np.random.default_rng(1).normal(size=width).astype(np.float32).astype(np.float64)
    label = own.columns["label"] < 2
    for where, mask in ((None, None), ("label < 2", label)):
        slots, scores = own.topk(layer, query, 5, mask)
        hits = memory.topk(layer, query[None], k=5, where=where)
        assert slots.tolist() == hits.slots[0].tolist()
        np.testing.assert_allclose(scores, hits.scores[0], rtol=1e-6)
    sums = memory.group_sum(layer, query[None], by="label")
    assert [value for (value,) in sums.groups] == [*own.group_sum(layer, query, "label")]
    np.testing.assert_allclose(sums.sums[0], [*own.group_sum(layer, query, "label").values()], rtol=1e-9, atol=1e-9)
    terms = memory.contributions(layer, query[None], by="label")
    parts = own.contributions(layer, query, "label")
    np.testing.assert_allclose(terms.sums[0], [*parts.values()], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("where", "at_step"), [(None, None), ("label < 2", None), (None, 5), ("label < 2", 7)])
def test_weights_are_those_of_the_product(both, where, at_step):
    model, own, memory = both
    mask = None if where is None else own.columns["label"] < 2
    expected = memory.weights(where=where, at_step=at_step)
    with own.applied(model, mask, at_step):
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)


def test_the_training_is_rebuilt_in_few_lines(both):
    model, own, memory = both
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 200
    for layer in ("0", "2"):
        assert own.reconstruction_error(layer, model.get_submodule(layer)) < 1e-5
        assert memory.verify()[layer].reconstruction_error < 1e-5

"""What groups brought to outputs: the sums written out, and terms that add up to the output of every kind of layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import dualform
from dualform.errors import BadInput, EmptyMask, Inexact, NotFound
from dualform.query.weights import contributions
from tests.cases import some
from tests.query.test_output import STEPS, Case
from tests.query.test_tied_across_spaces import Translator
from tests.trainings import learn, record_steps


@given(
    seed=st.integers(0, 2**32),
    label=st.none() | st.integers(0, 3),
    at_step=st.none() | st.integers(0, STEPS),
    repeats=st.booleans(),
)
@settings(deadline=None, max_examples=10)
def test_each_group_has_the_sum_over_its_slots(seed, label, at_step, repeats):
    case = Case(seed, repeats=repeats)
    where, stays = None, np.ones(len(case.labels), dtype=bool)
    if label is not None:
        where, stays = f"label <> {label}", case.labels != label
    found = case.engine.contributions("fc", case.queries, "label", where, at_step)
    step, queries = STEPS if at_step is None else at_step, case.queries.astype(float)
    assert found.groups == tuple((own,) for own in np.unique(case.labels[stays]).tolist())
    for number, (own,) in enumerate(found.groups):
        group = stays & (case.labels == own)
        weight, _ = case.rebuilt(group, step)
        np.testing.assert_allclose(found.sums[:, number], queries @ (weight - case.weight).T, atol=1e-12, rtol=1e-12)
        assert found.counts[number] == group.sum()
    np.testing.assert_allclose(found.initial, queries @ case.weight.T.astype(float), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.bias, case.rebuilt(stays, step)[1], rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(found.unrecorded_change, 0)
    assert np.abs(found.residual).max() < 1e-12
    if step < STEPS:
        assert found.unexplained is None
    else:  # the final weights are those sums in float32
        weight, bias = (own - own.astype(np.float32) for own in case.rebuilt(np.ones(len(case.labels), dtype=bool)))
        np.testing.assert_allclose(found.unexplained, -queries @ weight.T - bias, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found.output, case.output(stays, step), rtol=1e-12, atol=1e-12)


class Sequences(nn.Module):
    """An embedding whose weight is the head's, and a recurrent layer between."""

    def __init__(self):
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(9, 4), nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 9)
        self.head.weight = self.words.weight

    def forward(self, words):
        return self.head(self.lstm(self.words(words))[0])


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(4, 6, 3, groups=2), nn.Linear(6, 3)

    def forward(self, images):
        return self.head(self.conv(images).relu().mean((2, 3)))


NETWORKS = {
    "images": (Images, lambda: (torch.randn(5, 4, 6, 6),), {}),
    "sequences": (Sequences, lambda: (torch.randint(0, 9, (5, 4)),), {}),
    "two spaces": (Translator, lambda: torch.randint(0, 9, (5, 7)).split([4, 3], dim=1), {"said": "target"}),
}
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


@pytest.fixture(scope="module", params=[(name, rule) for name in NETWORKS for rule in OPTIMIZERS], ids=" ".join)
def memory(request, tmp_path_factory):
    name, rule = request.param
    build, inputs, spaces = NETWORKS[name]
    torch.manual_seed(0)
    model = build()
    optimizer = OPTIMIZERS[rule](model.parameters())
    path = tmp_path_factory.mktemp("contributions") / "m"
    record_steps(
        dualform.Recorder(model, optimizer, path, spaces=spaces, quiet=True),
        optimizer,
        ((step, inputs()) for step in range(6)),
        lambda step, given: model(*given).square().mean(),
        dataset=lambda step, given: "ab"[step % 2],
        sample=np.arange(5),
    )
    with dualform.open(path) as opened:
        yield opened


@pytest.mark.parametrize("where", [None, "sample <> 1"])
def test_the_terms_add_up_and_a_group_has_what_its_mask_leaves(memory, where):
    rng = np.random.default_rng(0)
    for layer in some(memory.info().layers):
        queries = rng.normal(size=(3, layer.d_in)).astype(np.float32)
        found = memory.contributions(layer.name, queries, "dataset", where)
        output = np.asarray(memory.output(layer.name, queries, where))
        np.testing.assert_allclose(found.output, output, rtol=2e-7, atol=1e-7)
        assert np.abs(found.residual).max() <= 1e-12 * max(1, np.abs(output).max())
        assert 0 < np.abs(found.unexplained).max() <= 1e-5 * max(1, np.abs(output).max())
        assert [key for (key,) in found.groups] == ["a", "b"]
        for number, (key,) in enumerate(found.groups):
            mask = f"dataset = '{key}'" if where is None else f"dataset = '{key}' AND {where}"
            alone = np.asarray(memory.output(layer.name, queries, mask, initial=False))
            np.testing.assert_allclose(found.sums[:, number], alone, rtol=2e-7, atol=1e-7)


def test_views_of_a_grouped_convolution_have_their_own(memory):
    views = [(layer, view) for layer in memory.info().layers for view in layer.views]
    if not views:
        pytest.skip("the network has no grouped convolution")
    whole = memory.contributions("conv", np.ones((2, 18 * 2), np.float32), "dataset")
    parts = [memory.contributions(view, np.ones((2, 18), np.float32), "dataset") for _, view in views]
    np.testing.assert_allclose(np.concatenate([part.sums for part in parts], axis=2), whole.sums, atol=1e-12)


def test_layers_that_share_a_weight_across_spaces_are_grouped_by_columns_of_the_sample(memory):
    if "said" not in [layer.name for layer in memory.info().layers]:
        pytest.skip("no layers of two spaces share a weight")
    with pytest.raises(BadInput, match=r"'read' shares .* layer 'said', whose slots are of space 'target'"):
        memory.contributions("read", np.eye(9, dtype=np.float32), "position")


def test_what_moved_the_weights_outside_the_record_stands(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True) as recorder:
        for step in range(4):
            with recorder.step(label=torch.arange(3)):
                learn(optimizer, model(torch.randn(3, 4)).square().sum())
                if step == 2:
                    model.weight.data += 0.5
    queries = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    with dualform.open(tmp_path / "m") as memory:
        with pytest.raises(Inexact):
            memory.contributions("", queries, "label")
        found = memory.contributions("", queries, "label", allow_inexact=True)
        np.testing.assert_allclose(
            found.unrecorded_change, 0.5 * queries.sum(axis=1, keepdims=True).repeat(3, 1), rtol=1e-5
        )
        np.testing.assert_allclose(
            found.output, np.asarray(memory.output("", queries, allow_inexact=True)), rtol=1e-6, atol=1e-6
        )
        np.testing.assert_allclose(found.unexplained, found.unrecorded_change, rtol=1e-6, atol=1e-6)
        assert not found.status.exact


def test_what_was_deleted_stands(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True),
        optimizer,
        4,
        lambda _: model(torch.randn(3, 4)).square().sum(),
        label=torch.arange(3),
    )
    queries = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    with dualform.open(tmp_path / "m") as memory:
        before = memory.contributions("", queries, "label")
    dualform.delete(tmp_path / "m", "label = 1")
    with dualform.open(tmp_path / "m") as memory:
        found = memory.contributions("", queries, "label")
    assert found.groups == ((0,), (2,))
    np.testing.assert_allclose(found.sums, before.sums[:, [0, 2]], atol=1e-12)
    np.testing.assert_allclose(found.unrecorded_change, before.sums[:, 1], atol=1e-12)
    np.testing.assert_allclose(found.initial, before.initial, atol=1e-12)


def test_what_cannot_be_asked_is_refused():
    engine, queries = Case().engine, Case().queries
    with pytest.raises(BadInput, match="by must name at least one column"):
        engine.contributions("fc", queries)
    with pytest.raises(NotFound, match="no slot column 'labl'"):
        engine.contributions("fc", queries, "labl")
    with pytest.raises(EmptyMask):
        engine.contributions("fc", queries, "label", "label > 99")
    with pytest.raises(BadInput, match="at_step must be at most 12, the number of recorded steps, not 99"):
        engine.contributions("fc", queries, "label", at_step=99)


def test_many_groups_are_answered_in_passes(monkeypatch):
    case = Case()
    expected = case.engine.contributions("fc", case.queries, "slot")
    monkeypatch.setattr(contributions, "GROUPS", 8 * 48 * 4 * 8)
    found = case.engine.contributions("fc", case.queries, "slot", at_step=STEPS)
    assert len(found.groups) > 20
    np.testing.assert_allclose(found.sums, expected.sums, rtol=0, atol=1e-12)

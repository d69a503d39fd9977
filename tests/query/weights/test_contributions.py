"""What groups, and single slots, brought to outputs: terms that add up to the output, under every kind of rule."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch import nn

import dualform
from dualform.answers.outputs import estimated_seconds
from dualform.errors import BadInput, EmptyMask, Inexact, NotFound
from dualform.query import needs
from dualform.query.resolved import resolve
from dualform.query.view import never
from dualform.query.weights import contributions, slot_gradients
from dualform.questions import Contribution, Distribution, GroupSum, TopK, Vectors
from tests.cases import some
from tests.query import adam_trainings
from tests.query.adam_trainings import naive
from tests.query.networks import Images
from tests.query.plain_case import STEPS, Case, peak_bytes, some_cases
from tests.query.where.test_spaces import Translator
from tests.trainings import record_steps


@some_cases
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


NETWORKS = {
    "images": (Images, lambda: (torch.randn(5, 4, 6, 6),), {}),
    "sequences": (Sequences, lambda: (torch.randint(0, 9, (5, 4)),), {}),
    "two spaces": (Translator, lambda: torch.randint(0, 9, (5, 7)).split([4, 3], dim=1), {"said": "target"}),
}
OPTIMIZERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


@pytest.fixture(
    scope="module",
    params=[("images", "AdamW"), ("sequences", "momentum"), ("two spaces", "AdamW")],
    ids=" ".join,
)
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


@pytest.mark.parametrize("memory", [("two spaces", "AdamW")], indirect=True, ids=" ".join)
def test_layers_that_share_a_weight_across_spaces_are_grouped_by_columns_of_the_sample(memory):
    with pytest.raises(BadInput, match=r"'read' shares .* layer 'said', whose slots are of space 'target'"):
        memory.contributions("read", np.eye(9, dtype=np.float32), "position")


@pytest.mark.parametrize(
    ("error", "said", "asked"),
    [
        (BadInput, "by must name at least one column", {}),
        (NotFound, "no slot column 'labl'", {"by": "labl"}),
        (EmptyMask, "matches none", {"by": "label", "where": "label > 99"}),
        (BadInput, "at_step must be at most 12, the number of recorded steps, not 99", {"by": "label", "at_step": 99}),
    ],
)
def test_what_cannot_be_asked_is_refused(error, said, asked):
    case = Case()
    with pytest.raises(error, match=said):
        case.engine.contributions("fc", case.queries, **asked)


def test_a_mask_that_leaves_whole_groups_is_answered_from_those_of_all_slots(monkeypatch):
    case = Case()
    every = case.engine.contributions("fc", case.queries, "label")
    monkeypatch.setattr(slot_gradients._LayerTerms, "add", None)  # no pass over the slots
    kept = [number for number, group in enumerate(every.groups) if group != (2,)]
    found = case.engine.contributions("fc", case.queries, "label", "label <> 2")
    assert found.groups == ((0,), (1,), (3,))
    np.testing.assert_array_equal(found.sums, every.sums[:, kept])
    np.testing.assert_array_equal(found.counts, every.counts[kept])


QUERIES = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
SCORE = {"score": "contribution"}
SLOTS = 8 * adam_trainings.STEPS


@pytest.fixture(scope="module")
def small(by_adamw):
    """Steps of 8 rows."""
    with dualform.open(by_adamw[0]) as scaled:
        yield scaled


def test_a_slot_has_its_share_of_a_plain_loop_of_adamw(small):
    """The loop keeps the gradient of one slot, and divides by the root of all."""
    layer = small.info().layers[0].name
    queries = np.random.default_rng(0).normal(size=(2, small.info().layers[0].d_in)).astype(np.float32)
    found = {
        slot: score
        for hits in [small.topk(layer, queries, k=SLOTS, target="1-2", **SCORE)]
        for slot, score in zip(hits.slots[1].tolist(), hits.scores[1].tolist(), strict=True)
    }
    none = naive(small, f"{layer}.weight", layer, "slot < 0")
    scale = max(map(abs, found.values()))
    assert len(found) == SLOTS
    for slot in (0, 7, 100, SLOTS - 1):
        own = (naive(small, f"{layer}.weight", layer, f"slot = {slot}") - none) @ queries[1].astype(float)
        assert abs(found[slot] - (own[1] - own[2])) <= 1e-6 * scale


class Recurrent(nn.Module):
    """A recurrent layer, whose weight is two parameters, and one that is held transposed."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 5, batch_first=True), Transposed()

    def forward(self, x):
        return self.head(self.lstm(x.flatten(2).transpose(1, 2))[0])


class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 5) / 2)

    def forward(self, x):
        return x @ self.weight


RULES = {
    "AMSGrad": lambda p: torch.optim.Adam(p, lr=0.02, amsgrad=True, weight_decay=0.01, maximize=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}


@pytest.fixture(
    scope="module",
    params=[(Images, "AMSGrad"), (Images, "Rprop"), (Recurrent, "RMSprop")],
    ids=lambda own: f"{own[0].__name__} by {own[1]}",
)
def scaled(request, tmp_path_factory):
    """Every update but the last has the gradients of two steps, clipped; recording begins after the first updates."""
    network, rule = request.param
    torch.manual_seed(0)
    model, inputs = network(), torch.randn(30, 4, 4, 3)
    optimizer = RULES[rule](model.parameters())

    def step(index, ends):
        model(inputs[index]).square().sum(-1).mean().backward()
        if ends:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()

    for _ in range(2):
        step(torch.arange(6), ends=True)
    path = tmp_path_factory.mktemp("shares") / "m"
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        for number in range(12):
            index = torch.randperm(30)[:6]
            with recorder.step(dataset="ab"[number % 2], sample=index):
                step(index, ends=number % 2 == 1)
    with dualform.open(path) as opened:
        yield opened


def layers(scaled):
    """Names and widths; groups of channels one at a time."""
    for layer in scaled.info().layers:
        for name in layer.views or (layer.name,):
            yield name, layer.d_in // max(1, len(layer.views)), layer.d_out // max(1, len(layer.views))


def test_the_samples_of_a_group_add_up_to_it_and_each_has_what_its_filter_leaves(scaled):
    for layer, d_in, d_out in some(layers(scaled)):
        queries, target = np.random.default_rng(1).normal(size=(2, d_in)).astype(np.float32), f"0-{d_out - 1}"
        for at_step in (None, 7):
            asked = {"target": target, "at_step": at_step, **SCORE}
            groups = scaled.group_sum(layer, queries, "dataset", **asked)
            scale = np.abs(groups.sums).max()
            assert scale > 0
            for number, (name,) in enumerate(groups.groups):
                samples = scaled.group_sum(layer, queries, "sample", f"dataset = '{name}'", **asked)
                np.testing.assert_allclose(samples.sums.sum(1), groups.sums[:, number], rtol=0, atol=1e-12 * scale)
                for place in (0, len(samples.groups) - 1):
                    where = f"dataset = '{name}' AND sample = {samples.groups[place][0]}"
                    own = np.asarray(scaled.output(layer, queries, where, at_step, initial=False), float)
                    expected = own[:, 0] - own[:, d_out - 1]
                    assert np.abs(samples.sums[:, place] - expected).max() <= 1e-6 * scale


def test_the_best_slots_and_ranks_are_those_of_every_share(scaled):
    for layer, d_in, d_out in some(layers(scaled)):
        queries = np.random.default_rng(1).normal(size=(2, d_in)).astype(np.float32)
        target = np.random.default_rng(2).normal(size=(2, d_out)).astype(np.float32)
        every = scaled.group_sum(layer, queries, ("dataset", "slot"), target=target, **SCORE)
        slots = np.array([slot for _, slot in every.groups])
        hits = scaled.topk(layer, queries, 4, by="dataset", target=target, **SCORE)
        spread = scaled.distribution(layer, queries, target=target, **SCORE)
        for query, sums in enumerate(every.sums):
            for group, name in enumerate("ab"):
                own = np.array([dataset == name for dataset, _ in every.groups])
                order = np.lexsort((slots[own], -sums[own]))[:4]
                assert hits.slots[query][group].tolist() == slots[own][order].tolist()
                np.testing.assert_array_equal(hits.scores[query][group], sums[own][order].astype(np.float32))
            np.testing.assert_allclose(spread.totals[query], np.abs(sums).sum(), rtol=1e-12)
        alone = scaled.topk(layer, queries[1:], 4, by="dataset", target=target[1:], **SCORE)
        np.testing.assert_array_equal(alone.scores[0][0], hits.scores[1][0])
        assert hits.status.exact


def test_contributions_slot_by_slot_and_in_passes_are_the_same(scaled, monkeypatch):
    for layer, d_in, _ in some(layers(scaled)):
        queries = np.random.default_rng(1).normal(size=(2, d_in)).astype(np.float32)
        asked = (layer, queries, "sample", "dataset = 'b'", 9)
        by_slot = scaled.contributions(*asked)
        with monkeypatch.context() as patch:
            patch.setattr(contributions, "why_no_slot_shares", lambda view, layer: "it has none")
            patch.setattr(contributions, "GROUPS", 4 * 48 * 6 * 9)  # a few groups of each pass
            in_passes = scaled.contributions(*asked)
        assert by_slot.groups == in_passes.groups
        np.testing.assert_array_equal(by_slot.counts, in_passes.counts)
        scale = np.abs(by_slot.sums).max()
        assert scale > 0
        for own in (by_slot, in_passes):
            assert np.abs(own.residual).max() <= 1e-11 * max(1.0, np.abs(own.output).max())
        np.testing.assert_allclose(in_passes.sums, by_slot.sums, rtol=0, atol=1e-11 * scale)


def test_a_filter_of_slots_that_no_update_used_is_refused(scaled):
    layer, d_in, _ = next(layers(scaled))
    with pytest.raises(EmptyMask, match="No update before step 4"):
        scaled.topk(layer, np.ones(d_in, np.float32), where="step >= 6", target=0, at_step=4, **SCORE)


def test_slots_of_muon_have_no_shares(tmp_path, monkeypatch):
    torch.manual_seed(0)
    model = nn.Linear(5, 5, bias=False)
    optimizer = torch.optim.Muon(model.parameters(), lr=0.02)
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True),
        optimizer,
        1,
        lambda _: model(torch.randn(3, 5)).square().sum(),
        label=[0, 1, 1],
    )
    with dualform.open(tmp_path / "m") as scaled:
        for ask in (scaled.topk, scaled.distribution):
            with pytest.raises(Inexact, match="trained with Muon") as refused:
                ask("", QUERIES, target=0, **SCORE)
            assert "group_sum" in refused.value.hint
            assert refused.value.field == "score"
        with monkeypatch.context() as patch:
            patch.setattr(contributions, "_MOST_WORK", 10)
            with pytest.raises(BadInput, match="2 groups of layer '' would take hours: each is 25 weights") as refused:
                scaled.contributions("", QUERIES, "label")
            assert refused.value.field == "by"
        found = scaled.group_sum("", QUERIES, "label", target=0, **SCORE)
        assert np.isfinite(found.sums).all()


@pytest.mark.parametrize(
    "question",
    [
        lambda layer, queries, target: TopK(layer, queries, 5, score="contribution", target=target),
        lambda layer, queries, target: GroupSum(layer, queries, ("slot",), score="contribution", target=target),
        lambda layer, queries, target: Distribution(layer, queries, score="contribution", target=target),
        lambda layer, queries, target: Contribution(layer, queries, ("slot",)),
    ],
    ids=["topk", "sums", "distribution", "contributions"],
)
def test_several_passes_give_what_one_gives_within_the_ram_they_claim(small, monkeypatch, question):
    layer = small.info().layers[0]
    queries = Vectors(np.random.default_rng(0).normal(size=(4, layer.d_in)).astype(np.float32))
    asked = question(layer.name, queries, np.ones(layer.d_out, np.float32))
    expected = small.ask(asked)
    claims = {TopK: needs.of_top_k, GroupSum: needs.of_group_sum, Distribution: needs.of_distribution}
    monkeypatch.setattr(needs, "SHARES", 3 * SLOTS * layer.d_in * layer.d_out // 5)
    with dualform.open(small.path) as scaled:
        claimed = claims.get(type(asked), needs.of_contributions)(resolve(scaled._view, asked, never))
        taken, found = peak_bytes(partial(scaled.ask, asked))
    assert taken <= claimed
    for name in some(own for own in ("sums", "flat_scores", "totals") if hasattr(found, own)):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-6, atol=1e-9)


def test_the_estimate_grows_with_what_is_run_again():
    """Its figures were measured; here only that none of the sizes is left out."""
    sizes = {"slots": 6000, "steps": 94, "d_in": 784, "d_out": 64, "outputs": 2}
    usual = estimated_seconds(**sizes)
    assert 0.02 < usual < 0.5
    assert all(estimated_seconds(**{**sizes, name: 10 * size}) > usual for name, size in sizes.items())

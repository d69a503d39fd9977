"""Contributions along a direction: the best slots and the sums, against every term written out in float64."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import dualform
from dualform import kernels
from dualform.errors import BadInput, EmptyMask, Inexact
from dualform.query.score.canonical import canonical_scores
from tests.cases import pairwise
from tests.query import arrays, oracle
from tests.query.networks import Images, Tied
from tests.query.plain_case import BATCH, STEPS, Case
from tests.trainings import record_steps

D_OUT = 4
directions = st.one_of(
    st.integers(0, D_OUT - 1),
    st.sampled_from(["0-1", "3-2"]),
    st.sampled_from(["one vector", "a vector for each query"]),
)


def direction_rows(target, queries, rng):
    """What to ask with, and float32[queries, d_out]: the direction of each query."""
    if target == "one vector":
        given = rng.normal(size=D_OUT).astype(np.float32)
        return given, np.tile(given, (queries, 1))
    if target == "a vector for each query":
        given = rng.normal(size=(queries, D_OUT)).astype(np.float32)
        return given, given
    rows = np.zeros((queries, D_OUT), dtype=np.float32)
    output, _, minus = str(target).partition("-")
    rows[:, int(output)] = 1
    if minus:
        rows[:, int(minus)] = -1
    return target, rows


def terms_of(case, rows, at_step=None):
    """float64[n, T]: each slot's contribution to each query, from the record alone; 0 from `at_step` on."""
    ids = np.arange(STEPS * BATCH)
    coefficients = case.engine.coefficients("fc", ids, at_step)
    return np.stack(
        [
            canonical_scores(case.keys, query) * (canonical_scores(case.values, row) * coefficients) + 0.0
            for query, row in zip(case.queries, rows, strict=True)
        ]
    )


def backend_of(case, backend):
    """The case's memory, asked by that backend: "int8" screens, "numpy" scans."""
    case.engine = arrays.engine(case.memory, backend)
    return case


asked = {
    "backend": st.sampled_from(["numpy", "int8"]),
    "seed": st.integers(0, 2**32),
    "target": directions,
    "label": st.none() | st.integers(0, 3),
    "at_step": st.none() | st.integers(1, STEPS),
    "repeats": st.booleans(),
}


def stay(case, label, at_step):
    where = None if label is None else f"label <> {label}"
    stays = np.ones(STEPS * BATCH, dtype=bool) if label is None else case.labels != label
    return where, stays & (case.steps < (STEPS if at_step is None else at_step))


@given(**asked, k=st.integers(1, 200), by=st.sampled_from([None, "label", ["label", "step"]]))
@settings(deadline=None, max_examples=20)
def test_the_best_slots_are_those_of_a_brute_force(backend, seed, target, label, at_step, repeats, k, by):
    case = backend_of(Case(seed, repeats=repeats), backend)
    given, rows = direction_rows(target, len(case.queries), np.random.default_rng(seed))
    where, stays = stay(case, label, at_step)
    found = case.engine.topk("fc", case.queries, k, where, by, score="contribution", target=given, at_step=at_step)
    columns = [{"label": case.labels, "step": case.steps}[name].tolist() for name in found.by]
    groups = oracle.groups(columns, stays)
    if by is not None:
        assert list(found.groups) == list(groups)
    for query, terms in enumerate(terms_of(case, rows, at_step)):
        slots, scores = found.slots[query], found.scores[query]
        pairs = [(slots, scores)] if by is None else zip(slots, scores, strict=True)
        for (own, had), members in zip(pairs, groups.values(), strict=True):
            best = oracle.best(terms.tolist(), members, k)
            assert own.tolist() == best
            assert had.tobytes() == terms[best].astype(np.float32).tobytes()
    assert found.status.exact
    assert found.scan.slots_matching == stays.sum()


@given(**asked)
@settings(deadline=None, max_examples=20)
def test_the_sums_of_groups_are_those_of_their_terms(backend, seed, target, label, at_step, repeats):
    case = backend_of(Case(seed, repeats=repeats), backend)
    given, rows = direction_rows(target, len(case.queries), np.random.default_rng(seed))
    where, stays = stay(case, label, at_step)
    how = {"score": "contribution", "target": given, "at_step": at_step}
    found = case.engine.group_sum("fc", case.queries, "label", where, **how)
    first = how | {"target": given[:1] if np.ndim(given) == 2 else given}
    alone = case.engine.group_sum("fc", case.queries[0], "label", where, **first)
    assert alone.sums.tobytes() == found.sums[:1].tobytes()
    terms = terms_of(case, rows, at_step)
    groups = oracle.groups([case.labels.tolist()], stays)
    assert list(found.groups) == list(groups)
    assert found.counts.tolist() == [len(members) for members in groups.values()]
    for number, members in enumerate(groups.values()):
        sizes = np.abs(terms[:, members]).sum(axis=1)
        assert (np.abs(found.sums[:, number] - terms[:, members].sum(axis=1)) <= 1e-13 * sizes).all()
    # What a direction has of the whole vector that `contributions` answers.
    whole = case.engine.contributions("fc", case.queries, "label", where, at_step)
    for query, row in enumerate(rows):
        named = dict(zip(whole.groups, whole.sums[query] @ row.astype(float), strict=True))
        wanted = [named[key] for key in found.groups]
        np.testing.assert_allclose(found.sums[query], wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("target", "by", "where", "repeats"),
    pairwise([3, "0-5", "vectors"], [None, "label"], [None, "label <> 2"], [False, True]),
)
def test_the_screen_leaves_out_what_the_scan_would_not_find(target, by, where, repeats):
    rng, slots = np.random.default_rng(0), 6000
    rows = rng.normal(size=(900 if repeats else slots, 24)).astype(np.float32)
    values = rng.normal(size=(slots, 8)) * 10.0 ** rng.normal(size=(slots, 1))
    start = {"fc.weight": np.zeros((8, 24), np.float32), "fc.bias": np.zeros(8, np.float32)}
    memory = arrays.memory(
        {"fc": rows},
        {"label": rng.integers(0, 4, slots).tolist(), "step": (np.arange(slots) // 100).tolist()},
        values={"fc": values.astype(np.float32)},
        rows_of_slots={"fc": rng.integers(0, 900, slots)} if repeats else {},
        initial=start,
        final=start,
    )
    queries = rng.normal(size=(5, 24)).astype(np.float32)
    given = rng.normal(size=(5, 8)).astype(np.float32) if target == "vectors" else target
    asked = {"by": by, "where": where, "score": "contribution", "target": given, "allow_inexact": True}
    scan, screen = (arrays.engine(memory, backend) for backend in ("numpy", "int8"))
    expected, found = (engine.topk("fc", queries, 7, **asked) for engine in (scan, screen))
    assert found.ids.tobytes() == expected.ids.tobytes()
    assert found.flat_scores.tobytes() == expected.flat_scores.tobytes()
    if kernels.library() is not None and not (repeats and by):  # a key that is of several groups is scanned
        assert screen.tally.fallbacks == 0
        assert 0 < screen.tally.candidates < 5 * 0.1 * len(rows)


@pytest.mark.parametrize("backend", ["numpy", "int8"])
def test_worth_beyond_float32_is_ranked_all_the_same(backend):
    """Of which the screen's factors have nothing left."""
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(200, 3)).astype(np.float32), rng.normal(size=(200, 2)).astype(np.float32)
    values[5:] *= np.float32(1e-38)
    values[100:] *= np.float32(1e-7)
    start = {"fc.weight": np.zeros((2, 3), np.float32), "fc.bias": np.zeros(2, np.float32)}
    memory = arrays.memory({"fc": keys}, {"label": [0] * 200}, values={"fc": values}, initial=start, final=start)
    engine, query = arrays.engine(memory, backend), np.float32([1, -1, 0.5])
    terms = canonical_scores(keys, query) * (values[:, 1].astype(float) * engine.coefficients("fc", np.arange(200)))
    for target in (1, [0.0, 1.0]):
        for k in (3, 30):
            found = engine.topk("fc", query, k, score="contribution", target=target, allow_inexact=True)
            assert found.ids.tolist() == oracle.best((terms + 0.0).tolist(), range(200), k)


@pytest.mark.parametrize(("score", "k"), [("dot", 1), ("abs", 3), ("cosine", 10), ("contribution", 3), ("dot", 500)])
def test_the_k_largest_groups_are_those_of_all_sums(score, k, monkeypatch):
    monkeypatch.setattr("dualform.query.sums.group_sum.LARGEST", 8 * 12 * 2)  # two queries at a time
    case = Case()
    how = {"by": "step", "score": score, "target": 2 if score == "contribution" else None}
    whole, found = (case.engine.group_sum("fc", case.queries, k=own, **how) for own in (None, k))
    assert found.total == len(whole.groups) == 12
    assert found.sums.shape == found.numbers.shape == (5, min(k, 12))
    for query, sums in enumerate(whole.sums.tolist()):
        best = sorted(range(12), key=lambda group: (-abs(sums[group]), group))[:k]
        ranked = found.ranked(query)
        assert [(key, count) for key, _, count in ranked] == [(whole.groups[g], whole.counts[g]) for g in best]
        # Absolute sums of groups that change signs take a path that depends on how many queries there are.
        within = 1e-6 if score == "abs" else 0
        np.testing.assert_allclose([own for _, own, _ in ranked], [sums[g] for g in best], rtol=within, atol=0)
        assert found.part(query, query + 1).ranked() == ranked
    assert set(found.groups) == {key for query in range(5) for key, _, _ in found.ranked(query)}


def test_sums_as_large_as_the_last_are_taken_in_the_order_of_their_groups():
    keys = np.float32([[1], [-1], [1], [2], [-1]])
    engine = arrays.engine(arrays.memory({"fc": keys}, {"label": [0, 1, 2, 3, 4]}))
    assert [key for key, _, _ in engine.group_sum("fc", [1.0], "label", k=3).ranked()] == [(3,), (0,), (1,)]


class Parts(nn.Module):
    """Layers whose optimizers do not update at the same steps."""

    def __init__(self):
        super().__init__()
        self.often, self.seldom = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.seldom(self.often(inputs).tanh())


def test_layers_of_one_space_have_the_slots_that_their_own_updates_used(tmp_path):
    torch.manual_seed(0)
    model = Parts()
    often, seldom = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.often, model.seldom))
    with dualform.Recorder(model, [often, seldom], tmp_path / "m", quiet=True) as recorder:
        for step in range(5):
            with recorder.step(label=torch.full((2,), step)):
                model(torch.randn(2, 3)).square().mean().backward()
                often.step()
                often.zero_grad()
                if step % 2:
                    seldom.step()
                    seldom.zero_grad()
    memory = dualform.open(tmp_path / "m")
    counted = {}
    for layer, width in (("often", 3), ("seldom", 4)):
        query = np.ones(width, dtype=np.float32)
        found = memory.group_sum(layer, query, "label", score="contribution", target=0, at_step=3)
        counted[layer] = dict(zip(found.groups, found.counts.tolist(), strict=True))
    assert counted["often"] == {(0,): 2, (1,): 2, (2,): 2}
    assert counted["seldom"] == {(0,): 2, (1,): 2}  # the gradient of the third step was used by none yet


@pytest.mark.parametrize("target", [4, "0-4", -1, "3-3", "x", "1-", "-1", "", True, 1.5, [1.0, 2.0], np.ones((2, 4))])
def test_a_direction_that_is_none_is_refused(target):
    case = Case()
    for ask in (case.engine.topk, case.engine.group_sum):
        with pytest.raises(BadInput) as refused:
            ask("fc", case.queries, by="label", score="contribution", target=target)
        assert refused.value.field == "target"
        assert "target" in refused.value.message


ALONG = {"score": "contribution", "target": 1}


@pytest.mark.parametrize(
    ("error", "said", "asked"),
    [
        (BadInput, "needs target", {"score": "contribution"}),
        (BadInput, "target cannot be used with", {"target": 1}),
        (BadInput, "at_step cannot be used with", {"at_step": 3}),
        (BadInput, "allow_inexact cannot be used with", {"allow_inexact": True}),
        (BadInput, "Pass them to Target", ALONG | {"target": dualform.Target(1), "at_step": 2}),
        (BadInput, "13", ALONG | {"at_step": 13}),
        (EmptyMask, "No update before step 0", ALONG | {"at_step": 0}),
    ],
)
def test_a_contribution_needs_a_direction_and_other_scores_take_none(error, said, asked):
    case = Case()
    with pytest.raises(error, match=said):
        case.engine.topk("fc", case.queries, **asked)


@pytest.mark.parametrize("backend", ["numpy", "int8"])
@pytest.mark.parametrize("target", [1, [1.0, 1.0, 0.0]])
def test_values_that_are_not_finite_are_refused_unless_they_are_masked_out(target, backend):
    keys, values = np.ones((16, 2), dtype=np.float32), np.ones((16, 3), dtype=np.float32)
    values[2, 1] = np.nan
    start = {"fc.weight": np.zeros((3, 2), np.float32), "fc.bias": np.zeros(3, np.float32)}
    columns = {"label": [0, 1, 2, 3] * 4, "step": list(range(16))}
    memory = arrays.memory({"fc": keys}, columns, values={"fc": values}, initial=start, final=start)
    engine = arrays.engine(memory, backend)
    how = {"score": "contribution", "allow_inexact": True}
    for ask in (engine.topk, engine.group_sum):
        with pytest.raises(Inexact, match="first at slot 2"):
            ask("fc", keys[0], by="label", target=target, **how)
    with pytest.raises(Inexact, match="first at slot 2"):
        engine.topk("fc", keys[0], 3, target=target, **how)
    assert engine.topk("fc", keys[0], 3, "slot <> 2", target=target, **how).ids.tolist() == [0, 1, 3]
    assert engine.group_sum("fc", keys[0], "label", "slot <> 2", target=target, **how).counts.tolist() == [4, 4, 3, 4]
    assert engine.topk("fc", keys[0], 3, target=0, **how).ids.tolist() == [0, 1, 2]  # that output's values are finite


RULES = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A memory of each rule, recorded once."""

    @cache
    def of(rule):
        path = tmp_path_factory.mktemp("directed") / "m"
        torch.manual_seed(0)
        model = Tied(4)
        optimizer = RULES[rule](model.parameters())
        record_steps(
            dualform.Recorder(model, optimizer, path, quiet=True),
            optimizer,
            6,
            lambda step: model(torch.randn(2, 4)).square().mean(),
            label=lambda step: torch.tensor([step % 3, 1]),
        )
        return dualform.open(path)

    return of


VECTORS = np.float32([[0.5, -1, 2], [1, 2, 3]])


@pytest.mark.parametrize(
    ("rule", "layer", "target"),
    [
        ("AdamW", "last", 1),
        ("AdamW", "last", VECTORS),
        ("AdamW", "first", "2-0"),
        ("AdamW", "second", VECTORS),
        ("SGD", "first", VECTORS),
        ("SGD", "last", "2-0"),
    ],
)
def test_sums_are_those_of_all_outputs_along_the_direction_whatever_the_rule(trained, rule, layer, target):
    memory, queries = trained(rule), np.random.default_rng(0).normal(size=(2, 4))
    if layer != "last" and isinstance(target, np.ndarray):
        target = np.pad(target, ((0, 0), (0, 1)))
    for at_step, k in ((None, None), (3, None), (None, 2)):
        asked = {"by": "label", "score": "contribution", "at_step": at_step}
        found = memory.group_sum(layer, queries, target=target, k=k, **asked)
        whole = memory.contributions(layer, queries, "label", at_step=at_step)
        rows = dualform.TopK("", [0.0], score="contribution", target=target).target.rows(2, whole.sums.shape[2])
        along = np.einsum("ngo,no->ng", whole.sums, rows.astype(float))
        for query, own in enumerate(along):
            named = dict(zip(whole.groups, own, strict=True))
            assert len(found.ranked(query)) == (3 if k is None else k)
            for key, number, _ in found.ranked(query):
                assert number == pytest.approx(named[key], rel=1e-9, abs=1e-12)
        assert found.status.exact


@pytest.mark.parametrize(
    ("rule", "layer", "reason"),
    [
        ("AdamW", "first", r"trained with AdamW.* shares its weight with 'second', whose slots moved it, too\."),
        ("AdamW", "second", r"trained with AdamW.* shares its weight with 'first', whose slots moved it, too\."),
        ("SGD", "second", "shares a parameter"),
    ],
)
def test_best_slots_without_values_of_their_own_are_refused_with_what_to_ask(trained, rule, layer, reason):
    memory = trained(rule)
    with pytest.raises(Inexact, match=reason) as refused:
        memory.topk(layer, np.ones(4), score="contribution", target=0)
    assert "group_sum" in refused.value.hint
    assert refused.value.field == "score"


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    torch.manual_seed(0)
    model, path = Images(), tmp_path_factory.mktemp("grouped") / "m"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    record_steps(
        dualform.Recorder(model, optimizer, path, quiet=True),
        optimizer,
        4,
        lambda _: model(torch.randn(5, 4, 6, 6)).square().mean(),
        label=torch.arange(5),
    )
    return path


@pytest.mark.parametrize(
    ("target", "view", "backend"),
    [(2, "conv.0", "numpy"), ("0-1", "conv.1", "int8"), (np.float32([0.5, -1, 2]), "conv.0", "int8")],
    ids=["an output", "two outputs", "a vector"],
)
def test_a_group_of_channels_has_contributions_of_its_own(grouped, target, view, backend):
    with dualform.open(grouped, backend=backend) as memory:
        width = memory.keys(view, [0]).shape[1]
        query, ids = np.linspace(-1, 2, width, dtype=np.float32), np.arange(memory.info().slots["patch"])
        rows = dualform.TopK("", [0.0], score="contribution", target=target).target.rows(1, 3)
        values, coefficients = memory.values(view, ids), memory.coefficients(view, ids)
        terms = canonical_scores(memory.keys(view, ids), query) * (canonical_scores(values, rows[0]) * coefficients)
        found = memory.topk(view, query, 5, score="contribution", target=target)
        assert found.ids.tolist() == oracle.best((terms + 0.0).tolist(), ids.tolist(), 5)
        with pytest.raises(BadInput, match="groups of channels, which are queried one at a time"):
            memory.topk("conv", np.ones(2 * width), score="contribution", target=target)

"""The k best slots are those of a float64 brute force, by product or cosine, whatever the backend and the numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from dualform.errors import Inexact, NotFound
from dualform.query.engine import Engine
from dualform.query.score.canonical import as_float32, bound, canonical_scores, norms
from dualform.query.search import scan
from dualform.query.sums import grouping
from dualform.questions import SlotKeys
from tests.query import arrays, oracle

BACKENDS = ["int8", "numpy", "torch", "faiss"]


class Noisy:
    """As far from the truth as the bound allows."""

    name = "noisy"

    def __init__(self, rounding=0.0):
        self.rounding = rounding

    def scores(self, keys, queries):
        limits = bound(keys.shape[1], 2.0**-24, self.rounding).slope * np.outer(norms(queries), norms(keys))
        noise, exact = (
            np.random.default_rng(0).choice([-1, 1], limits.shape),
            queries.astype(float) @ keys.T.astype(float),
        )
        # The result is rounded once more, which is part of what the bound allows.
        return (exact + 0.9 * noise * (limits - 2.0**-24 * np.abs(exact)).clip(0)).astype(np.float32)


NOISY = {"noisy": Noisy(), "noisy bfloat16": Noisy(2.0**-8)}
LABELS = [0, 1, None, 2]
SLOW = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=[*BACKENDS, *NOISY])
def backend(request):
    return request.param


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few rows, so that small memories have many."""
    monkeypatch.setattr(scan, "block_rows", lambda width: 32)
    monkeypatch.setattr(scan, "_PENDING", 16)


@st.composite
def cases(draw):
    """Keys of one of several kinds, queries, and the question."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, d, n = draw(st.integers(1, 150)), draw(st.sampled_from([1, 2, 3, 7, 16, 33])), draw(st.integers(1, 4))
    keys = rng.normal(size=(rows, d)).astype(np.float32)
    queries = rng.normal(size=(n, d)).astype(np.float32)
    kind = draw(st.sampled_from(["normal", "duplicates", "zeros", "near ties", "tiny", "huge", "mixed", "ties"]))
    if kind == "duplicates":
        keys = keys[rng.integers(0, max(1, rows // 8), rows)]
    elif kind == "ties":
        keys, queries = (rng.integers(-1, 2, own.shape).astype(np.float32) for own in (keys, queries))
    elif kind == "zeros":
        keys[rng.random(rows) < 0.7] = 0
        queries[0] = 0
    elif kind == "near ties":
        keys = (keys[:1] * (1 + rng.integers(-2, 3, (rows, d)) * 2.0**-23)).astype(np.float32)
    elif kind == "tiny":
        keys = (keys * 1e-39).astype(np.float32)
        queries = (queries * 10.0 ** rng.integers(-8, 1)).astype(np.float32)
    elif kind == "huge":
        keys = (keys.astype(float) * 1e38).clip(-3e38, 3e38).astype(np.float32)
        queries = (queries.astype(float) * 1e38).clip(-3e38, 3e38).astype(np.float32)
    elif kind == "mixed":
        keys = (keys * 10.0 ** rng.uniform(-30, 18, (rows, 1))).astype(np.float32)
    repeats = draw(st.booleans())
    of_slot = rng.integers(0, rows, draw(st.integers(1, 200))) if repeats else None
    slots = len(of_slot) if of_slot is not None else rows
    return {
        "rows": keys,
        "of_slot": of_slot,
        "keys": keys[of_slot] if of_slot is not None else keys,
        "queries": queries,
        "labels": [LABELS[i] for i in rng.integers(0, 4, slots)],
        "k": draw(st.integers(1, 30) | st.just(500)),
        "modulus": draw(st.sampled_from([None, 2, 9, 40])),
    }


def engine_of(case, backend):
    of_slot = case["of_slot"]
    made = arrays.memory(
        {"fc": case["rows"]},
        {"label": case["labels"]},
        rows_of_slots={} if of_slot is None else {"fc": of_slot},
        segment_rows=case.get("segment_rows", 47),
    )
    return Engine(made, NOISY[backend]) if backend in NOISY else arrays.engine(made, backend)


def mask_of(case):
    stays = [case["modulus"] is None or slot % case["modulus"] == 0 for slot in range(len(case["labels"]))]
    return stays, None if case["modulus"] is None else f"slot % {case['modulus']} = 0"


def expected_scores(keys: np.ndarray, query: np.ndarray, score: str) -> list[float]:
    """As each score is defined; a cosine as it is reported."""
    products = canonical_scores(keys, query)
    if score == "cosine":
        lengths = np.sqrt(canonical_scores(keys, keys)) * np.sqrt(canonical_scores(query[None], query))
        products = as_float32(products / np.where(lengths == 0, 1, lengths))
    return (np.abs(products) if score == "abs" else products).tolist()


def exact_cosines(keys: np.ndarray, query: np.ndarray) -> list[float]:
    """From exact sums."""
    products = oracle.scores(keys, query)
    own = math.sqrt(*oracle.scores(query[None], query))
    lengths = [math.sqrt(*oracle.scores(key[None], key)) * own for key in keys]
    return [product / length if length else 0.0 for product, length in zip(products, lengths, strict=True)]


@settings(parent=SLOW, max_examples=15)
@given(case=cases(), score=st.sampled_from(["dot", "abs", "cosine"]), by=st.sampled_from([None, "label"]))
def test_hits_are_those_of_the_brute_force(small_blocks, backend, case, score, by):
    """With the bits of their scores, however many queries are asked at once."""
    stays, where = mask_of(case)
    hits = engine_of(case, backend).topk("fc", case["queries"], case["k"], where=where, by=by, score=score)
    left = np.flatnonzero(stays).tolist()
    groups = oracle.groups([case["labels"]], stays) if by else {(): left}
    assert hits.groups == (tuple(groups) if by else None)
    for i, query in enumerate(case["queries"]):
        expected = expected_scores(case["keys"], query, score)
        slots, scores = (own[i] if by else [own[i]] for own in (hits.slots, hits.scores))
        for found, had, members in zip(slots, scores, groups.values(), strict=True):
            assert found.tolist() == oracle.best(expected, members, case["k"])
            assert had.tolist() == as_float32(np.array(expected)[found]).tolist()
        if score == "cosine":
            np.testing.assert_allclose(expected, exact_cosines(case["keys"], query), rtol=2.0**-24, atol=1e-14)
    counts = [min(case["k"], len(members)) for members in groups.values()]
    assert hits.counts.tolist() == [counts] * len(case["queries"])
    assert (hits.scan.slots_scanned, hits.scan.slots_matching) == (len(stays), len(left))


@given(st.integers(0, 2**32), st.sampled_from([1, 5, 64, 800]))
@settings(deadline=None, max_examples=10)
def test_canonical_scores_are_within_a_few_units_of_the_exact_sum(seed, d):
    rng = np.random.default_rng(seed)
    keys, query = rng.normal(size=(20, d)).astype(np.float32), rng.normal(size=d).astype(np.float32)
    exact = oracle.scores(keys, query)
    sizes = np.abs(keys.astype(float) * query).sum(axis=1)
    assert np.all(np.abs(canonical_scores(keys, query) - exact) <= 12 * 2.0**-53 * sizes)


@pytest.mark.parametrize("score", ["dot", "abs"])
@pytest.mark.parametrize("by", [None, "label"])
def test_near_ties_are_told_apart_however_a_backend_errs(backend, by, score, rng):
    keys = np.tile(rng.normal(size=40).astype(np.float32), (600, 1))
    keys[:, :3] *= (1 + rng.integers(-9, 10, (600, 3)) * 2.0**-23).astype(np.float32)
    case = {"rows": keys, "of_slot": None, "labels": [slot % 2 for slot in range(600)], "segment_rows": 300}
    queries = rng.normal(size=(3, 40)).astype(np.float32)
    hits = engine_of(case, backend).topk("fc", queries, k=9, by=by, score=score)
    for i, query in enumerate(queries):
        expected = expected_scores(keys, query, score)
        groups = [range(0, 600, 2), range(1, 600, 2)] if by else [range(600)]
        found = hits.slots[i] if by else [hits.slots[i]]
        assert [slots.tolist() for slots in found] == [oracle.best(expected, members, 9) for members in groups]


def test_many_groups_have_their_best(backend, rng):
    keys = rng.normal(size=(4000, 8)).astype(np.float32)
    labels = rng.integers(0, 700, 4000).tolist()
    case = {"rows": keys, "of_slot": None, "labels": labels}
    hits = engine_of(case, backend).topk("fc", keys[:2], 2, by="label")
    groups = oracle.groups([labels], [True] * 4000)
    assert hits.groups == tuple(groups)
    for i in range(2):
        expected = expected_scores(keys, keys[i], "dot")
        assert [s.tolist() for s in hits.slots[i]] == [oracle.best(expected, m, 2) for m in groups.values()]


def test_queries_can_be_keys_of_slots_and_rows_of_query_sets(rng):
    keys = rng.normal(size=(30, 4)).astype(np.float32)
    engine = arrays.engine(arrays.memory({"fc": keys}, {"label": [0] * 30}))
    assert engine.topk("fc", SlotKeys((7, 3))).ids.tolist() == engine.topk("fc", keys[[7, 3]]).ids.tolist()
    with pytest.raises(NotFound, match="There is no slot with number 30"):
        engine.topk("fc", SlotKeys((30,)))
    with pytest.raises(NotFound, match="There is no query set 'x'"):
        engine.topk("fc", "x/0")


def test_keys_that_are_not_finite_are_refused_unless_masked_out(backend):
    keys = np.ones((30, 4), np.float32)
    keys[20], keys[25] = np.nan, np.inf
    engine = engine_of({"rows": keys, "of_slot": None, "labels": [0] * 30}, backend)
    asked = [
        lambda where=None: engine.topk("fc", [1, 2, 3, 4], k=30, where=where).ids.size,
        lambda where=None: engine.distribution("fc", [1, 2, 3, 4], where).count,
        lambda where=None: engine.group_sum("fc", [1, 2, 3, 4], "label", where).sums[0, 0] / 10,
    ]
    for ask in asked:
        with pytest.raises(Inexact, match="Layer 'fc' has keys with NaN or infinity, first at slot 20"):
            ask()
        assert ask("slot < 20") == 20
    assert engine.topk("fc", [1, 2, 3, 4], k=30, where="slot < 20").ids.tolist() == list(range(20))
    assert len(engine.topk("fc", [1, 2, 3, 4], k=30, where="slot not in (20, 25)").ids) == 28


MORE = settings(max_examples=8, deadline=None)


@MORE
@given(case=cases(), many=st.booleans())
def test_sums_are_those_of_exact_arithmetic(case, many):
    stays, where = mask_of(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "BUDGET", 1 if many else 1 << 28)
        sums = engine_of(case, "numpy").group_sum("fc", case["queries"], by="label", where=where, score="cosine")
        alone = engine_of(case, "numpy").group_sum("fc", case["queries"][:1], "label", where, "cosine")
    assert alone.sums.tobytes() == sums.sums[:1].tobytes()
    groups = oracle.groups([case["labels"]], stays)
    assert sums.groups == tuple(groups)
    for i, query in enumerate(case["queries"]):
        cosines = exact_cosines(case["keys"], query)
        expected = [math.fsum(cosines[slot] for slot in members) for members in groups.values()]
        np.testing.assert_allclose(sums.sums[i], expected, rtol=0, atol=1e-13 * len(stays))

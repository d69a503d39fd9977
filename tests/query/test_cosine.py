"""Cosines rank and sum as a float64 brute force does, whatever the backend, the batch and the numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from dualform import kernels
from dualform.query.score.canonical import as_float32, canonical_scores, norms
from dualform.query.sums import grouping
from tests.query import arrays, oracle
from tests.query.test_top_k import backend, cases, engine_of, mask_of, small_blocks

__all__ = ["backend", "small_blocks"]  # fixtures
FEW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MORE = settings(max_examples=10, deadline=None)


def canonical(keys: np.ndarray, query: np.ndarray) -> list[float]:
    """As the score is defined and reported."""
    lengths = np.sqrt(canonical_scores(keys, keys)) * np.sqrt(canonical_scores(query[None], query))
    return as_float32(canonical_scores(keys, query) / np.where(lengths == 0, 1, lengths)).tolist()


def exact(keys: np.ndarray, query: np.ndarray) -> list[float]:
    """From exact sums."""
    products = oracle.scores(keys, query)
    own = math.sqrt(*oracle.scores(query[None], query))
    lengths = [math.sqrt(*oracle.scores(key[None], key)) * own for key in keys]
    return [product / length if length else 0.0 for product, length in zip(products, lengths, strict=True)]


@FEW
@given(case=cases())
def test_hits_are_those_of_the_brute_force(small_blocks, backend, case):
    stays, where = mask_of(case)
    hits = engine_of(case, backend).topk("fc", case["queries"], case["k"], where=where, score="cosine")
    left = np.flatnonzero(stays).tolist()
    for i, query in enumerate(case["queries"]):
        expected = canonical(case["keys"], query)
        assert hits.slots[i].tolist() == oracle.best(expected, left, case["k"])
        assert hits.scores[i].tolist() == np.array(expected)[hits.slots[i]].tolist()
        np.testing.assert_allclose(expected, exact(case["keys"], query), rtol=2.0**-24, atol=1e-14)


@FEW
@given(case=cases())
def test_hits_of_groups_are_those_of_the_brute_force(small_blocks, backend, case):
    stays, where = mask_of(case)
    hits = engine_of(case, backend).topk("fc", case["queries"], case["k"], where=where, by="label", score="cosine")
    groups = oracle.groups([case["labels"]], stays)
    assert hits.groups == tuple(groups)
    for i, query in enumerate(case["queries"]):
        expected = canonical(case["keys"], query)
        found = [slots.tolist() for slots in hits.slots[i]]
        assert found == [oracle.best(expected, members, case["k"]) for members in groups.values()]


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
        cosines = exact(case["keys"], query)
        expected = [math.fsum(cosines[slot] for slot in members) for members in groups.values()]
        np.testing.assert_allclose(sums.sums[i], expected, rtol=0, atol=1e-13 * len(stays))


@MORE
@given(case=cases(), power=st.integers(-20, 20), rows=st.integers(0, 2**32))
def test_a_power_of_two_changes_no_bit(case, power, rows):
    longer, queries = scaled(case["rows"], power), scaled(case["queries"], 3)
    some = np.random.default_rng(rows).random((len(longer), 1)) < 0.5
    changed = {**case, "rows": np.where(some, longer, case["rows"]), "queries": queries}
    before, after = (engine_of(one, "numpy") for one in (case, changed))
    first = before.topk("fc", case["queries"], k=case["k"], score="cosine")
    second = after.topk("fc", queries, k=case["k"], score="cosine")
    assert first.ids.tolist() == second.ids.tolist()
    assert first.flat_scores.tobytes() == second.flat_scores.tobytes()
    first = before.group_sum("fc", case["queries"], by="label", score="cosine")
    second = after.group_sum("fc", queries, by="label", score="cosine")
    assert first.sums.tobytes() == second.sums.tobytes()


@pytest.mark.parametrize("backend", ["int8", "numpy", "torch", "faiss"])
@pytest.mark.parametrize("by", [None, "label"])
def test_keys_of_one_direction_rank_by_slot(backend, by, rng):
    """Three, five and seven times as long, whose cosines float64 may tell apart in the last bit."""
    rows = rng.integers(0, 256, size=(40, 30)).astype(np.float32)
    keys, labels = np.concatenate([rows * np.float32(7), rows * np.float32(5), rows * np.float32(3), rows]), [0] * 160
    hits = arrays.engine(arrays.memory({"fc": keys}, {"label": labels}), backend).topk(
        "fc", rows, k=4, by=by, score="cosine"
    )
    found = [slots if by is None else slots[0] for slots in hits.slots]
    assert [slots.tolist() for slots in found] == [[n, n + 40, n + 80, n + 120] for n in range(40)]


def scaled(rows: np.ndarray, power: int) -> np.ndarray:
    """Times 2 to a power, but for rows that float32 would not hold."""
    with np.errstate(over="ignore", under="ignore"):
        longer = rows * np.float32(2.0**power)
        back = longer * np.float32(2.0**-power)
    return np.where((back == rows).all(axis=1, keepdims=True), longer, rows)


@pytest.mark.parametrize("backend", ["int8", "numpy", "torch", "faiss"])
def test_a_query_has_the_bits_that_it_has_alone(backend, rng):
    keys, queries = rng.normal(size=(700, 33)).astype(np.float32), rng.normal(size=(9, 33)).astype(np.float32)
    engine = arrays.engine(arrays.memory({"fc": keys}, {"label": [slot % 3 for slot in range(700)]}), backend)
    hits = engine.topk("fc", queries, k=20, score="cosine")
    for i, query in enumerate(queries):
        alone = engine.topk("fc", query, k=20, score="cosine")
        assert alone.ids.tolist() == hits.slots[i].tolist()
        assert alone.flat_scores.tobytes() == hits.scores[i].tobytes()


def test_what_has_no_length_has_a_score_of_zero():
    keys = np.array([[0, 0], [-3, 0], [1e-45, 0], [0, 0]], np.float32)
    engine = arrays.engine(arrays.memory({"fc": keys}, {"label": [0, 0, 1, 1]}))
    hits = engine.topk("fc", [[2.0, 0.0], [0.0, 0.0]], k=4, score="cosine")
    assert hits.slots[0].tolist() == [2, 0, 3, 1]
    assert hits.scores[0].tolist() == [1.0, 0.0, 0.0, -1.0]
    assert hits.slots[1].tolist() == [0, 1, 2, 3]
    assert hits.scores[1].tolist() == [0.0] * 4
    sums = engine.group_sum("fc", [[2.0, 0.0], [0.0, 0.0]], by="label", score="cosine").sums
    assert sums.tolist() == [[-1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize("width", [1, 2, 7, 64, 129, 800])
def test_lengths_have_the_bits_of_the_definition(width, rng, monkeypatch):
    rows = (rng.normal(size=(50, width)) * 10.0 ** rng.uniform(-44, 37, (50, 1))).astype(np.float32)
    defined = np.sqrt(canonical_scores(rows, rows))
    assert norms(rows).tobytes() == defined.tobytes()
    assert norms(np.asfortranarray(rows)).tobytes() == defined.tobytes()
    monkeypatch.setattr(kernels, "library", lambda: None)
    assert norms(rows).tobytes() == defined.tobytes()
    for row, length in zip(rows, defined, strict=True):
        assert math.isclose(length, math.sqrt(math.fsum((row.astype(float) ** 2).tolist())), rel_tol=1e-14)

"""The oracle is right, and the checks can fail."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks import oracle
from benchmarks.data import Groups
from hypothesis import given, settings, strategies as st

K = 5


def arrays(slots: int = 90, queries: int = 3, width: int = 7, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    keys = random.normal(size=(slots, width)).astype(np.float32)
    return keys, random.normal(size=(queries, width)).astype(np.float32)


def sorted_slots(keys: np.ndarray, query: np.ndarray) -> np.ndarray:
    scores = keys.astype(np.float64) @ query.astype(np.float64)
    return np.lexsort((np.arange(len(keys)), -scores))


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1000), k=st.integers(1, 120), kept=st.floats(0, 1))
def test_best_is_what_sorting_everything_gives(seed, k, kept):
    keys, queries = arrays(seed=seed)
    mask = np.random.default_rng(seed).random(len(keys)) < kept
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(oracle, "BLOCK", 16)
        plain, masked = oracle.best(keys, queries, k, [None, mask])
    for query, slots, left in zip(queries, plain.slots, masked.slots, strict=True):
        order = sorted_slots(keys, query)
        assert slots.tolist() == order[:k].tolist()
        assert left.tolist() == order[mask[order]][:k].tolist()


def test_ties_go_to_the_lower_slot(monkeypatch):
    monkeypatch.setattr(oracle, "BLOCK", 16)
    keys = np.ones((40, 3), dtype=np.float32)
    assert oracle.best(keys, keys[:1], K)[0].slots[0].tolist() == [0, 1, 2, 3, 4]


@pytest.fixture
def asked():
    keys, queries = arrays()
    right = oracle.best(keys, queries, K)[0]
    slots = [own.copy() for own in right.slots]
    scores = [own.astype(np.float32) for own in right.scores]
    return keys, queries, right, slots, scores


def test_the_right_answer_passes(asked):
    keys, queries, right, slots, scores = asked
    assert oracle.wrong_exactly(right, slots, scores) == ""
    assert oracle.wrong_nearly(right, slots, keys, queries) == ("", "")


def test_an_exact_answer_must_keep_the_order(asked):
    keys, queries, right, slots, scores = asked
    slots[1] = slots[1][[1, 0, 2, 3, 4]]
    assert oracle.wrong_exactly(right, slots, scores).startswith("query 1: slots")
    assert oracle.wrong_nearly(right, slots, keys, queries) == ("", ""), "float32 peers name the same slots"


def test_an_exact_answer_must_have_the_scores(asked):
    _, _, right, slots, scores = asked
    scores[2][0] *= 1 + 1e-6
    assert oracle.wrong_exactly(right, slots, scores) == "query 2: a score is off"


@pytest.mark.parametrize("missing", [1, 3])
def test_an_answer_to_fewer_queries_is_wrong(asked, missing):
    keys, queries, right, slots, scores = asked
    said = f"{3 - missing} answers for 3 queries"
    assert oracle.wrong_exactly(right, slots[missing:], scores[missing:]) == said
    assert oracle.wrong_nearly(right, slots[missing:], keys, queries)[0] == said


def test_a_peer_that_misses_a_slot_is_wrong(asked):
    keys, queries, right, slots, _ = asked
    worst = int(sorted_slots(keys, queries[0])[-1])
    slots[0][-1] = worst
    assert oracle.wrong_nearly(right, slots, keys, queries)[0] == f"query 0: slot {worst} is not among the best"


def test_a_peer_that_names_a_slot_twice_or_too_few_is_wrong(asked):
    keys, queries, right, slots, _ = asked
    twice = [slots[0], slots[1], np.r_[slots[2][:-1], slots[2][0]]]
    assert oracle.wrong_nearly(right, twice, keys, queries)[0].startswith("query 2: 5 slots")
    assert oracle.wrong_nearly(right, [one[:-1] for one in slots], keys, queries)[0].startswith("query 0: 4 slots")
    nowhere = [slots[0], np.r_[slots[1][:-1], len(keys)], slots[2]]
    assert oracle.wrong_nearly(right, nowhere, keys, queries)[0] == "query 1: a slot that does not exist"


def test_a_peer_that_ignores_the_mask_is_wrong(asked):
    keys, queries, right, slots, _ = asked
    mask = np.ones(len(keys), dtype=bool)
    mask[slots[1][2]] = False
    assert oracle.wrong_nearly(right, slots, keys, queries, mask)[0] == "query 1: a slot that the filter removes"


def test_a_peer_may_differ_where_float32_cannot_tell():
    keys = np.zeros((20, 2), dtype=np.float32)
    keys[:6] = [[1, 0], [1, 1e-7], [1, 2e-7], [1, 3e-7], [1, 4e-7], [1, 5e-7]]
    query = np.ones((1, 2), dtype=np.float32)
    right = oracle.best(keys, query, 5)[0]
    wrong, remark = oracle.wrong_nearly(right, [np.array([0, 1, 2, 3, 4])], keys, query)
    assert (wrong, remark) == ("", "other slots than the exact ones for 1 of 1 queries")


def test_sums_and_what_is_wrong_with_others():
    keys, queries = arrays()
    groups = Groups(("label",), np.arange(len(keys)) % 4, 4)
    right = oracle.sums(keys, queries, [groups])[0]
    scores = queries.astype(np.float64) @ keys.astype(np.float64).T
    signed = np.stack([scores[:, groups.numbers == group].sum(axis=1) for group in range(4)], axis=1)
    absolute = np.stack([np.abs(scores[:, groups.numbers == group]).sum(axis=1) for group in range(4)], axis=1)
    assert oracle.wrong_sums(right, False, signed, 1e-12) == ""
    assert oracle.wrong_sums(right, True, absolute, 1e-12) == ""
    assert oracle.wrong_sums(right, True, signed, 1e-6).startswith("query ")
    assert oracle.wrong_sums(right, False, signed[:, :3], 1e-6).startswith("sums of shape")
    signed[2, 1] += 1e-5 * right.absolute[2, 1]
    assert oracle.wrong_sums(right, False, signed, 1e-6).startswith("query 2, group 1")
    signed[2, 1] = np.nan
    assert oracle.wrong_sums(right, False, signed, 1e-6).startswith("query 2, group 1")

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
    keys[60:] = keys[:30]  # of equal scores the lower slot comes first
    mask = np.random.default_rng(seed).random(len(keys)) < kept
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(oracle, "BLOCK", 16)
        plain, masked = oracle.best(keys, queries, k, [None, mask])
    for query, slots, left in zip(queries, plain.slots, masked.slots, strict=True):
        order = sorted_slots(keys, query)
        assert slots.tolist() == order[:k].tolist()
        assert left.tolist() == order[mask[order]][:k].tolist()


KEYS, QUERIES = arrays()
WORST = int(sorted_slots(KEYS, QUERIES[0])[-1])


@pytest.mark.parametrize(
    ("change", "exactly", "nearly"),
    [
        (lambda slots, scores, mask: None, "", ""),
        (lambda slots, scores, mask: slots[1].__setitem__([0, 1], slots[1][[1, 0]]), "query 1: slots", ""),
        (lambda slots, scores, mask: scores[2].__imul__(1 + 1e-6), "query 2: a score is off", ""),
        (lambda slots, scores, mask: (slots.pop(), scores.pop()), "2 answers for 3 queries", "2 answers for 3 queries"),
        (
            lambda slots, scores, mask: slots[0].__setitem__(-1, WORST),
            "query 0: slots",
            f"query 0: slot {WORST} is not among the best",
        ),
        (lambda slots, scores, mask: slots[2].__setitem__(-1, slots[2][0]), "query 2: slots", "query 2: 5 slots"),
        (
            lambda slots, scores, mask: slots[1].__setitem__(-1, len(KEYS)),
            "query 1: slots",
            "query 1: a slot that does not exist",
        ),
        (
            lambda slots, scores, mask: mask.__setitem__(slots[1][2], False),
            "",
            "query 1: a slot that the filter removes",
        ),
    ],
    ids=["right", "order", "score", "fewer", "worst", "twice", "nowhere", "masked"],
)
def test_what_is_wrong_is_found(change, exactly, nearly):
    """Exact answers keep slots, order and scores; float32 peers may give the same slots in another order."""
    (right,) = oracle.best(KEYS, QUERIES, K)
    slots, scores = [own.copy() for own in right.slots], [own.astype(np.float32) for own in right.scores]
    mask = np.ones(len(KEYS), dtype=bool)
    change(slots, scores, mask)
    for found, expected in (
        (oracle.wrong_exactly(right, slots, scores), exactly),
        (oracle.wrong_nearly(right, slots, KEYS, QUERIES, mask)[0], nearly),
    ):
        assert found.startswith(expected)
        assert bool(found) == bool(expected)


def test_a_peer_may_differ_where_float32_cannot_tell():
    keys = np.zeros((20, 2), dtype=np.float32)
    keys[:6] = [[1, 0], [1, 1e-7], [1, 2e-7], [1, 3e-7], [1, 4e-7], [1, 5e-7]]
    query = np.ones((1, 2), dtype=np.float32)
    (right,) = oracle.best(keys, query, 5)
    wrong, remark = oracle.wrong_nearly(right, [np.array([0, 1, 2, 3, 4])], keys, query)
    assert (wrong, remark) == ("", "other slots than the exact ones for 1 of 1 queries")


def test_sums_and_what_is_wrong_with_others():
    groups = Groups(("label",), np.arange(len(KEYS)) % 4, 4)
    (right,) = oracle.sums(KEYS, QUERIES, [groups])
    scores = QUERIES.astype(np.float64) @ KEYS.astype(np.float64).T
    signed, absolute = (
        np.stack([own[:, groups.numbers == group].sum(axis=1) for group in range(4)], axis=1)
        for own in (scores, np.abs(scores))
    )
    assert oracle.wrong_sums(right, False, signed, 1e-12) == ""
    assert oracle.wrong_sums(right, True, absolute, 1e-12) == ""
    assert oracle.wrong_sums(right, True, signed, 1e-6).startswith("query ")
    assert oracle.wrong_sums(right, False, signed[:, :3], 1e-6).startswith("sums of shape")
    for off in (1e-5 * right.absolute[2, 1], np.nan):
        signed[2, 1] += off
        assert oracle.wrong_sums(right, False, signed, 1e-6).startswith("query 2, group 1")

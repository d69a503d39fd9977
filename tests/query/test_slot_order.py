"""The order of the slots changes no answer (remark 3.1 of the paper): the same pairs stored in two orders."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st

from dualform.query.engine import Engine
from tests.query.arrays import engine, memory

WIDTH, OUTPUTS, QUERIES, BEST = 5, 3, 4, 7


def stored(seed: int, count: int, steps: int, order: np.ndarray, dense: bool) -> tuple[Engine, np.ndarray]:
    """Keys, values and labels drawn by the seed, in this order over so many steps; and queries."""
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((count, WIDTH)).astype(np.float32)
    values = rng.standard_normal((count, OUTPUTS)).astype(np.float32)
    labels, queries = rng.integers(0, 3, count), rng.standard_normal((QUERIES, WIDTH)).astype(np.float32)
    initial = {"l.weight": rng.standard_normal((OUTPUTS, WIDTH)), "l.bias": rng.standard_normal(OUTPUTS)}
    columns = {"step": np.arange(count) * steps // count, "label": labels[order], "dataset": ["d"] * count}
    made = memory(
        {"l": keys[order] if dense else keys},
        columns,
        values={"l": values[order]},
        rows_of_slots=None if dense else {"l": order},
        initial=initial,
        segment_rows=7,
    )
    return engine(made), queries


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(BEST, 60),
    steps=st.integers(1, 9),
    dense=st.booleans(),
    where=st.sampled_from([None, "label <> 1"]),
)
def test_a_shuffled_memory_answers_alike(seed: int, count: int, steps: int, dense: bool, where: str | None):
    order = np.random.default_rng(seed + 1).permutation(count)
    one, queries = stored(seed, count, steps, np.arange(count), dense)
    other, _ = stored(seed, count, steps, order, dense)
    if where and not (np.asarray(one.slots(np.arange(count))["label"]) != 1).any():
        return
    outputs = [np.asarray(each.output("l", queries, where=where)) for each in (one, other)]
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-6, atol=1e-6)
    for score in ("dot", "abs"):
        sums = [each.group_sum("l", queries, by="label", where=where, score=score) for each in (one, other)]
        assert sums[0].groups == sums[1].groups
        np.testing.assert_allclose(sums[1].sums, sums[0].sums, rtol=1e-6, atol=1e-6 if score == "abs" else 1e-12)
        hits = [each.topk("l", queries, k=BEST, where=where, score=score) for each in (one, other)]
        assert hits[1].flat_scores.tobytes() == hits[0].flat_scores.tobytes()
        # The pairs are drawn from a continuum: no two score the same, so that there is one ranking.
        for found, expected in zip(hits[1].slots, hits[0].slots, strict=True):
            assert order[found].tolist() == expected.tolist()

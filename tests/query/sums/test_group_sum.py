"""Sums by group are those of exact arithmetic; signed ones have the same bits however they are asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dualform import kernels
from dualform.query import groups as groups_file
from dualform.query.sums import absolute as absolute_file, grouping, key_sums
from tests.query import arrays, oracle

DATASETS = ["mnist", "fashion", "ünï", None]


@st.composite
def cases(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, d, n = draw(st.integers(1, 120)), draw(st.sampled_from([1, 3, 16, 33])), draw(st.integers(1, 4))
    keys = (rng.normal(size=(rows, d)) * 10.0 ** rng.uniform(-3, 3, (rows, 1))).astype(np.float32)
    of_slot = rng.integers(0, rows, draw(st.integers(1, 200))) if draw(st.booleans()) else None
    slots = rows if of_slot is None else len(of_slot)
    return {
        "rows": keys,
        "of_slot": of_slot,
        "keys": keys if of_slot is None else keys[of_slot],
        "queries": rng.normal(size=(n, d)).astype(np.float32),
        "dataset": [DATASETS[i] for i in rng.integers(0, 4, slots)],
        "label": [None if i == 3 else int(i) - 1 for i in rng.integers(0, 4, slots)],
        "share": [None if i == 3 else float(i) / 4 for i in rng.integers(0, 4, slots)],
        "seen": [None if i == 2 else bool(i) for i in rng.integers(0, 3, slots)],
        "by": tuple(draw(st.permutations(["dataset", "label", "share", "seen"])))[: draw(st.integers(1, 3))],
        "where": draw(st.booleans()),
    }


def engine_of(case, backend="numpy"):
    made = arrays.memory(
        {"fc": case["rows"]},
        {name: case[name] for name in ("dataset", "label", "share", "seen")},
        types={"share": "DOUBLE", "seen": "BOOLEAN"},
        rows_of_slots={} if case["of_slot"] is None else {"fc": case["of_slot"]},
        segment_rows=47,
    )
    return arrays.engine(made, backend)


@given(
    case=cases(),
    absolute=st.booleans(),
    block=st.sampled_from([1, 8, 4096]),
    budget=st.sampled_from([1, grouping.BUDGET]),
)
@settings(deadline=None, max_examples=26)
def test_sums_are_those_of_exact_arithmetic(case, absolute, block, budget):
    where = "slot % 3 = 0" if case["where"] else None
    stays = [not case["where"] or slot % 3 == 0 for slot in range(len(case["keys"]))]
    groups = oracle.groups([case[name] for name in case["by"]], stays)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "BUDGET", budget)
        patch.setattr(groups_file, "_BLOCK", block)
        patch.setattr(key_sums, "BLOCK", block)
        patch.setattr(absolute_file, "_ROWS", block)
        score = "abs" if absolute else "dot"
        found = engine_of(case).group_sum("fc", case["queries"], by=case["by"], where=where, score=score)
    assert found.groups == tuple(groups)
    assert found.counts.tolist() == [len(members) for members in groups.values()]
    for i, query in enumerate(case["queries"]):
        exact = oracle.scores(case["keys"], query, absolute)
        sizes = np.abs(case["keys"].astype(float) * query).sum(axis=1)
        for g, members in enumerate(groups.values()):
            wanted = math.fsum(exact[slot] for slot in members)
            assert abs(found.sums[i, g] - wanted) <= 1e-12 * sizes[members].sum()


@pytest.mark.parametrize("budget", [1, grouping.BUDGET], ids=["by slot", "by key sums"])
@given(case=cases())
@settings(deadline=None, max_examples=10)
def test_signed_sums_have_the_same_bits_alone_in_a_batch_and_without_compiled_loops(budget, case):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "BUDGET", budget)
        engine = engine_of(case)
        together = engine.group_sum("fc", case["queries"], by=case["by"]).sums
        alone = [engine.group_sum("fc", query, by=case["by"]).sums for query in case["queries"]]
        assert np.concatenate(alone).tobytes() == together.tobytes()
        patch.setattr(kernels, "library", lambda: None)
        assert engine_of(case).group_sum("fc", case["queries"], by=case["by"]).sums.tobytes() == together.tobytes()


SIGNS = {
    "none negative": lambda rows: np.where(rows < 0, np.float32(0), rows),
    "none positive": lambda rows: np.where(rows > 0, np.float32(-0.0), rows),
    "of both signs": lambda rows: rows,
    "zeros": lambda rows: rows * np.float32(-0.0),
}


@given(
    seed=st.integers(0, 2**32),
    keys_of=st.lists(st.sampled_from(sorted(SIGNS)), min_size=3, max_size=3),
    queries_of=st.lists(st.sampled_from(sorted(SIGNS)), min_size=1, max_size=3),
    repeats=st.booleans(),
    where=st.sampled_from([None, "label <> 1", "slot % 3 = 0"]),
    many=st.booleans(),
)
@settings(deadline=None, max_examples=26)
def test_absolute_sums_are_right_whatever_signs_the_groups_and_queries_have(
    seed, keys_of, queries_of, repeats, where, many
):
    rng = np.random.default_rng(seed)
    rows, labels = rng.normal(size=(90, 6)).astype(np.float32), np.arange(90) % 3
    for label, sign in enumerate(keys_of):
        rows[labels == label] = SIGNS[sign](rows[labels == label])
    of_slot = rng.integers(0, 90, 200) if repeats else np.arange(90)
    label = labels[of_slot]
    queries = np.concatenate([SIGNS[sign](rng.normal(size=(2, 6)).astype(np.float32)) for sign in queries_of])
    made = arrays.memory(
        {"fc": rows},
        {"label": label.tolist()},
        rows_of_slots={"fc": of_slot} if repeats else {},
        segment_rows=31,
    )
    with pytest.MonkeyPatch.context() as patch:
        if many:  # as if there were too many groups for key sums
            patch.setattr(grouping, "BUDGET", 1)
            patch.setattr(grouping, "score_every", None)  # pair by pair takes several times as long
            patch.setattr(absolute_file, "_ROWS", 32)
            patch.setattr(absolute_file, "_BATCH", 2)
        found = arrays.engine(made).group_sum("fc", queries, by="label", where=where, score="abs")
    slots = np.arange(len(of_slot))
    stays = {None: slots >= 0, "label <> 1": label != 1, "slot % 3 = 0": slots % 3 == 0}[where]
    for i, query in enumerate(queries):
        exact = np.asarray(oracle.scores(rows[of_slot], query, absolute=True))
        for g, (value,) in enumerate(found.groups):
            wanted = math.fsum(exact[stays & (label == value)])
            assert found.sums[i, g] == pytest.approx(wanted, rel=1e-12, abs=1e-14)
            assert not np.signbit(found.sums[i, g])


@given(
    seed=st.integers(0, 2**32),
    shared=st.sampled_from([0.0, 1.0, 100.0]),
    scale=st.sampled_from([1e-25, 1.0, 1e17]),
    near=st.sampled_from([0.0, 1e-7, 1.0]),
    repeats=st.booleans(),
    batch=st.sampled_from([3, 1024]),
)
@settings(deadline=None, max_examples=20)
def test_float32_products_answer_within_a_millionth_or_not_at_all(seed, shared, scale, near, repeats, batch):
    """`shared`: how much all keys have in common; `near`: how far the keys are from orthogonal to the queries."""
    rng = np.random.default_rng(seed)
    d, count = 64, 700
    rows = rng.normal(size=(count, d)) + shared
    queries = rng.normal(size=(5, d))
    basis = np.linalg.qr(queries.T)[0]
    rows = ((rows - (1 - near) * (rows @ basis) @ basis.T) * scale).astype(np.float32)
    of_slot = rng.integers(0, count, 2000) if repeats else np.arange(count)
    label = rng.integers(0, 4, count)[of_slot]
    queries = (queries * scale).astype(np.float32)
    made = arrays.memory({"fc": rows}, {"label": label.tolist()}, rows_of_slots={"fc": of_slot} if repeats else {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(absolute_file, "MANY_ROWS", 100)
        patch.setattr(absolute_file, "MANY_QUERIES", 1)
        patch.setattr(absolute_file, "_BATCH", batch)
        patch.setattr(absolute_file, "_ROWS", 256)
        found = arrays.engine(made, "numpy").group_sum("fc", queries, by="label", score="abs").sums
        patch.setattr(kernels, "library", lambda: None)
        without = arrays.engine(made, "numpy").group_sum("fc", queries, by="label", score="abs").sums
    assert found.tobytes() == without.tobytes()
    scores = np.abs(queries.astype(float) @ rows.astype(float).T)[:, of_slot]
    wanted = np.stack([scores[:, label == value].sum(axis=1) for value in range(4)], axis=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_scores_beyond_float32_are_summed_in_float64(rng):
    keys = (rng.normal(size=(4000, 4)) * 1e30).astype(np.float32)
    queries = (rng.normal(size=(20, 4)) * 1e30).astype(np.float32)
    engine = arrays.engine(arrays.memory({"fc": keys}, {"label": [0] * 4000}))
    found = engine.group_sum("fc", queries, by="label", score="abs").sums[:, 0]
    np.testing.assert_allclose(found, np.abs(queries.astype(float) @ keys.T.astype(float)).sum(axis=1), rtol=1e-12)

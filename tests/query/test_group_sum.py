"""Sums by group are those of exact arithmetic; signed ones have the same bits however they are asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dualform.errors import BadInput, Inexact, NotFound
from dualform.query import group_sum
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


@given(case=cases(), absolute=st.booleans(), block=st.sampled_from([1, 8, 4096]))
@settings(deadline=None, max_examples=60)
def test_sums_are_those_of_exact_arithmetic(case, absolute, block):
    where = "slot % 3 = 0" if case["where"] else None
    stays = [not case["where"] or slot % 3 == 0 for slot in range(len(case["keys"]))]
    groups = oracle.groups([case[name] for name in case["by"]], stays)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_sum, "BLOCK", block)
        patch.setattr(group_sum, "_WIDE_BYTES", 8 * block)
        score = "abs" if absolute else "signed"
        found = engine_of(case).group_sum("fc", case["queries"], by=case["by"], where=where, score=score)
    assert found.groups == tuple(groups)
    assert found.counts.tolist() == [len(members) for members in groups.values()]
    for i, query in enumerate(case["queries"]):
        exact = oracle.scores(case["keys"], query, absolute)
        sizes = np.abs(case["keys"].astype(float) * query).sum(axis=1)
        for g, members in enumerate(groups.values()):
            wanted = math.fsum(exact[slot] for slot in members)
            assert abs(found.sums[i, g] - wanted) <= 1e-12 * sizes[members].sum()


@given(case=cases())
@settings(deadline=None, max_examples=30)
def test_signed_sums_have_the_same_bits_alone_in_a_batch_and_in_ranges_of_groups(case):
    engine = engine_of(case)
    together = engine.group_sum("fc", case["queries"], by=case["by"]).sums
    alone = [engine.group_sum("fc", query, by=case["by"]).sums for query in case["queries"]]
    assert np.concatenate(alone).tobytes() == together.tobytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_sum, "BUDGET", 1)  # one group at a time
        ranges = engine_of(case).group_sum("fc", case["queries"], by=case["by"]).sums
    assert ranges.tobytes() == together.tobytes()


def test_keys_are_added_in_slot_order_within_blocks_and_then_block_by_block(rng):
    keys = (rng.normal(size=(9000, 3)) * 10.0 ** rng.uniform(-6, 6, (9000, 1))).astype(np.float32)
    labels = rng.integers(0, 5, 9000)
    engine = arrays.engine(arrays.memory({"fc": keys}, {"label": labels.tolist()}))
    found = engine.group_sum("fc", np.eye(3), by="label").sums
    for label in range(5):
        whole = np.zeros(3)
        for start in range(0, 9000, 4096):
            rows = keys[start : start + 4096][labels[start : start + 4096] == label].astype(float)
            part = rows[0]
            for row in rows[1:]:
                part = part + row
            whole = whole + part
        assert found[:, label].tolist() == whole.tolist()


def test_each_slot_can_be_a_group_of_its_own(rng):
    keys, query = rng.normal(size=(300, 5)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    engine = arrays.engine(arrays.memory({"fc": keys}, {"label": [0] * 300}))
    for score in ("signed", "abs"):
        found = engine.group_sum("fc", query, by="slot", score=score)
        assert found.groups == tuple((slot,) for slot in range(300))
        np.testing.assert_allclose(found.sums[0], oracle.scores(keys, query, score == "abs"), rtol=1e-12)


def test_groups_that_the_mask_empties_are_left_out(rng):
    keys = rng.normal(size=(6, 2)).astype(np.float32)
    engine = arrays.engine(arrays.memory({"fc": keys}, {"label": [1, 2, None, 1, 2, None]}))
    assert engine.group_sum("fc", [1, 2], by="label").groups == ((1,), (2,), (None,))
    assert engine.group_sum("fc", [1, 2], by="label", where="label <> 1").groups == ((2,),)


def test_refusals_name_the_column():
    engine = arrays.engine(arrays.memory({"fc": np.ones((3, 2), np.float32)}, {"label": [1, 2, 3]}))
    with pytest.raises(NotFound, match="no slot column 'nope'") as caught:
        engine.group_sum("fc", [1, 2], by=("label", "nope"))
    assert caught.value.field == "by"
    with pytest.raises(BadInput, match="by names no column"):
        engine.group_sum("fc", [1, 2], by=())


def test_keys_that_are_not_finite_are_refused():
    keys = np.ones((3, 2), np.float32)
    keys[1, 1] = np.nan
    engine = arrays.engine(arrays.memory({"fc": keys}, {"label": [1, 2, 3]}))
    with pytest.raises(Inexact, match="first at slot 1"):
        engine.group_sum("fc", [1, 2], by="label")
    assert engine.group_sum("fc", [1, 2], by="label", where="label <> 2").sums.tolist() == [[3.0, 3.0]]

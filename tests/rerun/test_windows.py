"""Whatever the windows, batches, ties and groups: the bits of an engine that has all keys, absolute sums to 1e-14."""

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from dualform import GroupSum, TopK, Vectors
from dualform.answers import Scan
from dualform.query.resolved import resolve
from dualform.query.score import backends
from dualform.query.sums import grouping, key_sums
from dualform.query.view import View
from dualform.query.where import mask
from dualform.rerun import rerun
from dualform.rerun.rerun import RunningBest, RunningSums
from tests.query import arrays

BACKEND = backends.choose("numpy")


@st.composite
def memories(draw):
    """Keys, of which some are equal and some have equal scores, and columns with NULLs."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    slots, width = draw(st.integers(1, 70)), draw(st.integers(1, 6))
    whole = draw(st.booleans())
    # Sizes so different that float64 rounds their sums: only then do the order and the blocks of a sum show.
    sizes = 2.0 ** rng.integers(-40, 40, (slots, 1))
    keys = rng.integers(-2, 3, (slots, width)) if whole else rng.normal(size=(slots, width)) * sizes
    if draw(st.booleans()):
        keys = np.abs(keys)
    label = [None if i % 7 == 6 else int(i) for i in rng.integers(0, draw(st.integers(1, 20)), slots)]
    columns = {"label": label, "dataset": [["a", "b"][i] for i in rng.integers(0, 2, slots)], "position": range(slots)}
    queries = rng.integers(-2, 3, (3, width)) if whole else rng.normal(size=(3, width))
    queries[2] = np.abs(queries[2])
    return np.float32(keys), columns, Vectors(queries)


questions = st.tuples(
    st.sampled_from(["top", "sum", "sum of many"]),
    st.sampled_from([("label",), ("dataset", "label"), ("position",), ()]),
    st.sampled_from([None, "position % 3 <> 1", "label < 5", "position >= 20"]),
    st.sampled_from(["dot", "abs"]),
    st.integers(1, 12),
)


@settings(max_examples=33, deadline=None)
@given(memories(), questions, st.integers(1, 4), st.integers(1, 30), st.integers(1, 9))
def test_windows_do_not_show(made, asked, blocks, rows, pending):
    keys, columns, queries = made
    kind, by, where, score, k = asked
    if kind != "top" and not by:
        by = ("label",)
    question = TopK("x", queries, k, where, by, score) if kind == "top" else GroupSum("x", queries, by, where, score)
    memory = arrays.memory({"x": keys}, columns)
    view = View(memory, BACKEND, 1 << 20)
    assume(where is None or "label" not in where or any(label is not None for label in columns["label"]))
    if not mask.selection(view, view.snapshot.layer("x"), where).count:
        return
    with pytest.MonkeyPatch.context() as patch:
        for room in (key_sums, rerun):
            patch.setattr(room, "BLOCK", 8)  # so that small windows begin where a block does
        patch.setattr(grouping, "BUDGET", 0 if kind == "sum of many" else 1 << 20)
        patch.setattr(rerun, "_PENDING", pending)
        expected = arrays.engine(memory).ask(question)
        running = RunningBest(resolve(view, question)) if kind == "top" else RunningSums(resolve(view, question))
        layer = memory.layer("x")
        buffer = rerun.KeyBuffer(memory, layer, [running], BACKEND, blocks * 8 * 4 * keys.shape[1])
        for start in range(0, len(keys), rows):
            buffer.append(keys[start : start + rows])
        buffer.finish()
        found = running.answer(Scan())
    assert found.groups == expected.groups
    assert np.array_equal(found.counts, expected.counts)
    if kind == "top":
        assert np.array_equal(found.ids, expected.ids)
        assert found.flat_scores.tobytes() == expected.flat_scores.tobytes()
    elif score == "dot":
        assert found.sums.tobytes() == expected.sums.tobytes()
    else:
        sizes = arrays.engine(arrays.memory({"x": np.abs(keys)}, columns))
        most = sizes.group_sum("x", np.abs(queries.rows), by, where).sums
        assert (np.abs(found.sums - expected.sums) <= 1e-14 * most).all()

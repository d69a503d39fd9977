"""What stays under a mask, as the difference of all and what it leaves out, against what is added up of what stays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import dualform
from dualform.query import network
from dualform.query.view import never
from dualform.query.weights import contributions, output, output as left_out_module, slot_products, trajectory
from dualform.query.weights.output import left_out, rebuilt_by_difference
from dualform.query.weights.reconstruction import rebuild
from dualform.query.where import mask
from dualform.store.files import durable_files
from tests.query import arrays
from tests.query.test_placebo import record

SLOTS, STEPS, D_IN, D_OUT = 900, 30, 5, 7
FEW, HALF = "label <> 1", "label < 2"


def recorded(seed, cancel=0.0, repeats=False, bias=True, change=None):
    """Slots of four labels that cancel one another, more with a greater `cancel`; `change` alters the values."""
    rng = np.random.default_rng(seed)
    rows = 60 if repeats else SLOTS
    keys = rng.normal(size=(rows, D_IN)).astype(np.float32)
    values = rng.normal(size=(SLOTS, D_OUT)).astype(np.float32)
    values += np.float32(cancel) * rng.choice([-1, 1], (SLOTS, 1)).astype(np.float32)
    labels = np.arange(SLOTS) % 4
    if change is not None:
        change(values, labels)
    initial = {"fc.weight": rng.normal(size=(D_OUT, D_IN)).astype(np.float32)}
    if bias:
        initial["fc.bias"] = rng.normal(size=D_OUT).astype(np.float32)
    memory = arrays.memory(
        {"fc": keys},
        {"label": labels.tolist(), "step": (np.arange(SLOTS) * STEPS // SLOTS).tolist()},
        values={"fc": values},
        rows_of_slots={"fc": np.r_[np.arange(rows), rng.integers(0, rows, SLOTS - rows)]} if repeats else {},
        initial=initial,
        biases=bias,
    )
    return memory, rng.normal(size=(2, D_IN)).astype(np.float32)


def taken(memory, where=FEW, at_step=None):
    """The entries that are taken away from all, of a mask; None where what stays is added up."""
    view = arrays.engine(memory)._view
    layer = memory.layer("fc")
    return left_out(view, layer, mask.selection(view, layer, where), at_step, never)


@settings(deadline=None, max_examples=13)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 1e3, 1e6]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 17]),
)
def test_outputs_are_those_of_the_weights_or_none(seed, cancel, repeats, bias, at_step):
    memory, queries = recorded(seed, cancel, repeats, bias)
    found = arrays.engine(memory).output("fc", queries, FEW, at_step).values
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "outputs_by_difference", lambda *_: None)
        wanted = arrays.engine(memory).output("fc", queries, FEW, at_step).values
    assert found.tobytes() == wanted.tobytes()


def test_an_output_is_in_doubt_where_the_bound_leaves_two_roundings(monkeypatch):
    made, answers = output.outputs_by_difference, []
    monkeypatch.setattr(network, "outputs_by_difference", lambda *own: answers.append(made(*own)) or answers[-1])
    memory, queries = recorded(0)
    arrays.engine(memory).output("fc", queries, FEW)
    monkeypatch.setattr(output, "_SLACK", 1e9)
    arrays.engine(memory).output("fc", queries, FEW)
    assert [own is None for own in answers] == [False, True]


@pytest.mark.parametrize("repeats", [False, True])
def test_no_weight_is_further_off_than_the_bound_says(monkeypatch, repeats):
    monkeypatch.setattr(slot_products, "_RANGE", 300)
    bounds, made = [], output.certain_outputs
    monkeypatch.setattr(output, "certain_outputs", lambda *own: bounds.append(own[1]) or made(*own))
    memory, queries = recorded(1, 1e4, repeats)
    engine = arrays.engine(memory)
    engine.output("fc", queries, FEW)
    view, layer = engine._view, memory.layer("fc")
    selection = mask.selection(view, layer, FEW)
    near = rebuilt_by_difference(view, layer, selection, None, False, never)
    exact = rebuild(view, layer, selection, None, False, never)
    off = np.linalg.norm(near.weight - exact.weight, axis=1)
    assert (off > 0).any(), "they are two sums"
    assert (off <= bounds[0]).all()
    assert (np.abs(near.bias - exact.bias) <= bounds[0]).all()


@pytest.mark.parametrize("by", ["label", ("label", "step")])
@pytest.mark.parametrize("where", [FEW, "step <> 3", "label <> 1 OR step = 0", "step < 16"])
def test_contributions_are_those_of_what_stays(monkeypatch, by, where):
    memory, queries = recorded(2)
    found = arrays.engine(memory).contributions("fc", queries, by, where)
    monkeypatch.setattr(contributions, "left_out", lambda *_: None)
    monkeypatch.setattr(left_out_module, "rebuilt_by_difference", lambda *_: None)
    wanted = arrays.engine(memory).contributions("fc", queries, by, where)
    assert found.groups == wanted.groups
    assert found.counts.tolist() == wanted.counts.tolist()
    largest = np.abs(wanted.sums).max()
    for own, other in ((found.sums, wanted.sums), (found.residual, wanted.residual), (found.bias, wanted.bias)):
        assert np.abs(own - other).max() <= 1e-12 * largest


def test_more_is_never_taken_away_than_stays():
    memory, _ = recorded(3)
    assert taken(memory, FEW).count == SLOTS // 4
    assert taken(memory, HALF) is None
    assert taken(memory, "label = 1") is None
    assert taken(memory, "label < 9") is None


def _diverged(values, labels):
    values[labels == 1] *= 1e12


def _infinite(values, labels):
    values[np.flatnonzero(labels == 1)[-1]] = np.inf


def _silent(values, labels):
    values[labels != 1, 2] = 0


@pytest.mark.parametrize("change", [_diverged, _infinite, _silent])
def test_what_would_lose_its_digits_is_added_up(change):
    memory, queries = recorded(4, change=change)
    assert taken(memory) is None
    assert np.isfinite(arrays.engine(memory).output("fc", queries, FEW).values).all()
    assert np.isfinite(arrays.engine(memory).contributions("fc", queries, "label", FEW).sums).all()


def test_the_end_of_a_trajectory_is_found_by_another_process(tmp_path, monkeypatch):
    monkeypatch.setattr(durable_files, "LEAST_BYTES", 0)
    run = record(tmp_path / "run", "AdamW")
    with dualform.open(run) as memory:
        first = np.asarray(memory.output("head", "test"))
        later = np.asarray(memory.output("head", "test", at_step=9))
    assert [*run.rglob("*.sum")]
    ran, made = [], trajectory._run
    monkeypatch.setattr(trajectory, "_run", lambda *own: ran.append(own[3]) or made(*own))
    with dualform.open(run) as memory:
        assert np.asarray(memory.output("head", "test")).tobytes() == first.tobytes()
        assert ran == []
        assert np.asarray(memory.output("head", "test", at_step=9)).tobytes() == later.tobytes()
        assert set(ran) == {9}
        masked = memory.output("head", "test", "label <> 1")
        assert np.asarray(masked).tobytes() != first.tobytes()
        assert None in ran

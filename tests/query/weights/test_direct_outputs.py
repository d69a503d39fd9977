"""An output without the weights, or by what a mask leaves out, has the bits that the weights give it."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import dualform
from dualform.query import network
from dualform.query.view import never
from dualform.query.weights import (
    contributions,
    output as output_file,
    slot_products,
    trajectory,
)
from dualform.query.weights.output import left_out, rebuilt_by_difference
from dualform.query.weights.reconstruction import rebuild
from dualform.query.weights.slot_products import SlotSum, add_products, slot_coefficients
from dualform.query.where import mask
from dualform.store.files import durable_files
from tests.query import arrays
from tests.query.weights.test_placebo import record

SLOTS, STEPS, ROWS = 700, 20, 60
D_IN, D_OUT = 5, 200


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_file, "LEAST_PRODUCT", 0)
    monkeypatch.setattr(output_file, "MOST_QUERIES", 2)
    monkeypatch.setattr(slot_products, "_RANGE", 300)
    monkeypatch.setattr(slot_products, "_PRODUCT", 64)


def recorded(seed, cancel=0.0, repeats=False, bias=True, size=1.0, outputs=D_OUT, change=None):
    """A layer whose slots, of four labels, cancel one another, more with a greater `cancel`; `change` alters values."""
    rng = np.random.default_rng(seed)
    keys = (size * rng.normal(size=(ROWS if repeats else SLOTS, D_IN))).astype(np.float32)
    values = rng.normal(size=(SLOTS, outputs)).astype(np.float32)
    values += np.float32(cancel) * rng.choice([-1, 1], (SLOTS, 1)).astype(np.float32)
    labels = np.arange(SLOTS) % 4
    if change is not None:
        change(values, labels)
    initial = {"fc.weight": rng.normal(size=(outputs, D_IN)).astype(np.float32)}
    if bias:
        initial["fc.bias"] = rng.normal(size=outputs).astype(np.float32)
    memory = arrays.memory(
        {"fc": keys},
        {"label": labels.tolist(), "step": (np.arange(SLOTS) * STEPS // SLOTS).tolist()},
        values={"fc": values},
        rows_of_slots={"fc": np.r_[np.arange(ROWS), rng.integers(0, ROWS, SLOTS - ROWS)]} if repeats else {},
        initial=initial,
        biases=bias,
    )
    return memory, rng.normal(size=(2, D_IN)).astype(np.float32)


def by_weights(memory, queries, **question):
    """By the weights themselves, which a question about several queries has made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "direct_outputs", lambda *_: None)
        patch.setattr(network, "outputs_by_difference", lambda *_: None)
        return arrays.engine(memory).output("fc", queries, **question).values


questions = st.fixed_dictionaries(
    {"where": st.sampled_from([None, "label <> 1", "label = 1"]), "at_step": st.sampled_from([None, 7])}
)


@settings(deadline=None, max_examples=13, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 1e3, 1e5, 1e8]),
    st.booleans(),
    st.booleans(),
    questions,
    st.sampled_from([0, 8, 16, 22]),
)
@pytest.mark.usefixtures("small")
def test_they_are_those_of_the_weights(monkeypatch, seed, cancel, repeats, bias, question, doubts):
    memory, queries = recorded(seed, cancel, repeats, bias)
    with monkeypatch.context() as patch:
        patch.setattr(output_file, "_SLACK", 2.0**doubts)  # so that more outputs are in doubt than need be
        found = arrays.engine(memory).output("fc", queries, **question)
        single = arrays.engine(memory).output("fc", queries[:1], **question)
    wanted = by_weights(memory, queries, **question)
    assert found.values.tobytes() == wanted.tobytes()
    assert single.values.tobytes() == wanted[:1].tobytes()


@pytest.mark.usefixtures("small")
def test_the_first_question_about_a_mask_makes_no_weights_and_the_second_does(monkeypatch):
    memory, queries = recorded(0)
    engine, made = arrays.engine(memory), []
    rebuild = network.rebuild
    monkeypatch.setattr(network, "rebuild", lambda *given: made.append(given[2]["fc"].identity) or rebuild(*given))
    asked = [engine.output("fc", queries, where=where) for where in ("label = 1", "label = 2", "label = 1")]
    assert made == [made[0]]
    assert asked[0].values.tobytes() == asked[2].values.tobytes()
    engine.output("fc", np.tile(queries, (3, 1)), where="label = 3")  # more queries than it is worth for
    engine.output("fc", queries, where="label = 3")
    engine.output("fc", queries, where="label = 0", initial=False)
    assert len(made) == 4


@pytest.mark.usefixtures("small")
def test_outputs_in_doubt_have_the_weights_made_of_a_few_alone(monkeypatch):
    memory, queries = recorded(1, 100.0)
    asked = []
    made = output_file.outputs_of_slot_sum
    monkeypatch.setattr(
        output_file, "outputs_of_slot_sum", lambda *given: asked.append(given[3].tolist()) or made(*given)
    )
    slack = 1.0
    while not asked:
        slack *= 2
        monkeypatch.setattr(output_file, "_SLACK", slack)
        found = arrays.engine(memory).output("fc", queries, where="label <> 2").values
    assert 0 < len(asked[0]) < D_OUT
    assert found.tobytes() == by_weights(memory, queries, where="label <> 2").tobytes()


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.usefixtures("small")
def test_neither_sum_is_off_by_more_than_its_roundings(repeats):
    """Against sums of fractions, which lose nothing."""
    memory, queries = recorded(2, 1e4, repeats)
    view, layer = arrays.engine(memory)._view, memory.layer("fc")
    slots = slot_coefficients(view, layer, mask.selection(view, layer, "label <> 0"), None)
    keys, values = memory.keys("fc"), memory.values("fc")
    found, terms = output_file._sums(keys, values, slots, queries[:1], lambda: None)
    made = SlotSum(np.zeros((D_OUT, D_IN)), np.zeros((1, D_OUT)))
    add_products(made, layer, keys, values, slots, lambda: None)
    output, query = 3, [Fraction(float(number)) for number in queries[0]]
    rows, brought = keys.of_entries(slots.slots), values.take(slots.slots)[:, output]
    exact = size = Fraction(0)
    for key, value, *both in zip(rows, brought, slots.weights[0], slots.biases[0], strict=True):
        parts = [Fraction(float(x)) * q for x, q in zip(key, query, strict=True)]
        delta, weight, bias = (Fraction(float(number)) for number in (value, *both))
        exact += delta * (weight * sum(parts) + bias)
        size += abs(delta) * (abs(weight) * sum(map(abs, parts)) + abs(bias))
    assert Fraction(float(terms[0, output])) >= size
    unit, count = Fraction(1, 2**53), slot_products.roundings(keys, values, slots)
    assert abs(Fraction(float(found[0, output])) - exact) <= (output_file._TERMS + 8) * unit * size
    weights = sum(Fraction(float(w)) * q for w, q in zip(made.weight[output], query, strict=True))
    assert abs(weights + Fraction(float(made.biases[0, output])) - exact) <= (count + 1) * unit * size


@pytest.mark.usefixtures("small")
def test_keys_that_no_float32_sum_holds_leave_it_to_the_weights():
    memory, queries = recorded(3, size=1e36)
    with np.errstate(over="ignore"):
        found = arrays.engine(memory).output("fc", np.float32(1e4) * queries).values
        assert found.tobytes() == by_weights(memory, np.float32(1e4) * queries).tobytes()


FEW, HALF = "label <> 1", "label < 2"
labelled = partial(recorded, outputs=7)


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
    memory, queries = labelled(seed, cancel, repeats, bias)
    found = arrays.engine(memory).output("fc", queries, FEW, at_step).values
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "outputs_by_difference", lambda *_: None)
        wanted = arrays.engine(memory).output("fc", queries, FEW, at_step).values
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("repeats", [False, True])
def test_no_weight_is_further_off_than_the_bound_says(monkeypatch, repeats):
    monkeypatch.setattr(slot_products, "_RANGE", 300)
    bounds, made = [], output_file.certain_outputs
    monkeypatch.setattr(output_file, "certain_outputs", lambda *own: bounds.append(own[1]) or made(*own))
    memory, queries = labelled(1, 1e4, repeats)
    engine = arrays.engine(memory)
    engine.output("fc", queries, FEW)
    view, layer = engine._view, memory.layer("fc")
    selection = mask.selection(view, layer, FEW)
    near = rebuilt_by_difference(view, layer, selection, None, False, never)
    exact = rebuild(view, layer, {"fc": selection}, None, False, never)
    off = np.linalg.norm(near.weight - exact.weight, axis=1)
    assert (off > 0).any(), "they are two sums"
    assert (off <= bounds[0]).all()
    assert (np.abs(near.bias - exact.bias) <= bounds[0]).all()


@pytest.mark.parametrize("by", ["label", ("label", "step")])
@pytest.mark.parametrize("where", [FEW, "step <> 3", "label <> 1 OR step = 0", "step < 11"])
def test_contributions_are_those_of_what_stays(monkeypatch, by, where):
    memory, queries = labelled(2)
    found = arrays.engine(memory).contributions("fc", queries, by, where)
    monkeypatch.setattr(contributions, "left_out", lambda *_: None)
    monkeypatch.setattr(output_file, "rebuilt_by_difference", lambda *_: None)
    wanted = arrays.engine(memory).contributions("fc", queries, by, where)
    assert found.groups == wanted.groups
    assert found.counts.tolist() == wanted.counts.tolist()
    largest = np.abs(wanted.sums).max()
    for own, other in ((found.sums, wanted.sums), (found.residual, wanted.residual), (found.bias, wanted.bias)):
        assert np.abs(own - other).max() <= 1e-12 * largest


def test_more_is_never_taken_away_than_stays():
    memory, _ = labelled(3)
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
    memory, queries = labelled(4, change=change)
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

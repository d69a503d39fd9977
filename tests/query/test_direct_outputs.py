"""An output without the weights has the bits that the weights give it; tested with two queries, asked with one."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from dualform.query import network
from dualform.query.weights import output as output_file, slot_products
from dualform.query.weights.slot_products import SlotCoefficients, SlotSum, add_products, slot_coefficients
from dualform.query.where import mask
from tests.query import arrays

SLOTS, STEPS, ROWS = 700, 20, 60
D_IN, D_OUT = 5, 200


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_file, "LEAST_PRODUCT", 0)
    monkeypatch.setattr(output_file, "MOST_QUERIES", 2)
    monkeypatch.setattr(slot_products, "_RANGE", 300)
    monkeypatch.setattr(slot_products, "_PRODUCT", 64)


def recorded(seed: int, cancel: float = 0.0, repeats: bool = False, bias: bool = True, size: float = 1.0):
    """A layer whose slots cancel one another, more with a greater `cancel`."""
    rng = np.random.default_rng(seed)
    keys = (size * rng.normal(size=(ROWS if repeats else SLOTS, D_IN))).astype(np.float32)
    values = rng.normal(size=(SLOTS, D_OUT)).astype(np.float32)
    values += np.float32(cancel) * rng.choice([-1, 1], (SLOTS, 1)).astype(np.float32)
    initial = {"fc.weight": rng.normal(size=(D_OUT, D_IN)).astype(np.float32)}
    if bias:
        initial["fc.bias"] = rng.normal(size=D_OUT).astype(np.float32)
    memory = arrays.memory(
        {"fc": keys},
        {"label": rng.integers(0, 4, SLOTS).tolist(), "step": (np.arange(SLOTS) * STEPS // SLOTS).tolist()},
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
def test_they_are_those_of_the_weights(monkeypatch, seed, cancel, repeats, bias, question, doubts):
    memory, queries = recorded(seed, cancel, repeats, bias)
    with monkeypatch.context() as patch:
        patch.setattr(output_file, "_SLACK", 2.0**doubts)  # so that more outputs are in doubt than need be
        found = arrays.engine(memory).output("fc", queries, **question)
        single = arrays.engine(memory).output("fc", queries[:1], **question)
    wanted = by_weights(memory, queries, **question)
    assert found.values.tobytes() == wanted.tobytes()
    assert single.values.tobytes() == wanted[:1].tobytes()


def test_the_first_question_about_a_mask_makes_no_weights_and_the_second_does(monkeypatch):
    memory, queries = recorded(0)
    engine, made = arrays.engine(memory), []
    rebuild = network.rebuild
    monkeypatch.setattr(network, "rebuild", lambda *given: made.append(given[2].identity) or rebuild(*given))
    asked = [engine.output("fc", queries, where=where) for where in ("label = 1", "label = 2", "label = 1")]
    assert made == [made[0]]
    assert asked[0].values.tobytes() == asked[2].values.tobytes()
    engine.output("fc", np.tile(queries, (3, 1)), where="label = 3")  # more queries than it is worth for
    engine.output("fc", queries, where="label = 3")
    engine.output("fc", queries, where="label = 0", initial=False)
    assert len(made) == 4


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


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.booleans(), st.lists(st.integers(0, D_OUT - 1), min_size=1, max_size=4, unique=True))
def test_a_few_outputs_of_a_sum_have_the_bits_that_they_have_among_all(seed, repeats, outputs):
    memory, _ = recorded(seed, 10.0, repeats)
    view = arrays.engine(memory)._view
    layer = memory.layer("fc")
    slots = slot_coefficients(view, layer, mask.selection(view, layer, "label <> 0"), None)
    whole, some = (SlotSum(np.zeros((D_OUT, D_IN)), np.zeros((1, D_OUT))) for _ in range(2))
    keys, values = memory.keys("fc"), memory.values("fc")
    add_products(whole, layer, keys, values, slots, lambda: None)
    add_products(some, layer, keys, values, slots, lambda: None, np.array(outputs))
    assert some.weight[outputs].tobytes() == whole.weight[outputs].tobytes()
    assert some.biases[:, outputs].tobytes() == whole.biases[:, outputs].tobytes()


@pytest.mark.parametrize("repeats", [False, True])
def test_a_sum_has_the_same_bits_however_its_coefficients_lie(repeats):
    """A BLAS adds up what lies side by side in another order on some processors: shards hold coefficients otherwise."""
    memory, _ = recorded(4, 10.0, repeats)
    view, layer = arrays.engine(memory)._view, memory.layer("fc")
    slots = slot_coefficients(view, layer, mask.selection(view, layer, None), None)
    for count in (7, 33, 512):
        few = slots.slots[:count], slots.weights[:, :count], slots.biases[:, :count]
        near = SlotCoefficients(few[0], *map(np.ascontiguousarray, few[1:]))
        apart = SlotCoefficients(few[0], *map(_apart, few[1:]))
        assert apart.biases.strides != near.biases.strides
        found = [SlotSum(np.zeros((D_OUT, D_IN)), np.zeros((1, D_OUT))) for _ in range(2)]
        for own, coefficients in zip(found, (apart, near), strict=True):
            add_products(own, layer, memory.keys("fc"), memory.values("fc"), coefficients, lambda: None)
        assert found[0].weight.tobytes() == found[1].weight.tobytes()
        assert found[0].biases.tobytes() == found[1].biases.tobytes()


def _apart(numbers):
    return np.repeat(numbers, 2, axis=1)[:, ::2]


@pytest.mark.parametrize("repeats", [False, True])
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


def test_keys_that_no_float32_sum_holds_leave_it_to_the_weights():
    memory, queries = recorded(3, size=1e36)
    with np.errstate(over="ignore"):
        found = arrays.engine(memory).output("fc", np.float32(1e4) * queries).values
        assert found.tobytes() == by_weights(memory, np.float32(1e4) * queries).tobytes()

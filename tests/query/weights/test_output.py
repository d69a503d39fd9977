"""Outputs and weights are the sums that the record says, over the slots that a mask leaves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dualform.errors import BadInput, BadMask, EmptyMask, Inexact, NotFound
from dualform.query.score.canonical import as_float32, canonical_scores
from dualform.query.weights import slot_products
from dualform.query.weights.exactness import Distances
from dualform.query.weights.output import outputs
from dualform.query.weights.reconstruction import RebuiltWeights
from dualform.query.where import mask
from dualform.questions import Output, arguments
from dualform.rules import Update, named
from tests.cases import some
from tests.query import arrays
from tests.query.plain_case import BATCH, STEPS, Case


@pytest.mark.parametrize("d", [1, 3, 800])
def test_the_rounding_of_an_output_does_not_depend_on_the_batch(rng, d):
    weights = RebuiltWeights(rng.normal(size=(50, d)), rng.normal(size=50))
    queries = rng.normal(size=(300, d)).astype(np.float32)
    queries[::3] = np.round(queries[::3])  # sums that lie on the boundary between two float32 numbers
    weights.weight[::2] = np.round(weights.weight[::2]) + 2.0**-24
    together = outputs(weights, queries, lambda: None)
    alone = np.concatenate([outputs(weights, queries[i : i + 1], lambda: None) for i in range(300)])
    assert alone.tobytes() == together.tobytes()
    np.testing.assert_allclose(together, queries.astype(float) @ weights.weight.T + weights.bias, rtol=1e-6, atol=1e-4)


def test_sums_between_two_float32_numbers_are_rounded_as_the_canonical_sum_is(rng):
    terms = np.concatenate([[1.0, 2.0**-24], rng.choice([-1, 1], 30) * 2.0 ** rng.integers(-56, -52, 30)])
    weights = RebuiltWeights(rng.permuted(np.tile(terms, (3000, 1)), axis=1), None)
    query = np.ones(32, dtype=np.float32)
    found = outputs(weights, query[None, :], lambda: None)[0]
    assert found.tolist() == as_float32(canonical_scores(weights.weight, query)).tolist()
    assert len(set(found.tolist())) == 2


def test_weights_are_a_state_dict_under_the_models_own_names():
    case = Case()
    whole = case.engine.weights()
    assert list(whole) == ["fc.weight", "fc.bias", "norm.scale"]
    assert {value.dtype for value in whole.values()} == {torch.float32}
    np.testing.assert_allclose(whole["fc.weight"], case.rebuilt(case.labels >= 0)[0], rtol=1e-6, atol=1e-6)
    with pytest.warns(UserWarning, match=r"stand as at the end of the training: norm\.scale\."):
        masked = case.engine.weights("label <> 2", at_step=5)
    weight, bias = case.rebuilt(case.labels != 2, 5)
    np.testing.assert_allclose(masked["fc.weight"], weight, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(masked["fc.bias"], bias, rtol=1e-6, atol=1e-6)
    assert masked["norm.scale"].tolist() == [3, 4]
    masked["fc.weight"].add_(1)  # the caller's own
    np.testing.assert_allclose(case.engine.weights()["fc.weight"], whole["fc.weight"])


def test_a_reconstruction_says_how_well_the_weights_are_rebuilt():
    assert Case().engine.verify()["fc"].reconstruction_error < 1e-6
    assert Case().engine.verify()["fc"].exact
    for repeats in (False, True):
        case = Case(repeats=repeats)
        case.memory.end = {**case.memory.end, "fc.bias": case.memory.end["fc.bias"] + 1}
        reconstruction = case.engine.verify()["fc"]
        weight, bias = case.rebuilt(case.labels >= 0)
        moved = np.sqrt(((weight - case.weight) ** 2).sum() + ((bias + 1 - case.bias) ** 2).sum())
        assert reconstruction.reconstruction_error == pytest.approx(2 / moved, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rule": ""}, "Rprop has no update rule."),
        (
            {"defects": [(6, "fc", "its weight was used twice in one step.")], "watch": {6: (0.2, 0.2)}},
            "its weight was used twice in one step (from step 6 on).",
        ),
        (
            {"residual": 3e-3, "watch": {0: (0.2, 0.2)}},
            "3.0e-03 of the gradient of step 0 is not in the recorded slots.",
        ),
        (
            {"residual": math.nan, "watch": {0: (0.2, 0.2)}},
            "inf of the gradient of step 0 is not in the recorded slots.",
        ),
        (
            {"watch": {6: (0.2, 0.2)}},
            "weights were changed outside the optimizer's update, after that of step 6.",
        ),
        ({"watch": {6: (0.0, 0.2)}}, "float32 rounding of small steps."),
    ],
    ids=["no rule", "defect", "residual", "residual that is no number", "moved", "drift"],
)
def test_what_is_far_from_the_record_is_refused_with_the_reason(options, reason):
    case = Case(**options)
    for ask in (
        lambda: case.engine.output("fc", case.queries),
        lambda: case.engine.weights(),
        lambda: case.engine.cancellation("label <> 2"),
    ):
        with pytest.raises(Inexact) as caught:
            ask()
        assert reason in str(caught.value)
        assert "fc" in str(caught.value)
    reconstruction = case.engine.verify()["fc"]
    assert not reconstruction.exact
    assert reconstruction.reason.startswith(reason)
    assert (reconstruction.reconstruction_error is None) == ("rule" in options)
    assert not case.engine.info().layers[0].exact
    assert case.engine.topk("fc", case.queries[0], k=1).ids.shape == (1,)


def test_of_many_layers_that_cannot_be_rebuilt_ten_have_a_line_each():
    names = [f"layer{number}" for number in range(12)]
    keys = {name: np.ones((4, 2), np.float32) for name in names}
    values = {name: np.ones((4, 1), np.float32) for name in names}
    memory = arrays.memory(keys, {"label": [1, 2, 1, 2]}, values=values, rule="")
    with arrays.engine(memory) as engine, pytest.raises(Inexact) as caught:
        engine.weights()
    said = [f"  Layer {name!r} cannot be reconstructed: Rprop has no update rule." for name in names[:10]]
    lines = caught.value.message.splitlines()
    assert lines == ["The network cannot be reconstructed:", *said, "  2 more layers."]


def test_layers_without_values_answer_scores_only():
    engine = arrays.engine(arrays.memory({"fc": np.ones((3, 2), np.float32)}, {"label": [1, 2, 3]}))
    with pytest.raises(Inexact, match=r"its error signals were not recorded \(values=False\)\."):
        engine.output("fc", [1, 2])
    assert engine.verify()["fc"].reconstruction_error is None


def test_a_training_that_was_cut_off_has_no_reconstruction_but_weights():
    case = Case()
    case.memory.end = None
    assert case.engine.verify()["fc"].reason == "there are no final weights: the recording was cut off, or still runs."
    with pytest.warns(UserWarning, match="as before its first step, for there is no end: norm.scale"):
        found = case.engine.weights()
    assert found["norm.scale"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("error", "said", "asked"),
    [
        (BadInput, "at_step must be at most 12, the number of recorded steps, not 13", {"at_step": 13}),
        (EmptyMask, "where matches no", {"where": "label = 9"}),
        (BadMask, "where", {"where": "label = "}),
        (NotFound, "no dataset 'mnist'", {"where": "dataset = 'mnist'"}),
    ],
)
def test_bad_questions_are_refused(error, said, asked):
    case = Case()
    for ask in (lambda: case.engine.output("fc", case.queries, **asked), lambda: case.engine.weights(**asked)):
        with pytest.raises(error, match=said) as caught:
            ask()
        assert caught.value.field in asked


@pytest.mark.parametrize("budget", [1, 20_000, 1 << 28])
def test_weights_of_repeated_keys_do_not_depend_on_column_ranges_or_on_the_number_of_cores(budget, monkeypatch, rng):
    monkeypatch.setattr(slot_products, "BUDGET", budget)
    monkeypatch.setattr(slot_products, "_PIECE", 16)
    rows, d_in, d_out = 40, 70, 140
    keys, values = rng.normal(size=(rows, d_in)).astype(np.float32), rng.normal(size=(400, d_out)).astype(np.float32)
    of_slot = np.r_[np.arange(rows), rng.integers(0, rows, 400 - rows)]
    made = arrays.memory(
        {"fc": keys},
        {"step": np.arange(400).tolist()},
        values={"fc": values},
        rows_of_slots={"fc": of_slot},
        initial={"fc.weight": np.zeros((d_out, d_in), np.float32), "fc.bias": np.zeros(d_out, np.float32)},
    )
    found = set()
    for count in (1, 3):
        monkeypatch.setattr(slot_products, "cores", lambda count=count: count)
        view = arrays.engine(made)._view
        layer, selection = view.snapshot.layer("fc"), mask.selection(view, view.snapshot.layer("fc"), None)
        weight = slot_products.slot_sum(view, layer, selection, None, lambda: None).weight
        found.add(weight.tobytes())
    assert len(found) == 1
    np.testing.assert_allclose(weight, -0.1 * values.T.astype(float) @ keys[of_slot], rtol=1e-9, atol=1e-12)


def test_cancellation_is_the_sum_of_norms_over_the_norm_of_the_sum_of_what_a_mask_removes():
    case = Case()
    labels = [None if label == 3 else int(label) for label in case.labels]
    made = arrays.memory(
        {"fc": case.keys},
        {"label": labels, "step": case.steps.tolist()},
        values={"fc": case.values},
        initial={"fc.weight": case.weight, "fc.bias": case.bias},
    )
    engine = arrays.engine(made)
    engine.weights("NOT label <> 2")  # NULL is in neither
    removed = case.labels >= 2
    terms = np.linalg.norm(case.values[removed], axis=1) * np.linalg.norm(case.keys[removed], axis=1)
    moved = np.linalg.norm(case.values[removed].T.astype(float) @ case.keys[removed])
    assert engine.cancellation("label <> 2") == {"fc": pytest.approx(terms.sum() / moved, rel=1e-5)}
    assert math.isnan(engine.cancellation("slot >= 0")["fc"])
    assert math.isnan(engine.cancellation("label <> 2", at_step=0)["fc"])


def witness(*steps):
    numbers = np.zeros(len(steps))
    return Distances("w", np.array(steps, dtype=np.int64), numbers, numbers, numbers, numbers, numbers)


@pytest.mark.parametrize(
    ("steps", "at_step", "expected"),
    [
        ([0, 1, 2], 2, [1]),  # seen once two steps were over: the row of step 1
        ([0, 1, 2], 3, [2]),
        ([0, 1, 1, 2], 2, [1, 2]),  # seen twice at that moment
        ([2, 5, 8], 5, [0, 1]),  # between two rows, both must be good
        ([2, 5, 8], 6, [1]),
        ([2, 5], 1, [0]),
        ([2, 5], 9, [1]),  # cut off: the last row
        ([], 3, []),
    ],
)
def test_a_row_speaks_for_its_own_moment_and_two_for_the_time_between(steps, at_step, expected):
    assert witness(*steps).around(at_step).tolist() == expected


def test_beyond_the_bound_nothing_is_answered_unasked():
    assert Case(watch={6: (0.0, 0.099)}).engine.output("fc", np.ones((1, 7))).shape == (1, 4)
    with pytest.raises(Inexact, match=r"^Layer 'fc' cannot be reconstructed exactly: float32 rounding of small"):
        Case(watch={6: (0.0, 0.101)}).engine.output("fc", np.ones((1, 7)))


@pytest.mark.parametrize(
    "temperature", [0, -1.0, math.nan, math.inf, True, "1", 10**400, 10**5000], ids=lambda own: arguments.shown(own)
)
def test_temperatures_are_finite_and_above_zero(temperature):
    with pytest.raises(BadInput) as refused:
        Output("fc", np.ones(3), kernel="softmax", temperature=temperature)
    assert refused.value.message == f"temperature must be a finite number above 0, not {arguments.shown(temperature)}."
    assert (refused.value.hint, refused.value.field) == ("For example temperature=1.0.", "temperature")


def test_the_engine_answers_every_kernel_that_a_question_may_name(monkeypatch):
    case = Case()
    for kernel in arguments.KERNELS:
        found = case.engine.output("fc", case.queries, kernel=kernel)
        assert (found.kernel, found.scan.backend, found.scan.slots_matching) == (kernel, "", STEPS * BATCH)
    monkeypatch.setattr(arguments, "KERNELS", (*arguments.KERNELS, "rbf"))
    with pytest.raises(BadInput, match=r"^Unknown kernel 'rbf'\.$"):
        case.engine.output("fc", case.queries, kernel="rbf")


@pytest.mark.parametrize("name", ["initial", "allow_inexact"])
def test_what_is_neither_true_nor_false_is_refused(name):
    with pytest.raises(BadInput) as refused:
        Output("fc", np.ones(3), **{name: "no"})
    assert (refused.value.message, refused.value.hint) == (f"{name} must be True or False, not 'no'.", "")
    assert refused.value.field == name
    assert getattr(Output("fc", np.ones(3), **{name: np.True_}), name) is True


def test_kernels_are_named():
    with pytest.raises(BadInput, match=r"^Unknown kernel 'rbf'\. Choose kernel=\"linear\" or kernel=\"softmax\"\.$"):
        Output("fc", np.ones(3), kernel="rbf")
    with pytest.raises(BadInput, match=r'^temperature cannot be used with kernel="linear"\.'):
        Output("fc", np.ones(3), temperature=1.0)
    assert Output("fc", np.ones(3), kernel="softmax").temperature == 1.0
    assert Output("fc", np.ones(3), kernel="softmax", temperature=np.float32(2)).temperature == 2.0


SGD = named("sgd")
PLAIN = {"lr": 0.1, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}
RATES = st.sampled_from([0.0, 0.1, 0.5, 1.0])
HISTORIES = st.lists(
    st.fixed_dictionaries(
        {
            "lr": RATES,
            "momentum": st.sampled_from([0.0, 0.5, 0.9]),
            "dampening": st.sampled_from([0.0, 0.3]),
            "weight_decay": st.sampled_from([0.0, 0.1]),
            "nesterov": st.booleans(),
            "maximize": st.booleans(),
            "factor": st.sampled_from([1.0, 0.25, None]),
        }
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(steps=HISTORIES, buffer=st.sampled_from([None, 0.7]), seed=st.integers(0, 99))
def test_every_history_of_settings_gives_the_weight_that_torch_gives(steps, buffer, seed):
    gradients = np.random.default_rng(seed).normal(size=len(steps))
    weight = torch.nn.Parameter(torch.tensor([1.3], dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    if buffer is not None:
        optimizer.state[weight]["momentum_buffer"] = torch.tensor([buffer], dtype=torch.float64)
    updates = []
    for number, (step, gradient) in some(enumerate(zip(steps, gradients, strict=True))):
        setting = {name: value for name, value in step.items() if name != "factor"}
        optimizer.param_groups[0].update(setting)
        factor = step["factor"]
        weight.grad = None if factor is None else torch.tensor([gradient * factor])
        optimizer.step()
        if factor is not None:
            updates.append(Update(number, number, factor, setting))
        got = SGD.coefficients(updates, number + 1, has_buffers=buffer is not None)
        rebuilt = (
            got.initial * 1.3
            + got.buffers.get("momentum_buffer", 0.0) * (buffer or 0.0)
            + got.per_step @ gradients[: number + 1]
        )
        assert rebuilt == pytest.approx(float(weight.detach()), rel=1e-10, abs=1e-12)


def test_an_update_of_several_steps_and_gradients_never_used():
    got = SGD.coefficients([Update(1, 3, 0.5, PLAIN), Update(5, 5, 1.0, {**PLAIN, "lr": 0.2})], 7)
    assert got.per_step.tolist() == pytest.approx([0, -0.05, -0.05, -0.05, 0, -0.2, 0])

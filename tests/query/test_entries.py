"""A layer that lacks some slots of its space is asked and answered as if the others were not there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dualform.errors import NotFound
from dualform.query.groups import group_entries
from dualform.query.sums import grouping
from dualform.query.where import mask
from dualform.questions import SlotKeys, TopK
from tests.query import arrays, oracle

SLOTS, STEPS = 60, 6


class Case:
    """Layer "whole" has every slot, layer "part" some of them."""

    def __init__(self, seed: int, repeats: bool = False, backend: str = "numpy") -> None:
        rng = np.random.default_rng(seed)
        self.slots = np.sort(rng.choice(SLOTS, rng.integers(1, SLOTS), replace=False))
        self.labels = [None if i == 4 else int(i) for i in rng.integers(0, 5, SLOTS)]
        self.steps = (np.arange(SLOTS) // (SLOTS // STEPS)).tolist()
        rows = rng.normal(size=(7 if repeats else len(self.slots), 5)).astype(np.float32)
        of_entry = rng.integers(0, 7, len(self.slots)) if repeats else None
        self.keys = rows if of_entry is None else rows[of_entry]
        self.values = rng.normal(size=(len(self.slots), 3)).astype(np.float32)
        self.weight = rng.normal(size=(3, 5)).astype(np.float32)
        self.queries = rng.normal(size=(4, 5)).astype(np.float32)
        self.memory = arrays.memory(
            {"whole": rng.normal(size=(SLOTS, 5)).astype(np.float32), "part": rows},
            {"label": self.labels, "step": self.steps},
            values={"part": self.values},
            entries={"part": self.slots.tolist()},
            rows_of_slots={} if of_entry is None else {"part": of_entry},
            segment_rows=9,
            initial={"part.weight": self.weight, "part.bias": np.zeros(3, np.float32)},
        )
        self.engine = arrays.engine(self.memory, backend)


@pytest.mark.parametrize("backend", ["numpy", "int8"])
@given(seed=st.integers(0, 999), repeats=st.booleans(), k=st.integers(1, 9), by=st.booleans(), where=st.booleans())
@settings(deadline=None, max_examples=13)
def test_hits_are_those_of_the_brute_force(backend, seed, repeats, k, by, where):
    case = Case(seed, repeats, backend)
    stays = [not where or case.labels[slot] not in (None, 2) for slot in case.slots.tolist()]
    if not any(stays):
        return
    condition = "label <> 2" if where else None
    hits = case.engine.topk("part", case.queries, k=k, where=condition, by="label" if by else None)
    for i, query in enumerate(case.queries):
        exact = dict(zip(case.slots.tolist(), oracle.scores(case.keys, query), strict=True))
        left = [slot for slot, kept in zip(case.slots.tolist(), stays, strict=True) if kept]
        if not by:
            assert hits.slots[i].tolist() == oracle.best(exact, left, k)
            continue
        groups = oracle.groups([case.labels], [slot in left for slot in range(SLOTS)])
        assert hits.groups == tuple(groups)
        assert [own.tolist() for own in hits.slots[i]] == [oracle.best(exact, own, k) for own in groups.values()]
    assert (hits.scan.slots_scanned, hits.scan.slots_matching) == (len(case.slots), sum(stays))


@given(seed=st.integers(0, 999), repeats=st.booleans(), budget=st.sampled_from([1, grouping.BUDGET]))
@settings(deadline=None, max_examples=10)
def test_sums_are_over_the_slots_that_the_layer_has(seed, repeats, budget):
    case = Case(seed, repeats)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "BUDGET", budget)
        found = case.engine.group_sum("part", case.queries, by="step")
    of = np.array(case.steps)[case.slots]
    present = sorted(set(of.tolist()))
    assert found.groups == tuple((step,) for step in present)
    assert found.counts.tolist() == [int((of == step).sum()) for step in present]
    wide = case.queries.astype(float) @ case.keys.astype(float).T
    np.testing.assert_allclose(found.sums, [[row[of == step].sum() for step in present] for row in wide], atol=1e-12)


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("at_step", [None, 0, 3])
def test_weights_take_the_coefficients_of_the_steps_of_its_own_slots(repeats, at_step):
    case = Case(5, repeats)
    label = np.array([-1 if value is None else value for value in case.labels])[case.slots]
    step = np.array(case.steps)[case.slots]
    speaks = (label >= 2) & (step < (STEPS if at_step is None else at_step))
    moved = 0.1 * case.values[speaks].astype(float).T @ case.keys[speaks].astype(float)
    found = case.engine.output("part", np.eye(5), where="label >= 2", at_step=at_step)
    bias = -0.1 * case.values[speaks].astype(float).sum(axis=0)
    np.testing.assert_allclose(np.asarray(found).T, case.weight - moved + bias[:, None], atol=1e-6)


def test_a_mask_of_both_layers_is_evaluated_once_and_told_apart():
    case = Case(5)
    view = case.engine._view
    whole, part = view.snapshot.layer("whole"), view.snapshot.layer("part")
    selections = [mask.selection(view, layer, where) for layer in (whole, part) for where in (None, "label = 1")]
    assert len({selection.identity for selection in selections}) == 4
    assert selections[1].stays[case.slots].tolist() == selections[3].stays.tolist()
    by_label = [group_entries(view, layer, mask.selection(view, layer, None), ("label",)) for layer in (whole, part)]
    assert [int(groups.counts.sum()) for groups in by_label] == [SLOTS, len(case.slots)]


def test_a_slot_that_the_layer_lacks_is_named():
    case = Case(5)
    missing = next(slot for slot in range(SLOTS) if slot not in case.slots)
    own = int(case.slots[-1])
    found = case.engine.ask(TopK("part", SlotKeys(np.array([own])), k=1)).scores[0][0]
    assert found == np.float32(max(oracle.scores(case.keys, case.keys[-1])))
    with pytest.raises(NotFound) as caught:
        case.engine.ask(TopK("part", SlotKeys(np.array([own, missing]))))
    assert str(caught.value) == (
        f"Layer 'part' has no key for slot {missing}: it was not called there. "
        "Pass slots that it has, such as the hits of a search in layer 'part'."
    )


def test_a_column_that_is_null_in_all_slots_of_a_layer_is_an_error():
    keys = {"whole": np.ones((4, 2), np.float32), "part": np.ones((2, 2), np.float32)}
    memory = arrays.memory(keys, {"label": [1, 2, None, None], "dataset": [None] * 4}, entries={"part": [2, 3]})
    engine = arrays.engine(memory)
    assert engine.topk("whole", [1, 1], where="label = 1").slots[0].tolist() == [0]
    with pytest.raises(NotFound) as caught:
        engine.topk("part", [1, 1], where="label = 1")
    assert str(caught.value) == (
        "Column 'label' is NULL in all slots of layer 'part' (space 'sample'). Other layers of space 'sample' have it."
    )
    with pytest.raises(NotFound, match=r"Column 'position' is NULL in all .* No space has it\."):
        engine.topk("whole", [1, 1], where="position < 3")
    with pytest.raises(NotFound, match="Column 'dataset' is NULL in all slots of layer 'whole'"):
        engine.topk("whole", [1, 1], where="label = 1 OR dataset LIKE 'x%'")
    assert engine.topk("part", [1, 1], where="label IS NULL").slots[0].tolist() == [2, 3]
    assert engine.topk("part", [1, 1], where="label IS NULL AND slot > 2").slots[0].tolist() == [3]


@pytest.mark.parametrize(
    "where",
    [
        "label IS NOT NULL",
        "label IS NOT NULL AND slot >= 0",
        "NOT (label IS NULL)",
        "NOT (label IS NULL) AND slot >= 0",
        "CASE WHEN label IS NULL THEN false ELSE true END",
        "(label IS NULL) = false",
        "coalesce(label, 0) = 1",
        "label IS DISTINCT FROM NULL",
    ],
)
def test_a_mask_that_asks_a_layer_for_what_is_nowhere_said_of_it_is_an_error(where):
    keys = {"whole": np.ones((4, 2), np.float32), "part": np.ones((2, 2), np.float32)}
    columns = {"label": [1, 2, None, None], "dataset": [None] * 4}
    initial = {f"{layer}.weight": np.zeros((1, 2), np.float32) for layer in keys}
    initial |= {f"{layer}.bias": np.zeros(1, np.float32) for layer in keys}
    values = {layer: np.ones((len(rows), 1), np.float32) for layer, rows in keys.items()}
    engine = arrays.engine(arrays.memory(keys, columns, entries={"part": [2, 3]}, values=values, initial=initial))
    assert engine.topk("whole", [1, 1], where=where).slots[0].tolist() in ([0], [0, 1])
    said = (
        "Column 'label' is NULL in all slots of layer 'part' (space 'sample'). Other layers of space 'sample' have it."
    )
    for ask in (lambda: engine.topk("part", [1, 1], where=where), lambda: engine.weights(where)):
        with pytest.raises(NotFound) as caught:
            ask()
        assert str(caught.value) == said

"""Queries, directions and ids are taken from tensors as from arrays, with gradients or without, alone or in lists; what
is none is refused by name. No error is torch's or NumPy's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import dualform
from dualform.errors import BadInput
from tests.contract.recorded import WIDTH
from tests.wire.values import same


@pytest.fixture
def memory(engine):
    return engine


@pytest.fixture
def rows():
    return np.random.default_rng(0).standard_normal((2, WIDTH)).astype(np.float32)


FORMS = {
    "requires grad": lambda rows: torch.tensor(rows, requires_grad=True),
    "result of an operation": lambda rows: torch.tensor(rows, requires_grad=True) * 1,
    "list of tensors": lambda rows: [torch.tensor(row, requires_grad=True) for row in rows],
    "lists of numbers": lambda rows: [list(torch.tensor(row, requires_grad=True)) for row in rows],
    "float64": lambda rows: torch.tensor(rows).double().requires_grad_(),
    "list of bfloat16": lambda rows: [torch.tensor(row).bfloat16() for row in rows],
}
ASKED = {
    "topk": lambda memory, queries: memory.topk("0", queries, k=3).flat_scores,
    "group_sum": lambda memory, queries: memory.group_sum("0", queries, by="label").sums,
    "output": lambda memory, queries: memory.output("0", queries).values,
    "contributions": lambda memory, queries: memory.contributions("0", queries, by="label").sums,
    "vectors": lambda memory, queries: dualform.Vectors(queries).rows,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_tensors_are_asked_with_as_arrays_are(memory, rows, ask, form):
    given = form(rows)
    plain = rows if form is not FORMS["list of bfloat16"] else torch.tensor(rows).bfloat16().float().numpy()
    assert same(ask(memory, given), ask(memory, plain))
    if isinstance(given, torch.Tensor):
        assert given.requires_grad, "what was given stays as it was"


def test_directions_and_ids_may_be_tensors_too(memory):
    direction = torch.randn(4, requires_grad=True)
    asked = {"k": 2, "score": "contribution"}
    wanted = memory.topk("2", "test/1", target=direction.detach().numpy(), **asked)
    assert same(memory.topk("2", "test/1", target=direction, **asked).ids, wanted.ids)
    assert same(memory.slots(torch.tensor([3, 1]), "sample")["slot"], np.array([3, 1]))
    assert dualform.SlotKeys(torch.tensor([3, 1])) == dualform.SlotKeys((3, 1))
    assert dualform.QuerySetExamples("test", np.array([2])) == dualform.QuerySetExamples("test", (2,))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda memory: memory.topk("0", torch.empty(WIDTH, device="meta")), "numbers: Cannot copy out"),
        (lambda memory: memory.topk("0", torch.ones(WIDTH, dtype=torch.complex64)), "they are complex."),
        (lambda memory: memory.output("0", np.ones(WIDTH, complex)), "queries must be numbers: they are complex."),
        (lambda memory: memory.slots(torch.ones(2, requires_grad=True), "sample"), "ids must be a list of whole"),
        (lambda memory: memory.keys("0", torch.ones(2, requires_grad=True)), "ids must be a list of whole"),
        (lambda memory: memory.topk("0", dualform.SlotKeys(5)), "slots must be a list of whole numbers, not 5."),
        (lambda memory: memory.topk("0", dualform.QuerySetExamples("test", 3)), "examples must be a list of "
            "whole numbers"),
        (lambda memory: memory.query_set("test", 5), "layer must be the name of a layer, not 5."),
        (lambda memory: memory.query_set(5), "name must be the name of a query set, not 5."),
        (lambda memory: dualform.open(5), "path must be the folder of a memory, or a list of folders, not 5."),
        (lambda memory: dualform.open(["runs/a", None]), "path must be the folder of a memory"),
        (lambda memory: dualform.connect(None), "the target is None."),
    ],
)  # fmt: skip
def test_what_is_none_is_refused_by_name(memory, ask, message):
    with pytest.raises(BadInput) as refused:
        ask(memory)
    assert message in refused.value.message


@pytest.mark.parametrize(
    "ask",
    [
        lambda memory, given: memory.topk("0", "test/1", score=given),
        lambda memory, given: memory.topk("0", "test/1", k=given),
        lambda memory, given: memory.topk("0", f"test/{given}"),
        lambda memory, given: memory.topk(given, "test/1"),
        lambda memory, given: memory.topk("0", "test/1", where=given),
        lambda memory, given: memory.output("0", "test/1", kernel=given),
        lambda memory, given: memory.output("0", "test/1", at_step=given),
        lambda memory, given: memory.group_sum("0", "test/1", by=given),
        lambda memory, given: memory.query_set(given),
        lambda memory, given: dualform.QuerySetExamples("test", given),
        lambda memory, given: dualform.ExampleGradients(given, 1),
    ],
    ids=["score", "k", "row", "layer", "where", "kernel", "step", "by", "query_set", "rows", "examples"],
)
def test_a_message_shows_no_more_than_the_beginning_of_what_was_given(memory, ask):
    for given in ({"a": list(range(5000))}, {"a": "x" * 100_000}):
        with pytest.raises(BadInput) as refused:
            ask(memory, given)
        assert len(refused.value.message) < 300
    with pytest.raises(BadInput, match="thousands of digits"):
        memory.output("0", "test/1", at_step=10**5000)

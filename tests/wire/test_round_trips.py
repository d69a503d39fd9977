"""Whatever is encoded, sent as bytes and decoded is what it was, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings, strategies as st

from dualform.errors import BadInput
from dualform.questions import (
    Contribution,
    Distribution,
    GradientSum,
    GradientTopK,
    GroupSum,
    Inventory,
    LayerQuestion,
    MaskCancellation,
    NetworkWeights,
    Output,
    Placebo,
    PreviewLookup,
    QuerySetLookup,
    Question,
    SlotLookup,
    SqlStatement,
    TopK,
    Verification,
)
from dualform.questions.scores import ScoreQuestion
from dualform_proto import arrays
from dualform_proto.calls import CALLS, call_of
from dualform_proto.v1 import dualform_pb2 as pb
from tests.wire import values

QUESTIONS = {
    TopK: values.topks,
    GroupSum: values.group_sums,
    GradientTopK: values.gradient_top_ks,
    GradientSum: values.gradient_sums,
    Output: values.outputs,
    Contribution: values.contributions,
    Placebo: values.placebo_questions,
    Distribution: values.distributions,
    NetworkWeights: values.network_weights,
    MaskCancellation: values.mask_cancellations,
    SlotLookup: values.slot_lookups,
    SqlStatement: values.sql_statements,
    QuerySetLookup: values.query_set_lookups,
    PreviewLookup: values.preview_lookups,
    Inventory: st.builds(Inventory),
    Verification: st.builds(Verification),
}
ANSWERS = {
    TopK: values.hits(),
    GroupSum: values.sums(),
    GradientTopK: values.hits(),
    GradientSum: values.sums(),
    Output: values.outputs_answers,
    Contribution: values.contributions_answers,
    Placebo: values.placebos(),
    Distribution: values.distributions_answers,
    NetworkWeights: values.weights(),
    MaskCancellation: values.cancellations,
    SlotLookup: values.slot_columns,
    SqlStatement: values.sql_rows,
    QuerySetLookup: values.query_sets(),
    PreviewLookup: values.previews(),
    Inventory: values.infos,
    Verification: values.reconstructions,
}


def over_the_wire(message: Message) -> Any:
    return type(message).FromString(message.SerializeToString())


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_question_comes_back_as_it_was(kind, data):
    value = data.draw(QUESTIONS[kind])
    assert values.same(CALLS[kind].question.decode(over_the_wire(CALLS[kind].question.encode(value))), value)


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: CALLS[kind].method)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_an_answer_comes_back_as_it_was(kind, data):
    value = data.draw(ANSWERS[kind])
    assert values.same(CALLS[kind].result.decode(over_the_wire(CALLS[kind].result.encode(value))), value)


def test_every_kind_of_question_has_its_call():
    shared = {LayerQuestion, ScoreQuestion}
    kinds = {kind for one in (Question, *shared) for kind in one.__subclasses__()} - shared
    assert set(CALLS) == kinds
    service = pb.DESCRIPTOR.services_by_name["Memory"]
    assert {call.method for call in CALLS.values()} == {method.name for method in service.methods}


def test_what_is_no_question_has_no_call():
    with pytest.raises(
        BadInput,
        match=r"^ask takes a query such as dualform\.TopK, not str\. For example "
        r'ask\(dualform\.TopK\("head", dualform\.Vectors\(x\)\)\)\.$',
    ):
        call_of("topk")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", values.NUMBER_TYPES)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_every_type_of_matrix_comes_back(dtype, data):
    array = data.draw(values.matrices(np.dtype(dtype)))
    decoded = arrays.decode_matrix(over_the_wire(arrays.encode_matrix(array)), np.dtype(dtype), "m")
    assert values.same(decoded, array)


def test_numbers_travel_little_endian_whatever_order_they_had():
    big, little = np.array([1, 258], ">i8"), np.array([1, 258], "<i8")
    assert arrays.encode_numbers(big) == arrays.encode_numbers(little) == little.tobytes()
    assert arrays.encode_numbers(np.arange(6)[::2]) == np.array([0, 2, 4]).tobytes()
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert arrays.encode_matrix(np.asfortranarray(array)) == arrays.encode_matrix(array)
    arrays.decode_matrix(arrays.encode_matrix(array), np.float32, "m")[0, 0] = 1  # it can be written to

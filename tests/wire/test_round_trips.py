"""Whatever is encoded, sent as bytes and decoded is what it was, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings, strategies as st

from dualform.errors import BadInput
from dualform.questions import Question
from dualform_proto import answers, columns, grade, info, matrix, questions, scan, weights
from dualform_proto.calls import CALLS, call_of
from dualform_proto.v1 import dualform_pb2 as pb
from tests.wire import values

CASES = {
    "TopK": (values.topks, questions.encode_topk, questions.decode_topk),
    "GroupSum": (values.group_sums, questions.encode_group_sum, questions.decode_group_sum),
    "Output": (values.outputs, questions.encode_output, questions.decode_output),
    "NetworkWeights": (values.network_weights, questions.encode_weights, questions.decode_weights),
    "MaskCancellation": (values.mask_cancellations, questions.encode_cancellation, questions.decode_cancellation),
    "SlotLookup": (values.slot_lookups, questions.encode_slots, questions.decode_slots),
    "SqlStatement": (values.sql_statements, questions.encode_sql, questions.decode_sql),
    "ProbeLookup": (values.probe_lookups, questions.encode_probe, questions.decode_probe),
    "Grade": (values.grades, grade.encode_grade, grade.decode_grade),
    "Outputs": (values.outputs_answers, weights.encode_outputs, weights.decode_outputs),
    "Weights": (values.weights(), weights.encode_weights, weights.decode_weights),
    "Cancellation": (values.cancellations, weights.encode_cancellation, weights.decode_cancellation),
    "Queries": (values.queries, questions.encode_queries, questions.decode_queries),
    "Scan": (values.scans, scan.encode_scan, scan.decode_scan),
    "Hits": (values.hits(), answers.encode_hits, answers.decode_hits),
    "GroupSums": (values.sums(), answers.encode_group_sums, answers.decode_group_sums),
    "Probe": (values.probes(), answers.encode_probe_answer, answers.decode_probe_answer),
    "Certificates": (values.certificates, answers.encode_certificates, answers.decode_certificates),
    "MemoryInfo": (values.infos, info.encode_info, info.decode_info),
    "Columns": (values.columns(), columns.encode_columns, columns.decode_columns),
    "slots": (values.columns(), answers.encode_slots_answer, answers.decode_slots_answer),
    "sql": (values.columns(), answers.encode_sql_answer, answers.decode_sql_answer),
}


def over_the_wire(message: Message) -> Any:
    return type(message).FromString(message.SerializeToString())


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_comes_back_as_it_was(case, data):
    strategy, encode, decode = CASES[case]
    value = data.draw(strategy)
    assert values.same(decode(over_the_wire(encode(value))), value)


def test_every_kind_of_question_has_its_call():
    assert set(CALLS) == set(Question.__subclasses__())
    service = pb.DESCRIPTOR.services_by_name["Memory"]
    assert {call.method for call in CALLS.values()} == {method.name for method in service.methods}


def test_what_is_no_question_has_no_call():
    with pytest.raises(BadInput, match=r"^str is no question\. See dualform\.questions\.$"):
        call_of("topk")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", values.NUMBER_TYPES)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_every_type_of_matrix_comes_back(dtype, data):
    array = data.draw(values.matrices(np.dtype(dtype)))
    decoded = matrix.decode_matrix(over_the_wire(matrix.encode_matrix(array)), np.dtype(dtype), "m")
    assert values.same(decoded, array)


def test_a_decoded_array_can_be_written_to():
    decoded = matrix.decode_matrix(matrix.encode_matrix(np.zeros((2, 2), np.float32)), np.float32, "m")
    decoded[0, 0] = 1


def test_numbers_travel_little_endian_whatever_order_they_had():
    big, little = np.array([1, 258], ">i8"), np.array([1, 258], "<i8")
    assert matrix.encode_numbers(big) == matrix.encode_numbers(little) == little.tobytes()


def test_columns_in_strides_and_in_fortran_order_travel_row_by_row():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert matrix.encode_matrix(np.asfortranarray(array)) == matrix.encode_matrix(array)
    assert matrix.encode_numbers(np.arange(6)[::2]) == np.array([0, 2, 4]).tobytes()

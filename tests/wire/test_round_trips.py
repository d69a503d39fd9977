"""Whatever is encoded, sent as bytes and decoded is what it was, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings, strategies as st

from dualform.errors import BadInput
from dualform.questions import LayerQuestion, Question
from dualform.questions.scores import ScoreQuestion
from dualform_proto import (
    columns,
    contributions,
    distributions,
    gradients,
    info,
    lookups,
    matrix,
    placebos,
    previews,
    queries,
    rebuilt,
    scan,
    scores,
    status,
)
from dualform_proto.calls import CALLS, call_of
from dualform_proto.v1 import dualform_pb2 as pb
from tests.wire import values

CASES = {
    "TopK": (values.topks, scores.encode_topk, scores.decode_topk),
    "GroupSum": (values.group_sums, scores.encode_group_sum, scores.decode_group_sum),
    "GradientTopK": (values.gradient_top_ks, gradients.encode_gradient_top_k, gradients.decode_gradient_top_k),
    "GradientSum": (values.gradient_sums, gradients.encode_gradient_sum, gradients.decode_gradient_sum),
    "Output": (values.outputs, rebuilt.encode_output, rebuilt.decode_output),
    "Contribution": (values.contributions, contributions.encode_contribution, contributions.decode_contribution),
    "Distribution": (values.distributions, distributions.encode_distribution, distributions.decode_distribution),
    "Distributions": (
        values.distributions_answers,
        distributions.encode_distributions,
        distributions.decode_distributions,
    ),
    "NetworkWeights": (values.network_weights, rebuilt.encode_weights, rebuilt.decode_weights),
    "MaskCancellation": (values.mask_cancellations, rebuilt.encode_cancellation, rebuilt.decode_cancellation),
    "SlotLookup": (values.slot_lookups, lookups.encode_slots, lookups.decode_slots),
    "SqlStatement": (values.sql_statements, lookups.encode_sql, lookups.decode_sql),
    "QuerySetLookup": (values.query_set_lookups, lookups.encode_query_set, lookups.decode_query_set),
    "PreviewLookup": (
        values.preview_lookups,
        previews.encode_preview_lookup,
        previews.decode_preview_lookup,
    ),
    "Previews": (values.previews(), previews.encode_previews, previews.decode_previews),
    "Status": (values.statuses, status.encode_status, status.decode_status),
    "Outputs": (values.outputs_answers, rebuilt.encode_outputs, rebuilt.decode_outputs),
    "Contributions": (
        values.contributions_answers,
        contributions.encode_contributions,
        contributions.decode_contributions,
    ),
    "Placebo": (values.placebo_questions, placebos.encode_placebo, placebos.decode_placebo),
    "Placebos": (values.placebos(), placebos.encode_placebos, placebos.decode_placebos),
    "Weights": (values.weights(), rebuilt.encode_weights_answer, rebuilt.decode_weights_answer),
    "Cancellation": (values.cancellations, rebuilt.encode_cancellation_answer, rebuilt.decode_cancellation_answer),
    "Queries": (values.queries, queries.encode_queries, queries.decode_queries),
    "Scan": (values.scans, scan.encode_scan, scan.decode_scan),
    "Hits": (values.hits(), scores.encode_hits, scores.decode_hits),
    "GroupSums": (values.sums(), scores.encode_group_sums, scores.decode_group_sums),
    "QuerySet": (values.query_sets(), lookups.encode_query_set_answer, lookups.decode_query_set_answer),
    "Reconstructions": (values.reconstructions, lookups.encode_reconstructions, lookups.decode_reconstructions),
    "MemoryInfo": (values.infos, info.encode_info, info.decode_info),
    "Columns": (values.tables(), columns.encode_columns, columns.decode_columns),
    "slots": (values.slot_columns, lookups.encode_slots_answer, lookups.decode_slots_answer),
    "sql": (values.sql_rows, lookups.encode_sql_answer, lookups.decode_sql_answer),
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

"""Questions about what a memory holds, and their answers <-> messages. Of what it holds altogether: info.py.

Decoding builds the value, which checks itself, and checks every length. Raises BadInput.
"""

from __future__ import annotations

import numpy as np

from dualform.answers import Columns, QuerySet, Reconstruction, Reconstructions
from dualform.answers.output_summary import OutputSummary
from dualform.errors import BadInput
from dualform.questions import QuerySetLookup, SlotLookup, SqlStatement
from dualform_proto.arguments import encode_optional_text, encode_text
from dualform_proto.columns import decode_columns, encode_columns
from dualform_proto.matrix import decode_matrix, decode_numbers, encode_matrix, encode_numbers
from dualform_proto.scan import decode_scan, encode_scan
from dualform_proto.status import decode_status, encode_status
from dualform_proto.v1 import dualform_pb2 as pb


def encode_slots(question: SlotLookup) -> pb.SlotsRequest:
    return pb.SlotsRequest(ids=encode_numbers(question.ids), space=encode_optional_text(question.space, "space"))


def decode_slots(message: pb.SlotsRequest) -> SlotLookup:
    ids = decode_numbers(message.ids, np.int64, "ids")
    return SlotLookup(ids, message.space if message.HasField("space") else None)


def encode_slots_answer(columns: Columns) -> pb.SlotsResponse:
    return pb.SlotsResponse(slots=encode_columns(columns.arrays), scan=encode_scan(columns.scan), space=columns.space)


def decode_slots_answer(message: pb.SlotsResponse) -> Columns:
    return Columns(decode_columns(message.slots), decode_scan(message.scan), message.space)


def encode_sql(question: SqlStatement) -> pb.SqlRequest:
    return pb.SqlRequest(statement=encode_text(question.text, "statement"))


def decode_sql(message: pb.SqlRequest) -> SqlStatement:
    return SqlStatement(message.statement)


def encode_sql_answer(columns: Columns) -> pb.SqlResponse:
    return pb.SqlResponse(rows=encode_columns(columns.arrays), scan=encode_scan(columns.scan))


def decode_sql_answer(message: pb.SqlResponse) -> Columns:
    return Columns(decode_columns(message.rows), decode_scan(message.scan))


def encode_query_set(question: QuerySetLookup) -> pb.QuerySetRequest:
    return pb.QuerySetRequest(
        name=encode_text(question.name, "name"), layer=encode_optional_text(question.layer, "layer")
    )


def decode_query_set(message: pb.QuerySetRequest) -> QuerySetLookup:
    return QuerySetLookup(message.name, message.layer if message.HasField("layer") else None)


def encode_query_set_answer(query_set: QuerySet) -> pb.QuerySetResponse:
    return pb.QuerySetResponse(
        name=query_set.name,
        labels=None if query_set.labels is None else encode_numbers(query_set.labels.astype(np.int64, copy=False)),
        outputs=None if query_set.outputs is None else encode_matrix(query_set.outputs.astype(np.float32, copy=False)),
        queries=None if query_set.queries is None else encode_matrix(query_set.queries.astype(np.float32, copy=False)),
        scan=encode_scan(query_set.scan),
        examples=query_set.examples,
        summary=None if query_set.summary is None else _encode_summary(query_set.summary),
    )


def _encode_summary(summary: OutputSummary) -> pb.OutputSummary:
    return pb.OutputSummary(
        largest=encode_matrix(summary.largest.astype(np.int64, copy=False)),
        values=encode_matrix(summary.values.astype(np.float32, copy=False)),
        label=encode_numbers(summary.label.astype(np.float32, copy=False)),
        logsumexp=encode_numbers(summary.logsumexp.astype(np.float32, copy=False)),
        width=summary.width,
    )


def _decode_summary(message: pb.OutputSummary) -> OutputSummary:
    largest = decode_matrix(message.largest, np.int64, "largest")
    values = decode_matrix(message.values, np.float32, "values")
    label = decode_numbers(message.label, np.float32, "label", len(largest))
    logsumexp = decode_numbers(message.logsumexp, np.float32, "logsumexp", len(largest))
    if values.shape != largest.shape:
        raise BadInput(f"a summary of outputs has parts of {largest.shape} and {values.shape}.")
    if largest.size and not 0 <= largest.min() <= largest.max() < message.width:
        raise BadInput(f"a summary names outputs beyond the {message.width} that there are.")
    return OutputSummary(largest, values, label, logsumexp, message.width)


def decode_query_set_answer(message: pb.QuerySetResponse) -> QuerySet:
    query_set = QuerySet(
        name=message.name,
        labels=decode_numbers(message.labels, np.int64, "labels") if message.HasField("labels") else None,
        outputs=decode_matrix(message.outputs, np.float32, "outputs") if message.HasField("outputs") else None,
        queries=decode_matrix(message.queries, np.float32, "queries") if message.HasField("queries") else None,
        scan=decode_scan(message.scan),
        examples=message.examples if message.HasField("examples") else None,
        summary=_decode_summary(message.summary) if message.HasField("summary") else None,
    )
    lengths = {len(part) for part in (query_set.labels, query_set.outputs, query_set.summary) if part is not None}
    if lengths and not _is_multiple(max(lengths), min(lengths)):
        parts = " and ".join(map(str, sorted(lengths)))
        raise BadInput(f"query set {query_set.name!r} has labels and outputs of {parts} rows.")
    return query_set


def _is_multiple(rows: int, fewer: int) -> bool:
    """Whether some parts have one row for each example, and others one for each of its tokens."""
    return rows == 0 if fewer == 0 else rows % fewer == 0


def encode_reconstructions(reconstructions: Reconstructions) -> pb.VerifyResponse:
    return pb.VerifyResponse(
        reconstructions=[
            pb.Reconstruction(
                layer=layer,
                reconstruction_error=reconstruction.reconstruction_error,
                exact=reconstruction.exact,
                reason=reconstruction.reason,
                status=encode_status(reconstruction.status),
                rounding_share=reconstruction.rounding_share,
            )
            for layer, reconstruction in reconstructions.items()
        ],
        scan=encode_scan(reconstructions.scan),
    )


def decode_reconstructions(message: pb.VerifyResponse) -> Reconstructions:
    found = {
        reconstruction.layer: Reconstruction(
            reconstruction_error=reconstruction.reconstruction_error
            if reconstruction.HasField("reconstruction_error")
            else None,
            status=decode_status(reconstruction.status),
            rounding_share=reconstruction.rounding_share,
        )
        for reconstruction in message.reconstructions
    }
    return Reconstructions(found, decode_scan(message.scan))

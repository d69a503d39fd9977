"""Questions about what a memory holds, and their answers <-> messages. Of what it holds altogether: info.py.

Decoding builds the value, which checks itself, and checks every length. Raises BadInput.
"""

from __future__ import annotations

import numpy as np

from dualform.answers import Certificate, Certificates, Columns, Probe
from dualform.errors import BadInput
from dualform.questions import ProbeLookup, SlotLookup, SqlStatement
from dualform_proto.arguments import encode_optional_text, encode_text
from dualform_proto.columns import decode_columns, encode_columns
from dualform_proto.grade import decode_grade, encode_grade
from dualform_proto.matrix import decode_matrix, decode_numbers, encode_matrix, encode_numbers
from dualform_proto.scan import decode_scan, encode_scan
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


def encode_probe(question: ProbeLookup) -> pb.ProbeRequest:
    return pb.ProbeRequest(name=encode_text(question.name, "name"), layer=encode_optional_text(question.layer, "layer"))


def decode_probe(message: pb.ProbeRequest) -> ProbeLookup:
    return ProbeLookup(message.name, message.layer if message.HasField("layer") else None)


def encode_probe_answer(probe: Probe) -> pb.ProbeResponse:
    return pb.ProbeResponse(
        name=probe.name,
        labels=None if probe.labels is None else encode_numbers(probe.labels.astype(np.int64, copy=False)),
        outputs=None if probe.outputs is None else encode_matrix(probe.outputs.astype(np.float32, copy=False)),
        queries=None if probe.queries is None else encode_matrix(probe.queries.astype(np.float32, copy=False)),
        scan=encode_scan(probe.scan),
    )


def decode_probe_answer(message: pb.ProbeResponse) -> Probe:
    probe = Probe(
        name=message.name,
        labels=decode_numbers(message.labels, np.int64, "labels") if message.HasField("labels") else None,
        outputs=decode_matrix(message.outputs, np.float32, "outputs") if message.HasField("outputs") else None,
        queries=decode_matrix(message.queries, np.float32, "queries") if message.HasField("queries") else None,
        scan=decode_scan(message.scan),
    )
    lengths = {len(part) for part in (probe.labels, probe.outputs) if part is not None}
    queries = set() if probe.queries is None else {len(probe.queries)}
    if len(lengths) > 1 or not all(_is_multiple(of_layer, own) for of_layer in queries for own in lengths):
        parts = " and ".join(map(str, sorted(lengths | queries)))
        raise BadInput(f"probe {probe.name!r} has parts of {parts} rows.")
    return probe


def _is_multiple(queries: int, examples: int) -> bool:
    """Whether each example may have as many queries as any other: one, or one for each of its tokens or places."""
    return queries == 0 if examples == 0 else queries > 0 and queries % examples == 0


def encode_certificates(certificates: Certificates) -> pb.VerifyResponse:
    return pb.VerifyResponse(
        certificates=[
            pb.Certificate(
                layer=layer,
                relative_error=certificate.relative_error,
                exact=certificate.exact,
                reason=certificate.reason,
                grade=encode_grade(certificate.grade),
                rounding_share=certificate.rounding_share,
            )
            for layer, certificate in certificates.items()
        ],
        scan=encode_scan(certificates.scan),
    )


def decode_certificates(message: pb.VerifyResponse) -> Certificates:
    found = {
        certificate.layer: Certificate(
            relative_error=certificate.relative_error if certificate.HasField("relative_error") else None,
            grade=decode_grade(certificate.grade),
            rounding_share=certificate.rounding_share,
        )
        for certificate in message.certificates
    }
    return Certificates(found, decode_scan(message.scan))

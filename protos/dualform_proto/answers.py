"""Answers <-> response messages. Shapes: n queries, G groups. Decoding checks every length and raises BadInput."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dualform.answers import Certificate, Columns, GroupSums, Hits, Probe
from dualform.errors import BadInput
from dualform_proto.columns import decode_columns, decode_groups, encode_columns, encode_groups
from dualform_proto.grade import decode_grade, encode_grade
from dualform_proto.matrix import decode_matrix, decode_numbers, encode_matrix, encode_numbers
from dualform_proto.scan import decode_scan, encode_scan
from dualform_proto.v1 import dualform_pb2 as pb


def encode_hits(hits: Hits) -> pb.TopKResponse:
    return pb.TopKResponse(
        ids=encode_numbers(hits.ids.astype(np.int64, copy=False)),
        scores=encode_numbers(hits.flat_scores.astype(np.float32, copy=False)),
        counts=encode_matrix(hits.counts.astype(np.int64, copy=False)),
        groups=None if hits.groups is None else encode_groups(hits.by, hits.groups),
        scan=encode_scan(hits.scan),
        space=hits.space,
    )


def decode_hits(message: pb.TopKResponse) -> Hits:
    counts = decode_matrix(message.counts, np.int64, "counts")
    by, groups = decode_groups(message.groups) if message.HasField("groups") else ((), None)
    width = max(len(groups), 1) if groups is not None else 1
    if counts.shape[1] != width or (counts < 0).any():
        raise BadInput(f"counts are int64{list(counts.shape)} where each query has {width} of them.", field="counts")
    hits = int(counts.sum())
    return Hits(
        space=message.space,
        ids=decode_numbers(message.ids, np.int64, "ids", hits),
        flat_scores=decode_numbers(message.scores, np.float32, "scores", hits),
        counts=counts,
        groups=groups,
        by=by,
        scan=decode_scan(message.scan),
    )


def encode_group_sums(sums: GroupSums) -> pb.GroupSumResponse:
    return pb.GroupSumResponse(
        groups=encode_groups(sums.by, sums.groups),
        sums=encode_matrix(sums.sums.astype(np.float64, copy=False)),
        counts=encode_numbers(sums.counts.astype(np.int64, copy=False)),
        scan=encode_scan(sums.scan),
        space=sums.space,
    )


def decode_group_sums(message: pb.GroupSumResponse) -> GroupSums:
    by, groups = decode_groups(message.groups)
    sums = decode_matrix(message.sums, np.float64, "sums")
    if sums.shape[1] != len(groups):
        raise BadInput(f"sums are float64{list(sums.shape)} where there are {len(groups)} groups.", field="sums")
    counts = decode_numbers(message.counts, np.int64, "counts", len(groups))
    return GroupSums(groups, sums, counts, by, decode_scan(message.scan), message.space)


def encode_slots_answer(columns: Columns) -> pb.SlotsResponse:
    return pb.SlotsResponse(slots=encode_columns(columns))


def decode_slots_answer(message: pb.SlotsResponse) -> Columns:
    return decode_columns(message.slots)


def encode_sql_answer(columns: Columns) -> pb.SqlResponse:
    return pb.SqlResponse(rows=encode_columns(columns))


def decode_sql_answer(message: pb.SqlResponse) -> Columns:
    return decode_columns(message.rows)


def encode_probe_answer(probe: Probe) -> pb.ProbeResponse:
    return pb.ProbeResponse(
        name=probe.name,
        labels=None if probe.labels is None else encode_numbers(probe.labels.astype(np.int64, copy=False)),
        outputs=None if probe.outputs is None else encode_matrix(probe.outputs.astype(np.float32, copy=False)),
        queries=None if probe.queries is None else encode_matrix(probe.queries.astype(np.float32, copy=False)),
    )


def decode_probe_answer(message: pb.ProbeResponse) -> Probe:
    probe = Probe(
        name=message.name,
        labels=decode_numbers(message.labels, np.int64, "labels") if message.HasField("labels") else None,
        outputs=decode_matrix(message.outputs, np.float32, "outputs") if message.HasField("outputs") else None,
        queries=decode_matrix(message.queries, np.float32, "queries") if message.HasField("queries") else None,
    )
    lengths = {len(part) for part in (probe.labels, probe.outputs, probe.queries) if part is not None}
    if len(lengths) > 1:
        raise BadInput(f"probe {probe.name!r} has parts of {' and '.join(map(str, sorted(lengths)))} rows.")
    return probe


def encode_certificates(certificates: Mapping[str, Certificate]) -> pb.VerifyResponse:
    return pb.VerifyResponse(
        certificates=[
            pb.Certificate(
                layer=layer,
                relative_error=certificate.relative_error,
                exact=certificate.exact,
                reason=certificate.reason,
                grade=encode_grade(certificate.grade),
            )
            for layer, certificate in certificates.items()
        ]
    )


def decode_certificates(message: pb.VerifyResponse) -> dict[str, Certificate]:
    return {
        certificate.layer: Certificate(
            relative_error=certificate.relative_error if certificate.HasField("relative_error") else None,
            grade=decode_grade(certificate.grade),
        )
        for certificate in message.certificates
    }

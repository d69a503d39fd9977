"""The question for placebos and its answer <-> messages. Shapes: n queries, S sets that are left out in turn."""

from __future__ import annotations

import numpy as np

from dualform.answers import Placebos
from dualform.errors import BadInput
from dualform.questions import Placebo
from dualform_proto.arguments import encode_int64, encode_optional_int64, encode_optional_text
from dualform_proto.filters import decode_filter, encode_filter
from dualform_proto.matrix import decode_matrix, decode_numbers, encode_matrix, encode_numbers
from dualform_proto.queries import decode_queries, encode_queries
from dualform_proto.scan import decode_scan, encode_scan
from dualform_proto.status import decode_status, encode_status
from dualform_proto.v1 import dualform_pb2 as pb


def encode_placebo(question: Placebo) -> pb.PlaceboRequest:
    return pb.PlaceboRequest(
        layer=encode_optional_text(question.layer, "layer"),
        queries=encode_queries(question.queries),
        where=encode_filter(question.where),
        n=encode_int64(question.n, "n"),
        at_step=encode_optional_int64(question.at_step, "at_step"),
        allow_inexact=question.allow_inexact,
    )


def decode_placebo(message: pb.PlaceboRequest) -> Placebo:
    return Placebo(
        layer=message.layer if message.HasField("layer") else None,
        queries=decode_queries(message.queries),
        where=decode_filter(message),
        n=message.n,
        at_step=message.at_step if message.HasField("at_step") else None,
        allow_inexact=message.allow_inexact,
    )


def encode_placebos(answer: Placebos) -> pb.PlaceboResponse:
    return pb.PlaceboResponse(
        classes=encode_matrix(np.stack([answer.labels, answer.predicted, answer.second], axis=1)),
        margin=encode_numbers(answer.margin),
        changes=encode_matrix(answer.changes),
        predicted=encode_matrix(answer.outcomes),
        random=answer.random,
        siblings=answer.siblings,
        without_siblings=answer.without_siblings,
        removed=answer.removed,
        total=answer.total,
        unit=answer.unit,
        cancellation=answer.cancellation,
        status=encode_status(answer.status),
        scan=encode_scan(answer.scan),
        space=answer.space,
    )


def decode_placebos(message: pb.PlaceboResponse) -> Placebos:
    """Raises BadInput for lengths that do not fit."""
    classes = decode_matrix(message.classes, np.int64, "classes")
    changes = decode_matrix(message.changes, np.float64, "changes")
    outcomes = decode_matrix(message.predicted, np.int64, "predicted")
    sets = (len(classes), 1 + message.random + len(message.siblings))
    if classes.shape[1] != 3 or message.random < 0 or changes.shape != sets or outcomes.shape != sets:
        raise BadInput(
            f"classes, changes and predicted are {list(classes.shape)}, {list(changes.shape)} and "
            f"{list(outcomes.shape)} of {message.random} random sets and {len(message.siblings)} siblings.",
            field="changes",
        )
    return Placebos(
        classes[:, 0],
        classes[:, 1],
        classes[:, 2],
        decode_numbers(message.margin, np.float64, "margin", len(classes)),
        changes,
        outcomes,
        message.random,
        tuple(message.siblings),
        message.without_siblings,
        message.removed,
        message.total,
        message.unit,
        message.cancellation if message.HasField("cancellation") else None,
        decode_status(message.status),
        message.space,
        decode_scan(message.scan),
    )

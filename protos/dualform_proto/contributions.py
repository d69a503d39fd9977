"""Questions about what groups brought to outputs, and their answers <-> messages. Shapes: n queries, G groups, d_out.

Decoding builds the value, which checks itself, and checks every length. Raises BadInput.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Contributions
from dualform.errors import BadInput
from dualform.questions import Contribution
from dualform_proto.arguments import encode_optional_int64, encode_optional_text, encode_text
from dualform_proto.columns import decode_groups, encode_groups
from dualform_proto.filters import decode_filter, encode_filter
from dualform_proto.matrix import decode_matrix, decode_numbers, encode_matrix, encode_numbers
from dualform_proto.queries import decode_queries, encode_queries
from dualform_proto.scan import decode_scan, encode_scan
from dualform_proto.status import decode_status, encode_status
from dualform_proto.v1 import dualform_pb2 as pb


def encode_contribution(question: Contribution) -> pb.ContributionsRequest:
    return pb.ContributionsRequest(
        layer=encode_optional_text(question.layer, "layer"),
        queries=encode_queries(question.queries),
        by=[encode_text(name, "by") for name in question.by],
        where=encode_filter(question.where),
        at_step=encode_optional_int64(question.at_step, "at_step"),
        allow_inexact=question.allow_inexact,
    )


def decode_contribution(message: pb.ContributionsRequest) -> Contribution:
    return Contribution(
        layer=message.layer if message.HasField("layer") else None,
        queries=decode_queries(message.queries),
        by=tuple(message.by),
        where=decode_filter(message),
        at_step=message.at_step if message.HasField("at_step") else None,
        allow_inexact=message.allow_inexact,
    )


def encode_contributions(answer: Contributions) -> pb.ContributionsResponse:
    queries, groups, width = answer.sums.shape
    return pb.ContributionsResponse(
        groups=encode_groups(answer.by, answer.groups),
        counts=encode_numbers(answer.counts.astype(np.int64, copy=False)),
        sums=encode_matrix(answer.sums.reshape(queries * groups, width)),
        initial=encode_matrix(answer.initial),
        bias=encode_numbers(answer.bias),
        unrecorded_change=encode_matrix(answer.unrecorded_change),
        residual=encode_matrix(answer.residual),
        unexplained=None if answer.unexplained is None else encode_matrix(answer.unexplained),
        status=encode_status(answer.status),
        scan=encode_scan(answer.scan),
        space=answer.space,
    )


def decode_contributions(message: pb.ContributionsResponse) -> Contributions:
    by, groups = decode_groups(message.groups)
    initial = decode_matrix(message.initial, np.float64, "initial")
    queries, width = initial.shape

    def matrix(own: pb.Matrix, name: str, rows: int) -> NDArray[np.float64]:
        found = decode_matrix(own, np.float64, name)
        if found.shape != (rows, width):
            raise BadInput(f"{name} are float64{list(found.shape)} in place of [{rows}, {width}].", field=name)
        return found

    return Contributions(
        groups=groups,
        sums=matrix(message.sums, "sums", queries * len(groups)).reshape(queries, len(groups), width),
        counts=decode_numbers(message.counts, np.int64, "counts", len(groups)),
        initial=initial,
        bias=decode_numbers(message.bias, np.float64, "bias", width),
        unrecorded_change=matrix(message.unrecorded_change, "unrecorded_change", queries),
        residual=matrix(message.residual, "residual", queries),
        unexplained=matrix(message.unexplained, "unexplained", queries) if message.HasField("unexplained") else None,
        by=by,
        space=message.space,
        status=decode_status(message.status),
        scan=decode_scan(message.scan),
    )

"""Questions about how scores are spread, and their answers <-> messages. Shapes: n queries, r ranks.

Decoding builds the value, which checks itself, and checks every length. Raises BadInput.
"""

from __future__ import annotations

import numpy as np

from dualform.answers import Distributions
from dualform.errors import BadInput
from dualform.questions import Distribution
from dualform.questions.scores import POINTS
from dualform_proto.arguments import encode_int64, encode_optional_text, encode_text
from dualform_proto.filters import decode_filter, encode_filter
from dualform_proto.matrix import decode_matrix, decode_numbers, encode_matrix, encode_numbers
from dualform_proto.queries import decode_queries, encode_queries
from dualform_proto.scan import decode_scan, encode_scan
from dualform_proto.scores import SCORES, decode_score, decode_target, encode_target
from dualform_proto.status import decode_status, encode_status
from dualform_proto.v1 import dualform_pb2 as pb


def encode_distribution(question: Distribution) -> pb.DistributionRequest:
    return pb.DistributionRequest(
        layer=encode_optional_text(question.layer, "layer"),
        queries=encode_queries(question.queries),
        where=encode_filter(question.where),
        score=SCORES.get(question.score, pb.SCORE_NAMED),
        score_name="" if question.score in SCORES else encode_text(question.score, "score"),
        target=encode_target(question.target),
        points=encode_int64(question.points, "points"),
    )


def decode_distribution(message: pb.DistributionRequest) -> Distribution:
    return Distribution(
        layer=message.layer if message.HasField("layer") else None,
        queries=decode_queries(message.queries),
        where=decode_filter(message),
        score=decode_score(message),
        target=decode_target(message),
        points=message.points if message.HasField("points") else POINTS,
    )


def encode_distributions(answer: Distributions) -> pb.DistributionResponse:
    return pb.DistributionResponse(
        ranks=encode_numbers(answer.ranks.astype(np.int64, copy=False)),
        scores=encode_matrix(answer.scores.astype(np.float32, copy=False)),
        cumulative=encode_matrix(answer.cumulative),
        totals=encode_numbers(answer.totals),
        effective_slots=encode_numbers(answer.effective_slots),
        count=answer.count,
        scan=encode_scan(answer.scan),
        space=answer.space,
        status=None if answer.status is None else encode_status(answer.status),
    )


def decode_distributions(message: pb.DistributionResponse) -> Distributions:
    scores = decode_matrix(message.scores, np.float32, "scores")
    cumulative = decode_matrix(message.cumulative, np.float64, "cumulative")
    if cumulative.shape != scores.shape:
        raise BadInput(
            f"cumulative is float64{list(cumulative.shape)} where scores are float32{list(scores.shape)}.",
            field="cumulative",
        )
    queries, ranks = scores.shape
    return Distributions(
        ranks=decode_numbers(message.ranks, np.int64, "ranks", ranks),
        scores=scores,
        cumulative=cumulative,
        totals=decode_numbers(message.totals, np.float64, "totals", queries),
        effective_slots=decode_numbers(message.effective_slots, np.float64, "effective_slots", queries),
        count=message.count,
        scan=decode_scan(message.scan),
        space=message.space,
        status=decode_status(message.status) if message.HasField("status") else None,
    )

"""Questions about dot products of gradients, and their answers, <-> messages. Shapes: r rows.

Decoding builds the value, which checks itself. Raises BadInput.
"""

from __future__ import annotations

import numpy as np

from dualform.answers import GroupSums, Hits
from dualform.errors import BadInput
from dualform.questions import ExampleGradients, GradientSum, GradientTopK, LayerGradients, QuerySetExamples
from dualform_proto.arguments import encode_int64, encode_optional_int64, encode_text
from dualform_proto.filters import decode_filter, encode_filter
from dualform_proto.matrix import decode_numbers, encode_matrix, encode_numbers
from dualform_proto.queries import decode_query_set_examples, decode_rows, encode_query_set_examples
from dualform_proto.scores import decode_group_sums, decode_hits, encode_group_sums, encode_hits
from dualform_proto.v1 import dualform_pb2 as pb


def encode_gradient_top_k(question: GradientTopK) -> pb.GradientTopKRequest:
    return pb.GradientTopKRequest(
        layers=[encode_text(name, "layer") for name in question.layers],
        examples=_encode_examples(question.examples),
        k=encode_int64(question.k, "k"),
        where=encode_filter(question.where),
        distinct=[encode_text(name, "distinct") for name in question.distinct],
    )


def decode_gradient_top_k(message: pb.GradientTopKRequest) -> GradientTopK:
    where = decode_filter(message)
    return GradientTopK(
        tuple(message.layers), _decode_examples(message.examples), message.k, where, tuple(message.distinct)
    )


def encode_gradient_sum(question: GradientSum) -> pb.GradientSumRequest:
    return pb.GradientSumRequest(
        layers=[encode_text(name, "layer") for name in question.layers],
        examples=_encode_examples(question.examples),
        by=[encode_text(name, "by") for name in question.by],
        where=encode_filter(question.where),
        k=encode_optional_int64(question.k, "k"),
    )


def decode_gradient_sum(message: pb.GradientSumRequest) -> GradientSum:
    return GradientSum(
        tuple(message.layers),
        _decode_examples(message.examples),
        tuple(message.by),
        decode_filter(message),
        message.k if message.HasField("k") else None,
    )


def encode_gradient_hits(hits: Hits) -> pb.GradientTopKResponse:
    return pb.GradientTopKResponse(hits=encode_hits(hits))


def decode_gradient_hits(message: pb.GradientTopKResponse) -> Hits:
    return decode_hits(message.hits)


def encode_gradient_sums(sums: GroupSums) -> pb.GradientSumResponse:
    return pb.GradientSumResponse(sums=encode_group_sums(sums))


def decode_gradient_sums(message: pb.GradientSumResponse) -> GroupSums:
    return decode_group_sums(message.sums)


def _encode_examples(examples: ExampleGradients | QuerySetExamples) -> pb.Examples:
    if isinstance(examples, QuerySetExamples):
        return pb.Examples(query_set=encode_query_set_examples(examples))
    layers = [
        pb.LayerGradients(
            layer=encode_text(name, "layer"),
            keys=encode_matrix(own.keys),
            errors=encode_matrix(own.errors),
            examples=encode_numbers(own.examples),
        )
        for name, own in examples.layers.items()
    ]
    return pb.Examples(gradients=pb.ExampleGradients(count=encode_int64(examples.count, "queries"), layers=layers))


def _decode_examples(message: pb.Examples) -> ExampleGradients | QuerySetExamples:
    kind = message.WhichOneof("examples")
    if kind == "query_set":
        return decode_query_set_examples(message.query_set)
    if kind != "gradients":
        raise BadInput(
            "the question holds no examples.", hint="Give gradients, or a query set's rows.", field="queries"
        )
    found = {}
    for said in message.gradients.layers:
        if said.layer in found:
            raise BadInput(f"the examples have gradients in layer {said.layer!r} twice.", field="queries")
        keys, errors = decode_rows(said.keys, "keys"), decode_rows(said.errors, "errors")
        examples = decode_numbers(said.examples, np.int64, "examples", len(keys))
        found[said.layer] = LayerGradients(keys, errors, examples)
    return ExampleGradients(message.gradients.count, found)

"""Queries <-> `Queries` messages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.questions import Queries, QuerySetExamples, SlotKeys, Vectors
from dualform_proto.arguments import encode_int64, encode_text
from dualform_proto.matrix import decode_matrix, encode_matrix
from dualform_proto.v1 import dualform_pb2 as pb


def encode_queries(queries: Queries) -> pb.Queries:
    if isinstance(queries, Vectors):
        return pb.Queries(vectors=encode_matrix(queries.rows))
    if isinstance(queries, SlotKeys):
        return pb.Queries(slots=pb.SlotKeys(slots=[encode_int64(slot, "queries") for slot in queries.slots]))
    return pb.Queries(query_set=encode_query_set_examples(queries))


def decode_queries(message: pb.Queries) -> Queries:
    kind = message.WhichOneof("queries")
    if kind == "vectors":
        return Vectors(decode_rows(message.vectors, "queries"))
    if kind == "slots":
        return SlotKeys(tuple(message.slots.slots))
    if kind == "query_set":
        return decode_query_set_examples(message.query_set)
    raise BadInput("the question holds no queries.", hint="Give vectors, query set rows or slots.", field="queries")


def decode_rows(message: pb.Matrix, what: str) -> NDArray[np.float32]:
    """float32[n, d]. Raises BadInput where d is 0: so many rows as nobody could hold take no bytes then."""
    if message.cols < 1:
        raise BadInput(f"{what} are 0 numbers wide.", field=what)
    return decode_matrix(message, np.float32, what)


def encode_query_set_examples(queries: QuerySetExamples) -> pb.QuerySetExamples:
    message = pb.QuerySetExamples(
        query_set=encode_text(queries.query_set, "queries"),
        tokens=[encode_int64(token, "queries") for token in queries.tokens],
    )
    if queries.examples is not None:
        numbers = [encode_int64(example, "queries") for example in queries.examples]
        message.examples.CopyFrom(pb.ExampleNumbers(numbers=numbers))
    return message


def decode_query_set_examples(message: pb.QuerySetExamples) -> QuerySetExamples:
    examples = tuple(message.examples.numbers) if message.HasField("examples") else None
    return QuerySetExamples(message.query_set, examples, tuple(message.tokens))

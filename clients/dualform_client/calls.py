"""Each call as a value: which method, the request message, and how its response becomes an answer. Does no I/O.

`Client` and `AsyncClient` send these; all that differs between the two is the await.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from dualform.answers import Certificate, Columns, GroupSums, Hits, MemoryInfo, Probe, Scan
from dualform.questions import GroupSum, Output, QueriesLike, Score, TopK, as_by, as_queries
from dualform_proto import answers, info as info_messages, questions
from dualform_proto.v1 import dualform_pb2 as pb

A = TypeVar("A")


@dataclass(frozen=True)
class Call(Generic[A]):
    method: str
    """Name of the call in dualform.v1.Memory."""
    request: Message
    decode: Callable[[Any], A]
    """From the response message; raises BadInput where its lengths do not fit."""


def info() -> Call[MemoryInfo]:
    return Call("Info", pb.InfoRequest(), info_messages.decode_info)


@overload
def ask(question: TopK) -> Call[Hits]: ...
@overload
def ask(question: GroupSum) -> Call[GroupSums]: ...
@overload
def ask(question: Output) -> Call[tuple[NDArray[np.float32], Scan]]: ...
def ask(question: TopK | GroupSum | Output) -> Call[Any]:
    if isinstance(question, TopK):
        return Call("TopK", questions.encode_topk(question), answers.decode_hits)
    if isinstance(question, GroupSum):
        return Call("GroupSum", questions.encode_group_sum(question), answers.decode_group_sums)
    return Call("Output", questions.encode_output(question), answers.decode_outputs)


def topk(
    layer: str, queries: QueriesLike, k: int, where: str | None, by: str | Sequence[str] | None, score: Score
) -> Call[Hits]:
    return ask(TopK(layer, as_queries(queries), k, where, as_by(by), score))


def group_sum(
    layer: str, queries: QueriesLike, by: str | Sequence[str], where: str | None, score: Score
) -> Call[GroupSums]:
    return ask(GroupSum(layer, as_queries(queries), as_by(by), where, score))


def output(layer: str, queries: QueriesLike, where: str | None, at_step: int | None) -> Call[NDArray[np.float32]]:
    call = ask(Output(layer, as_queries(queries), where, at_step))
    return Call(call.method, call.request, lambda response: call.decode(response)[0])


def slots(ids: Sequence[int] | NDArray[np.int64], space: str | None) -> Call[Columns]:
    return Call("Slots", questions.encode_slots(ids, space), answers.decode_slots_answer)


def sql(statement: str) -> Call[Columns]:
    return Call("Sql", questions.encode_sql(statement), answers.decode_sql_answer)


def probe(name: str, layer: str | None) -> Call[Probe]:
    return Call("Probe", questions.encode_probe(name, layer), answers.decode_probe_answer)


def verify() -> Call[dict[str, Certificate]]:
    return Call("Verify", pb.VerifyRequest(), answers.decode_certificates)

"""The calls of dualform.v1 over the engine: each decodes its question, asks, and encodes the answer."""
# ruff: noqa: N802  (the methods are named as the calls of dualform.proto)

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import grpc
from google.protobuf.message import Message

from dualform.answers import MemoryInfo
from dualform.questions import Question
from dualform_proto.calls import CALLS
from dualform_proto.v1 import dualform_pb2 as pb, dualform_pb2_grpc
from dualform_service.batching import Batches
from dualform_service.calls import Calls
from dualform_service.limits import Deadline
from dualform_service.sharing import Shareable, kind_of, queries_of

A = TypeVar("A")

SMALL_QUERIES = 16
"""Most queries of a question that waits for others to share a scan."""
SMALL_BYTES = 2**20
"""Largest message of such a question."""

_CALLS = {call.method: call for call in CALLS.values()}


class Engine(Protocol):
    """Whoever answers in this process: `dualform.open` gives one."""

    def ask(self, question: Question[A], cancelled: Callable[[], bool] | None = None) -> A:
        """The answer; raises Cancelled soon after `cancelled` first says True."""

    def info(self) -> MemoryInfo: ...

    def refresh(self) -> bool:
        """Takes the newest snapshot of a training that still runs; True where there was a newer one."""


class MemoryServicer(dualform_pb2_grpc.MemoryServicer):
    def __init__(self, engine: Engine, calls: Calls, batches: Batches) -> None:
        self._engine = engine
        self._calls = calls
        self._batches = batches

    def TopK(self, request: pb.TopKRequest, context: grpc.ServicerContext) -> Any:
        return self._share("TopK", request, context)

    def GroupSum(self, request: pb.GroupSumRequest, context: grpc.ServicerContext) -> Any:
        return self._share("GroupSum", request, context)

    def Output(self, request: pb.OutputRequest, context: grpc.ServicerContext) -> Any:
        return self._share("Output", request, context)

    def Weights(self, request: pb.WeightsRequest, context: grpc.ServicerContext) -> Any:
        return self._ask("Weights", request, context)

    def Cancellation(self, request: pb.CancellationRequest, context: grpc.ServicerContext) -> Any:
        return self._ask("Cancellation", request, context)

    def Slots(self, request: pb.SlotsRequest, context: grpc.ServicerContext) -> Any:
        return self._ask("Slots", request, context)

    def Sql(self, request: pb.SqlRequest, context: grpc.ServicerContext) -> Any:
        return self._ask("Sql", request, context)

    def Probe(self, request: pb.ProbeRequest, context: grpc.ServicerContext) -> Any:
        return self._ask("Probe", request, context)

    def Info(self, request: pb.InfoRequest, context: grpc.ServicerContext) -> Any:
        return self._ask("Info", request, context)

    def Verify(self, request: pb.VerifyRequest, context: grpc.ServicerContext) -> Any:
        return self._ask("Verify", request, context)

    def _ask(self, name: str, request: Message, context: grpc.ServicerContext) -> Any:
        """A question that is answered alone; it is not even decoded before it has a place."""
        call = _CALLS[name]

        def work(deadline: Deadline) -> Message:
            return call.encode_answer(self._engine.ask(call.decode_question(request), deadline.passed))

        return self._calls.answer(name, context, work)

    def _share(self, name: str, request: Message, context: grpc.ServicerContext) -> Any:
        """A question that shares its scan with others of its kind where it is small; else as `_ask`."""
        call = _CALLS[name]
        if request.ByteSize() > SMALL_BYTES:
            return self._ask(name, request, context)

        def work(deadline: Deadline) -> Message:
            question = cast("Shareable", call.decode_question(request))
            kind = kind_of(question)
            if kind is not None and (queries_of(question) or 0) <= SMALL_QUERIES:
                return call.encode_answer(self._batches.ask(question, kind, deadline))
            with self._calls.places.one():
                return call.encode_answer(self._engine.ask(question, deadline.passed))

        return self._calls.answer(name, context, work, small=True)

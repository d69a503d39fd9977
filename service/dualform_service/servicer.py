"""The calls of dualform.v1, each a line or two over the engine: decode the question, ask, encode the answer."""
# ruff: noqa: N802  (the methods are named as the calls of dualform.proto)

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from dualform.answers import Answers, Certificate, Columns
from dualform.questions import GroupSum, Output, TopK
from dualform_proto import answers, info, questions
from dualform_proto.v1 import dualform_pb2 as pb, dualform_pb2_grpc
from dualform_service.batching import Batches
from dualform_service.calls import Calls
from dualform_service.limits import Deadline
from dualform_service.sharing import Question, kind_of, queries_of

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

SMALL_QUERIES = 16
"""Most queries of a question that waits for others to share a scan."""
SMALL_BYTES = 2**20
"""Largest message of such a question."""


class Engine(Answers, Protocol):
    """Whoever answers in this process: `dualform.open` gives one."""

    def ask(self, question: TopK | GroupSum | Output, cancelled: Callable[[], bool] | None = None) -> Any:
        """Hits, GroupSums, or outputs and Scan; raises Cancelled soon after `cancelled` first says True."""

    def sql(self, statement: str, cancelled: Callable[[], bool] | None = None) -> Columns: ...

    def verify(self, cancelled: Callable[[], bool] | None = None) -> Mapping[str, Certificate]: ...

    def refresh(self) -> bool:
        """Takes the newest snapshot of a training that still runs; True where there was a newer one."""


class MemoryServicer(dualform_pb2_grpc.MemoryServicer):
    def __init__(self, engine: Engine, calls: Calls, batches: Batches) -> None:
        self._engine = engine
        self._calls = calls
        self._batches = batches

    def Info(self, request: pb.InfoRequest, context: grpc.ServicerContext) -> pb.InfoResponse:
        return self._calls.answer("Info", context, lambda _: info.encode_info(self._engine.info()))

    def TopK(self, request: pb.TopKRequest, context: grpc.ServicerContext) -> pb.TopKResponse:
        return self._ask("TopK", request, context, questions.decode_topk, answers.encode_hits)

    def GroupSum(self, request: pb.GroupSumRequest, context: grpc.ServicerContext) -> pb.GroupSumResponse:
        return self._ask("GroupSum", request, context, questions.decode_group_sum, answers.encode_group_sums)

    def Output(self, request: pb.OutputRequest, context: grpc.ServicerContext) -> pb.OutputResponse:
        return self._ask(
            "Output", request, context, questions.decode_output, lambda answer: answers.encode_outputs(*answer)
        )

    def _ask(
        self,
        name: str,
        request: Q,
        context: grpc.ServicerContext,
        decode: Callable[[Q], Question],
        encode: Callable[[Any], R],
    ) -> R:
        """Small questions share scans. Others are answered alone, and are not even decoded before they have a place."""

        def alone(question: Question, deadline: Deadline) -> R:
            return encode(self._engine.ask(question, deadline.passed))

        def small(deadline: Deadline) -> R:
            question = decode(request)
            kind = kind_of(question)
            if kind is not None and (queries_of(question) or 0) <= SMALL_QUERIES:
                return encode(self._batches.ask(question, kind, deadline))
            with self._calls.places.one():
                return alone(question, deadline)

        if request.ByteSize() <= SMALL_BYTES:
            return self._calls.answer(name, context, small, small=True)
        return self._calls.answer(name, context, lambda deadline: alone(decode(request), deadline))

    def Slots(self, request: pb.SlotsRequest, context: grpc.ServicerContext) -> pb.SlotsResponse:
        def work(_: Deadline) -> pb.SlotsResponse:
            return answers.encode_slots_answer(self._engine.slots(*questions.decode_slots(request)))

        return self._calls.answer("Slots", context, work)

    def Sql(self, request: pb.SqlRequest, context: grpc.ServicerContext) -> pb.SqlResponse:
        def work(deadline: Deadline) -> pb.SqlResponse:
            return answers.encode_sql_answer(self._engine.sql(request.statement, deadline.passed))

        return self._calls.answer("Sql", context, work)

    def Probe(self, request: pb.ProbeRequest, context: grpc.ServicerContext) -> pb.ProbeResponse:
        def work(_: Deadline) -> pb.ProbeResponse:
            return answers.encode_probe_answer(self._engine.probe(*questions.decode_probe(request)))

        return self._calls.answer("Probe", context, work)

    def Verify(self, request: pb.VerifyRequest, context: grpc.ServicerContext) -> pb.VerifyResponse:
        def work(deadline: Deadline) -> pb.VerifyResponse:
            return answers.encode_certificates(self._engine.verify(deadline.passed))

        return self._calls.answer("Verify", context, work)

"""The calls of dualform.v1, each one line over the engine: decode the question, ask, encode the answer."""
# ruff: noqa: N802  (the methods are named as the calls of dualform.proto)

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import grpc

from dualform.answers import Answers, Certificate, Columns
from dualform.questions import GroupSum, Output, TopK
from dualform_proto import answers, info, questions
from dualform_proto.v1 import dualform_pb2 as pb, dualform_pb2_grpc
from dualform_service.calls import Calls


class Engine(Answers, Protocol):
    """Whoever answers in this process: `dualform.open` gives one."""

    def ask(self, question: TopK | GroupSum | Output, cancelled: Callable[[], bool] | None = None) -> Any:
        """Hits, GroupSums, or outputs and Scan; raises Cancelled soon after `cancelled` first says True."""

    def sql(self, statement: str, cancelled: Callable[[], bool] | None = None) -> Columns: ...

    def verify(self, cancelled: Callable[[], bool] | None = None) -> Mapping[str, Certificate]: ...

    def refresh(self) -> bool:
        """Takes the newest snapshot of a training that still runs; True where there was a newer one."""


class MemoryServicer(dualform_pb2_grpc.MemoryServicer):
    def __init__(self, engine: Engine, calls: Calls) -> None:
        self._engine = engine
        self._calls = calls

    def Info(self, request: pb.InfoRequest, context: grpc.ServicerContext) -> pb.InfoResponse:
        return self._calls.answer("Info", context, lambda _: info.encode_info(self._engine.info()))

    def TopK(self, request: pb.TopKRequest, context: grpc.ServicerContext) -> pb.TopKResponse:
        def work(cancelled: Callable[[], bool]) -> pb.TopKResponse:
            return answers.encode_hits(self._engine.ask(questions.decode_topk(request), cancelled))

        return self._calls.answer("TopK", context, work)

    def GroupSum(self, request: pb.GroupSumRequest, context: grpc.ServicerContext) -> pb.GroupSumResponse:
        def work(cancelled: Callable[[], bool]) -> pb.GroupSumResponse:
            return answers.encode_group_sums(self._engine.ask(questions.decode_group_sum(request), cancelled))

        return self._calls.answer("GroupSum", context, work)

    def Output(self, request: pb.OutputRequest, context: grpc.ServicerContext) -> pb.OutputResponse:
        def work(cancelled: Callable[[], bool]) -> pb.OutputResponse:
            return answers.encode_outputs(*self._engine.ask(questions.decode_output(request), cancelled))

        return self._calls.answer("Output", context, work)

    def Slots(self, request: pb.SlotsRequest, context: grpc.ServicerContext) -> pb.SlotsResponse:
        def work(_: Callable[[], bool]) -> pb.SlotsResponse:
            return answers.encode_slots_answer(self._engine.slots(*questions.decode_slots(request)))

        return self._calls.answer("Slots", context, work)

    def Sql(self, request: pb.SqlRequest, context: grpc.ServicerContext) -> pb.SqlResponse:
        def work(cancelled: Callable[[], bool]) -> pb.SqlResponse:
            return answers.encode_sql_answer(self._engine.sql(request.statement, cancelled))

        return self._calls.answer("Sql", context, work)

    def Probe(self, request: pb.ProbeRequest, context: grpc.ServicerContext) -> pb.ProbeResponse:
        def work(_: Callable[[], bool]) -> pb.ProbeResponse:
            return answers.encode_probe_answer(self._engine.probe(*questions.decode_probe(request)))

        return self._calls.answer("Probe", context, work)

    def Verify(self, request: pb.VerifyRequest, context: grpc.ServicerContext) -> pb.VerifyResponse:
        def work(cancelled: Callable[[], bool]) -> pb.VerifyResponse:
            return answers.encode_certificates(self._engine.verify(cancelled))

        return self._calls.answer("Verify", context, work)

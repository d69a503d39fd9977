"""A memory served elsewhere, asked with plain calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, overload

import grpc
import numpy as np
from numpy.typing import NDArray

from dualform.answers import Certificate, Columns, GroupSums, Hits, MemoryInfo, Probe, Scan
from dualform.questions import GroupSum, Output, QueriesLike, Score, TopK
from dualform_client import calls
from dualform_client.connection import Connection
from dualform_proto.v1.dualform_pb2_grpc import MemoryStub

A = TypeVar("A")


class Client:
    """Satisfies `dualform.Answers`. Connects with the first call; safe to use from several threads."""

    def __init__(
        self,
        address: str,
        *,
        timeout: float | None = 60.0,
        token: str | None = None,
        tls: bool = False,
        authority: str | Path | None = None,
    ) -> None:
        """`timeout` in seconds a call; `authority`: PEM file of the authorities to trust. Raises BadInput."""
        self.connection = Connection(address, timeout, token, tls, authority)
        credentials, options = self.connection.credentials(), self.connection.options()
        self._channel = (
            grpc.insecure_channel(address, options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options)
        )
        self._stub: Any = MemoryStub(self._channel)

    def _send(self, call: calls.Call[A]) -> A:
        self.connection.check_size(call.request)
        send = getattr(self._stub, call.method)
        try:
            response = send(call.request, timeout=self.connection.timeout, metadata=self.connection.metadata())
        except grpc.RpcError as status:
            raise self.connection.error(status) from None
        except ValueError as error:
            raise self.connection.closed() from error
        return call.decode(response)

    def info(self) -> MemoryInfo:
        return self._send(calls.info())

    @overload
    def ask(self, question: TopK) -> Hits: ...
    @overload
    def ask(self, question: GroupSum) -> GroupSums: ...
    @overload
    def ask(self, question: Output) -> tuple[NDArray[np.float32], Scan]: ...
    def ask(self, question: TopK | GroupSum | Output) -> Any:
        """The answer to a question given as a value; an Output also tells what answering took."""
        call: calls.Call[Any] = calls.ask(question)
        return self._send(call)

    def topk(
        self,
        layer: str,
        queries: QueriesLike,
        k: int = 10,
        where: str | None = None,
        by: str | Sequence[str] | None = None,
        score: Score = "signed",
    ) -> Hits:
        return self._send(calls.topk(layer, queries, k, where, by, score))

    def group_sum(
        self,
        layer: str,
        queries: QueriesLike,
        by: str | Sequence[str],
        where: str | None = None,
        score: Score = "signed",
    ) -> GroupSums:
        return self._send(calls.group_sum(layer, queries, by, where, score))

    def output(
        self, layer: str, queries: QueriesLike, where: str | None = None, at_step: int | None = None
    ) -> NDArray[np.float32]:
        return self._send(calls.output(layer, queries, where, at_step))

    def slots(self, ids: Sequence[int] | NDArray[np.int64], space: str | None = None) -> Columns:
        return self._send(calls.slots(ids, space))

    def sql(self, statement: str) -> Columns:
        return self._send(calls.sql(statement))

    def probe(self, name: str, layer: str | None = None) -> Probe:
        return self._send(calls.probe(name, layer))

    def verify(self) -> Mapping[str, Certificate]:
        return self._send(calls.verify())

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

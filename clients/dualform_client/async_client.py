"""A memory served elsewhere, asked with `await`."""

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


class AsyncClient:
    """`Client` with awaitables. Belongs to the event loop of its first call; cancelling one stops the server's work."""

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
        self._credentials = self.connection.credentials()
        self._opened: tuple[grpc.aio.Channel, Any] | None = None

    @property
    def _stub(self) -> Any:
        # A channel belongs to the running event loop, and there may be none yet when the client is made.
        if self._opened is None:
            address, options = self.connection.address, self.connection.options()
            channel = (
                grpc.aio.insecure_channel(address, options)
                if self._credentials is None
                else grpc.aio.secure_channel(address, self._credentials, options)
            )
            self._opened = channel, MemoryStub(channel)
        return self._opened[1]

    async def _send(self, call: calls.Call[A]) -> A:
        self.connection.check_size(call.request)
        send = getattr(self._stub, call.method)
        try:
            response = await send(call.request, timeout=self.connection.timeout, metadata=self.connection.metadata())
        except grpc.aio.AioRpcError as status:
            raise self.connection.error(status) from None
        except grpc.aio.UsageError as error:
            raise self.connection.closed() from error
        return call.decode(response)

    async def info(self) -> MemoryInfo:
        return await self._send(calls.info())

    @overload
    async def ask(self, question: TopK) -> Hits: ...
    @overload
    async def ask(self, question: GroupSum) -> GroupSums: ...
    @overload
    async def ask(self, question: Output) -> tuple[NDArray[np.float32], Scan]: ...
    async def ask(self, question: TopK | GroupSum | Output) -> Any:
        """The answer to a question given as a value; an Output also tells what answering took."""
        call: calls.Call[Any] = calls.ask(question)
        return await self._send(call)

    async def topk(
        self,
        layer: str,
        queries: QueriesLike,
        k: int = 10,
        where: str | None = None,
        by: str | Sequence[str] | None = None,
        score: Score = "signed",
    ) -> Hits:
        return await self._send(calls.topk(layer, queries, k, where, by, score))

    async def group_sum(
        self,
        layer: str,
        queries: QueriesLike,
        by: str | Sequence[str],
        where: str | None = None,
        score: Score = "signed",
    ) -> GroupSums:
        return await self._send(calls.group_sum(layer, queries, by, where, score))

    async def output(
        self, layer: str, queries: QueriesLike, where: str | None = None, at_step: int | None = None
    ) -> NDArray[np.float32]:
        return await self._send(calls.output(layer, queries, where, at_step))

    async def slots(self, ids: Sequence[int] | NDArray[np.int64], space: str | None = None) -> Columns:
        return await self._send(calls.slots(ids, space))

    async def sql(self, statement: str) -> Columns:
        return await self._send(calls.sql(statement))

    async def probe(self, name: str, layer: str | None = None) -> Probe:
        return await self._send(calls.probe(name, layer))

    async def verify(self) -> Mapping[str, Certificate]:
        return await self._send(calls.verify())

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened[0].close()
            self._opened = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

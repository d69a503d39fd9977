"""A memory served elsewhere, asked with plain calls or with `await`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import grpc

from dualform.errors import ServiceError
from dualform.methods import Answers, AsyncAnswers
from dualform.questions import Question
from dualform_client.connection import Connection
from dualform_proto.calls import call_of
from dualform_proto.metadata import new_request_id
from dualform_proto.v1.dualform_pb2_grpc import MemoryStub

A = TypeVar("A")


class _Caller(ABC):
    """What both clients are made of."""

    def __init__(
        self,
        address: str,
        *,
        timeout: float | None = 60.0,
        token: str | None = None,
        tls: bool = False,
        authority: str | Path | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        tls_name: str | None = None,
    ) -> None:
        """Set up a connection to a server.

        - `address`: host:port, or host:port/NAME if the server has several memories.
        - `timeout`: seconds for each call.
        - `token`: the bearer token, if the server requires one.
        - `tls`: connect with TLS.
        - `authority`: a PEM file of the certificate authorities to trust.
        - `certificate`, `key`: PEM files of the client, if the server requires them.
        - `tls_name`: the host name in the server's certificate, if it differs from the address, as through a tunnel.

        Raises BadInput for options that do not fit together.
        """
        self.connection = Connection(address, timeout, token, tls, authority, certificate, key, tls_name)
        self._credentials = self.connection.credentials()
        self._start()

    @abstractmethod
    def _start(self) -> None: ...

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        return self.connection.made_again(type(self))

    def _request(self, question: Question[Any]) -> tuple[str, dict[str, Any], str]:
        """The name of the call, its arguments, and its own name for the server's log."""
        call, request_id = call_of(question), new_request_id()
        request = call.question.encode(question)
        self.connection.check_size(request)
        metadata = self.connection.metadata(request_id)
        return call.method, {"request": request, "timeout": self.connection.timeout, "metadata": metadata}, request_id


class Client(_Caller, Answers):
    """Queries a memory on a server. It connects with the first call, and several threads may share it."""

    def _start(self) -> None:
        self._channel = self.connection.channel(grpc, self._credentials)
        self._stub: Any = MemoryStub(self._channel)

    def ask(self, question: Question[A]) -> A:
        """The result of a query given as a value."""
        method, arguments, request_id = self._request(question)
        try:
            response = getattr(self._stub, method)(**arguments)
        except grpc.RpcError as status:
            raise self.connection.error(status, request_id) from None
        except ValueError as error:
            raise self.connection.closed() from error
        return cast("A", call_of(question).answer(question, response))

    def close(self) -> None:
        self._channel.close()


class AsyncClient(_Caller, AsyncAnswers):
    """`Client` for asyncio: each method is awaited.

    It belongs to the event loop of its first call until the loop or the client is closed; then it connects again.
    Cancelling a call stops the work on the server.
    """

    def _start(self) -> None:
        self._opened: tuple[asyncio.AbstractEventLoop, grpc.aio.Channel, Any] | None = None

    @property
    def _stub(self) -> Any:
        # A channel belongs to the running event loop, and there may be none yet when the client is made.
        running = asyncio.get_running_loop()
        if self._opened is not None and self._opened[0] is not running:
            if not self._opened[0].is_closed():
                raise ServiceError(
                    f"The client for {self.connection.address} belongs to another event loop.",
                    hint="Make an AsyncClient for each event loop, or close this one in its own.",
                )
            self._opened = None
        if self._opened is None:
            channel = self.connection.channel(grpc.aio, self._credentials)
            self._opened = running, channel, MemoryStub(channel)
        return self._opened[2]

    async def ask(self, question: Question[A]) -> A:
        """The result of a query given as a value."""
        method, arguments, request_id = self._request(question)
        try:
            response = await getattr(self._stub, method)(**arguments)
        except grpc.aio.AioRpcError as status:
            raise self.connection.error(status, request_id) from None
        except grpc.aio.UsageError as error:
            raise self.connection.closed() from error
        return cast("A", call_of(question).answer(question, response))

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None and not opened[0].is_closed():
            await opened[1].close()

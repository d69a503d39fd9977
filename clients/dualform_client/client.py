"""A memory served elsewhere: how it is reached safely, asked with plain calls or with `await`, and whether it answers.

The package that defines the health check belongs to the server's extra. Its request is one text and its answer one
number, and so are two messages that protobuf has.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import grpc
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from dualform.errors import BadInput, DualformError, NotFound, ServiceError
from dualform.methods import Answers, AsyncAnswers
from dualform.questions import Question
from dualform_proto.address import is_served, parse_address, split_target
from dualform_proto.calls import MEMORY, REQUEST_ID, call_of, encode_memory, new_request_id, request_id_of
from dualform_proto.errors import METADATA_BYTES, from_status
from dualform_proto.v1.dualform_pb2_grpc import MemoryStub

MESSAGE_BYTES = 64 * 2**20
CONNECT_SECONDS = 5.0
_CHECK = "/grpc.health.v1.Health/Check"
_SERVICE = "dualform.v1.Memory"
_SERVING = 1
"""In its answer."""


@dataclass(frozen=True)
class Connection:
    target: str
    """host:port, or host:port/NAME for one of several memories."""
    timeout: float | None = 60.0
    """Seconds a call may take; the server stops work at that point too. None: as long as the server allows."""
    token: str | None = field(default=None, repr=False)
    tls: bool = False
    """Whether to speak TLS, trusting the authorities that gRPC trusts."""
    authority: str | Path | None = None
    """PEM file of the authorities to trust in their place; implies `tls`."""
    certificate: str | Path | None = None
    """PEM file of this client's own certificate chain, for a server that asks for one; implies `tls`."""
    key: str | Path | None = None
    """PEM file of its key."""
    tls_name: str | None = None
    """Whose certificate the server must have; None: that of the address. For one that is reached by another address
    than its own, as through a tunnel."""

    def __post_init__(self) -> None:
        # What is no address is named as it was given.
        loopback = parse_address(self.address if is_served(self.target) else self.target).loopback
        if self.timeout is not None and self.timeout <= 0:
            raise BadInput(f"timeout is {self.timeout}.", hint="It is in seconds, above 0.", field="timeout")
        if self.token is not None and not (self.token and self.token.isascii() and self.token.isprintable()):
            raise BadInput("the token is empty or holds characters other than printable ASCII.", field="token")
        if (self.certificate is None) != (self.key is None):
            raise BadInput(
                "A client's certificate goes with its key, and only one was given.",
                hint="Give both: certificate=FILE and key=FILE.",
                field="certificate" if self.certificate is None else "key",
            )
        if self.token is not None and not self.secure and not loopback:
            raise BadInput(
                f"The token would travel to {self.address} for all to read.",
                hint="Connect by TLS: tls=True or authority=FILE.",
                field="tls",
            )

    @property
    def address(self) -> str:
        """host:port."""
        return split_target(self.target)[0]

    @property
    def memory(self) -> str:
        """The name of the memory that is asked; empty for the only one that a server has."""
        return split_target(self.target)[1]

    @property
    def secure(self) -> bool:
        return self.tls or self.authority is not None or self.certificate is not None

    def credentials(self) -> grpc.ChannelCredentials | None:
        """None where TLS is not spoken. Raises BadInput where a file cannot be used."""
        if not self.secure:
            return None
        from dualform_proto.pem import read_authorities, read_pair  # what speaks no TLS does not load ssl

        authorities = None if self.authority is None else read_authorities(self.authority)
        certificate = key = None
        if self.certificate is not None and self.key is not None:
            certificate, key = read_pair(self.certificate, self.key)
        return grpc.ssl_channel_credentials(authorities, key, certificate)

    def options(self) -> list[tuple[str, Any]]:
        """Channel options. The connect timeout bounds how long a host that swallows packets can keep us waiting."""
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", 2 * METADATA_BYTES),
            ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
            # A connection of its own: a server shuts one on which too many wrong tokens came.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if self.tls_name is not None:
            options.append(("grpc.ssl_target_name_override", self.tls_name))
        if parse_address(self.address).loopback:
            # A proxy of the environment stands between machines; asked for this one, it answers about itself.
            options.append(("grpc.enable_http_proxy", 0))
        return options

    def channel(self, transport: Any, credentials: grpc.ChannelCredentials | None) -> Any:
        """`transport`: grpc or grpc.aio."""
        if credentials is None:
            return transport.insecure_channel(self.address, self.options())
        return transport.secure_channel(self.address, credentials, self.options())

    def metadata(self, request_id: str) -> tuple[tuple[str, str], ...]:
        own = [(REQUEST_ID, request_id)]
        if self.memory:
            own.append((MEMORY, encode_memory(self.memory)))
        if self.token is not None:
            own.append(("authorization", f"Bearer {self.token}"))
        return tuple(own)

    def check_size(self, request: Message) -> None:
        """Raises BadInput where the request is larger than a message may be."""
        size = request.ByteSize()
        if size > MESSAGE_BYTES:
            raise BadInput(
                f"The question takes {size / 2**20:.1f} MiB, and a message holds at most "
                f"{MESSAGE_BYTES / 2**20:.1f} MiB.",
                hint="Ask with fewer queries at a time.",
                field="queries",
            )

    def closed(self) -> DualformError:
        return ServiceError(f"The client for {self.address} is closed.", hint="Ask inside its `with`, or make another.")

    def error(self, status: Any, request_id: str = "") -> DualformError:
        """The error that a failed call of either kind of channel stands for; `request_id` as it was sent."""
        metadata: Iterable[tuple[str, str | bytes]] = status.trailing_metadata() or ()
        error = from_status(status.code(), status.details() or "", metadata, self.address)
        error.request_id = request_id_of(metadata) or request_id
        return error


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
        """What a pickle holds, its token included: what makes another one of the same arguments."""
        options = {own.name: getattr(self.connection, own.name) for own in fields(Connection)[1:]}
        return partial(type(self), self.connection.target, **options), ()

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


def is_serving(
    address: str,
    *,
    timeout: float = 5.0,
    authority: str | Path | None = None,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
) -> bool:
    """Whether a server answers, or one of its memories (`host:port/NAME`): False while it drains, and once the folder
    is gone. `timeout` in seconds. Raises Unavailable where nobody answers, NotFound where there is no such memory.
    """
    connection = Connection(address, timeout, authority=authority, certificate=certificate, key=key)
    with connection.channel(grpc, connection.credentials()) as channel:
        try:
            check: Any = channel.unary_unary(_CHECK)
            # No name is the server as a whole.
            service = f"{_SERVICE}/{connection.memory}" if connection.memory else ""
            response: bytes = check(StringValue(value=service).SerializeToString(), timeout=timeout)
        except grpc.RpcError as status:
            error = connection.error(status)
            if isinstance(error, NotFound) and connection.memory:
                error = NotFound(
                    f"The server at {connection.address} has no memory {connection.memory!r}.",
                    hint=f"Ask for the server as a whole: dualform health {connection.address}",
                    field="target",
                )
            raise error from None
    return Int32Value.FromString(response).value == _SERVING


A = TypeVar("A")

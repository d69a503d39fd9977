"""gRPC on an event loop with a thread of its own, for callers that know of neither.

Every call is a stream of raw bytes in both directions, which on the wire is what a call of one message is. So a handler
begins with the headers alone: it decides who may send a message before one is there, how long it may take, and what
becomes of bytes that are none. Below it are the addresses that a server listens at, and their certificates.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio

from dualform.errors import DualformError, ServiceError
from dualform_proto.address import Address
from dualform_proto.calls import REQUEST_ID, new_request_id, request_id_of
from dualform_proto.errors import METADATA_BYTES, to_status
from dualform_proto.pem import read_authorities, read_pair
from dualform_service.settings import ServiceConfig

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Handler: TypeAlias = Callable[[Context], Awaitable[None]]
T = TypeVar("T")

HANDSHAKE_SECONDS, IDLE_SECONDS = 10, 60
"""After which a connection is closed that says nothing sensible, or on which no call is."""
_STREAM_BYTES = 64 << 10
"""What a stream may send that nobody has asked for yet."""


class Transport:
    """A gRPC server. Its handlers run on the loop; everything here is called from other threads."""

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config
        self._server: Any = None
        logging.getLogger("grpc._cython.cygrpc").addFilter(_shows_no_metadata)

    def start(self, credentials: grpc.ServerCredentials | None, services: Mapping[str, Mapping[str, Handler]]) -> int:
        """Listens and answers the methods of these services; returns the port.

        Raises RuntimeError where the address cannot be had.
        """
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._turn, name="dualform-grpc", daemon=True)
        self._thread.start()
        try:
            return self.run(self._started(credentials, services))
        except BaseException:
            self.close()
            raise

    async def _started(
        self, credentials: grpc.ServerCredentials | None, services: Mapping[str, Mapping[str, Handler]]
    ) -> int:
        self._server = grpc.aio.server(options=_options(self._config))
        for name, handlers in services.items():
            methods: dict[str, Any] = {
                method: grpc.stream_stream_rpc_method_handler(_of(own)) for method, own in handlers.items()
            }
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
        address = self._config.address
        if credentials is None:
            port = self._server.add_insecure_port(address)
        else:
            port = self._server.add_secure_port(address, credentials)
        await self._server.start()
        return int(port)

    def stop(self, grace: float, ends: Callable[[], object]) -> None:
        """Takes no new calls, gives running ones `grace` seconds, then ends them, of which `ends` is told just before.
        Returns once all have ended."""
        self.run(self._stopped(grace, ends))

    async def _stopped(self, grace: float, ends: Callable[[], object]) -> None:
        over = asyncio.get_running_loop().call_later(grace, ends)
        try:
            await self._server.stop(grace)
        finally:
            over.cancel()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Has the loop call a function, soon, which must not wait."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def close(self) -> None:
        """Ends the loop. Nothing may be asked of it afterwards."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _turn(self) -> None:
        """The loop's thread, to its end; what still waits there then is cancelled."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def ask(self, function: Callable[[], T]) -> T:
        """What a function returns on the loop."""

        async def called() -> T:
            return function()

        return self.run(called())


async def refuse(context: Context, error: DualformError) -> None:
    """Ends a call with the status of an error."""
    status = to_status(error)
    await context.abort(status.code, status.details, (*context.trailing_metadata(), *status.trailing_metadata))


def _of(handler: Handler) -> Any:
    async def handle(_messages: object, context: Context) -> None:
        # Whatever ends the call brings it along.
        own = request_id_of(context.invocation_metadata() or ()) or new_request_id()
        context.set_trailing_metadata(((REQUEST_ID, own),))
        await handler(context)

    return handle


def _shows_no_metadata(record: logging.LogRecord) -> bool:
    """Metadata that is no UTF-8, tokens among it, is logged by grpcio as it came, with a traceback whenever somebody
    looks at it. The call that brings it is refused for its token, if it needs one.
    """
    return not str(record.msg).startswith("Invalid encoding on ")


def _options(config: ServiceConfig) -> list[tuple[str, Any]]:
    return [
        # Without this, a second server binds a port in use without an error, and callers reach either.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", config.request_bytes),
        # Answers that are too large are refused by name in servicer.py; the transport's own refusal says less.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", 2 * METADATA_BYTES),
        ("grpc.max_concurrent_streams", config.connection_calls),
        ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_SECONDS),
        ("grpc.max_connection_idle_ms", 1000 * IDLE_SECONDS),
        # By itself gRPC takes in megabytes of a stream that nobody reads.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _STREAM_BYTES),
    ]


def check_free(address: Address, option: str = "--address") -> None:
    """Raises ServiceError with the system's reason where the address cannot be listened on. `option` names another."""
    try:
        places = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise cannot_listen(address, f"the host is unknown: {error.strerror}", option) from None
    for family, kind, protocol, _, place in places:
        with socket.socket(family, kind, protocol) as trial:
            # As gRPC does: connections of an earlier server that are still winding down do not hold the port.
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(place)
            except OSError as error:
                # The system's own words, without what some libraries add to them.
                raise cannot_listen(address, os.strerror(error.errno or 0), option) from None


def cannot_listen(address: Address, reason: str, option: str = "--address") -> ServiceError:
    return ServiceError(
        f"Cannot listen on {address}: {reason}.",
        hint=f"Choose another address, for example with {option} 127.0.0.1:50052.",
        field=option[2:],
    )


def server_credentials(config: ServiceConfig) -> grpc.ServerCredentials | None:
    """None where the configuration names no certificate. Raises BadInput where the files cannot be used."""
    if config.certificate is None or config.key is None:
        return None
    certificate, key = read_pair(config.certificate, config.key)
    if config.client_authority is None:
        return grpc.ssl_server_credentials([(key, certificate)])
    authorities = read_authorities(config.client_authority, "client_authority")
    return grpc.ssl_server_credentials([(key, certificate)], authorities, require_client_auth=True)


def web_context(config: ServiceConfig) -> ssl.SSLContext | None:
    """The same for what speaks HTTP."""
    if server_credentials(config) is None or config.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(config.certificate, config.key, password="")
    if config.client_authority is not None:
        context.load_verify_locations(cafile=config.client_authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context

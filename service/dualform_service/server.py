"""A server: starts cleanly or says why not, answers, and drains."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any

import grpc

from dualform_proto.address import Address
from dualform_proto.v1 import dualform_pb2_grpc
from dualform_service.auth import TokenInterceptor
from dualform_service.batching import Batches
from dualform_service.closing import ClosingInterceptor
from dualform_service.config import METADATA_BYTES, ServiceConfig
from dualform_service.engine import Engine
from dualform_service.following import Follower
from dualform_service.health import Health
from dualform_service.listening import cannot_listen, check_free
from dualform_service.metrics import Metrics
from dualform_service.servicer import MemoryServicer
from dualform_service.tls import server_credentials

_log = logging.getLogger("dualform.service")


class Server:
    """Serves one engine, which stays the caller's to close. A context manager: `with Server(engine, "127.0.0.1:0")`."""

    def __init__(self, engine: Engine, config: ServiceConfig | str = "127.0.0.1:0") -> None:
        self.config = ServiceConfig(config) if isinstance(config, str) else config
        self.metrics = Metrics()
        self.address = ""
        """host:port as bound; empty before `start`."""
        self._closing = ClosingInterceptor()
        self._server = _new_server(self.config, self._closing)
        self._health = Health(self._server)
        self._follower = Follower(engine, self.config.follow)
        self.batches = Batches(engine, self.config.max_concurrent)
        servicer: Any = MemoryServicer(engine, self.batches, self.config, self.metrics)
        dualform_pb2_grpc.add_MemoryServicer_to_server(servicer, self._server)

    def start(self) -> int:
        """Listens; returns the port. Raises ServiceError where the address is not to be had, BadInput for bad TLS."""
        port = self._bind()
        self.address = str(Address(self.config.listen.host, port))
        self._server.start()
        self._health.serving()
        self._follower.start()
        return port

    def _bind(self) -> int:
        credentials = server_credentials(self.config)
        check_free(self.config.listen)
        try:
            if credentials is None:
                return self._server.add_insecure_port(self.config.address)
            return self._server.add_secure_port(self.config.address, credentials)
        except RuntimeError as error:
            raise cannot_listen(self.config.listen, "another process took it just now") from error

    def stop(self, grace: float | None = None) -> None:
        """Takes no new questions, gives running ones `grace` seconds, then stops them. Returns when all have ended.

        What comes meanwhile is refused with Unavailable.
        """
        self._health.draining()
        self._follower.stop()
        self._closing.close()
        self._server.stop(self.config.grace if grace is None else grace).wait()
        self.batches.close()
        for line in self.metrics.lines():
            _log.info("%s", line)

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(0.0 if error is not None else None)


def serve(
    path: str | PathLike[str],
    config: ServiceConfig | str = ServiceConfig.address,
    ready: Callable[[str], None] = lambda address: None,
    opening: Callable[[Path], AbstractContextManager[Engine]] | None = None,
) -> None:
    """Serves the memory at `path` until SIGTERM or SIGINT, then drains. `ready` is told the address once bound.

    A second signal ends the process at once, with the exit code 128 and its number.

    `opening` opens the memory: dualform.open where it is None, or with others who answer for its shards (shards/).

    Runs in the main thread. Raises NotAMemory, ServiceError and BadInput before it listens.
    """
    from dualform.query.engine import open_memory

    config = ServiceConfig(config) if isinstance(config, str) else config
    with (opening or open_memory)(Path(path)) as engine:
        server = Server(engine, config)
        with stop_signals() as wait:
            server.start()
            ready(server.address)
            _log.info("%s", engine.answered_by)
            wait()
            _log.info("draining: a second signal ends it at once")
            server.stop()


@contextmanager
def stop_signals() -> Iterator[Callable[[], object]]:
    """What returns once SIGTERM or SIGINT came; a second one ends the process. Leaving puts former handlers back."""
    # A handler may run between any two lines of the thread that waits, where that holds the lock of a threading.Event:
    # setting the event would wait for it for ever. A SimpleQueue may be put to from there.
    stopped: SimpleQueue[int] = SimpleQueue()
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    came: list[int] = []

    def stop(number: int, _: object) -> None:
        if came:
            name = signal.Signals(number).name
            os.write(2, f"ended at once by a second signal, {name}: what was being answered is cut off\n".encode())
            os._exit(128 + number)
        came.append(number)
        stopped.put(number)

    try:
        for number in former:
            signal.signal(number, stop)
        yield stopped.get
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _new_server(config: ServiceConfig, closing: ClosingInterceptor) -> grpc.Server:
    interceptors: list[grpc.ServerInterceptor] = [closing]
    if config.token is not None:
        interceptors.append(TokenInterceptor(config.token))
    options: list[tuple[str, Any]] = [
        # Without this, a second server binds a port in use without an error, and callers reach either.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", config.message_bytes),
        # Answers that are too large are refused by name in servicer.py; the transport's own refusal says less.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", 2 * METADATA_BYTES),
    ]
    return grpc.server(
        ThreadPoolExecutor(config.workers, thread_name_prefix="dualform"),
        interceptors=interceptors,
        options=options,
        # An outer bound for floods: beyond it calls are refused before they take a thread or memory.
        maximum_concurrent_rpcs=64 + 8 * config.max_concurrent + config.max_small,
    )

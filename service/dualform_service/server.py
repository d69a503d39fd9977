"""A server: starts cleanly or says why not, answers, drains, and tells a supervisor such as systemd of it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType

from prometheus_client import ProcessCollector

from dualform.errors import DualformError
from dualform.store.files.startup import bound_arenas, free_pages_returned
from dualform_proto.address import Address, parse_address
from dualform_service.admission import Closing, Gate, Shutter, raise_limit
from dualform_service.auth import METRICS
from dualform_service.call_record import Exporter, JsonLog, Observer
from dualform_service.handlers import CallHandlers
from dualform_service.memories import Follower, Memories, named
from dualform_service.metrics import CountedEngine, Engine, Metrics, MetricsPort, ServerSeries
from dualform_service.servicer import MemoryServicer, Resources
from dualform_service.settings import ServiceConfig
from dualform_service.standard_services import SERVICE, StandardServices
from dualform_service.transport import Transport, cannot_listen, check_free, server_credentials, web_context


class Supervisor:
    """Whoever started the process, where that wants to know."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._place = environment.get("NOTIFY_SOCKET", "")
        self._seconds = _watched(environment) if self._place else None
        self._draining, self._closed = False, threading.Event()

    def ready(self, soon: Callable[[Callable[[], object]], object]) -> None:
        """The server takes questions. `soon` has its event loop call something: where the loop hangs, nothing more is
        said, and a supervisor that watches starts the server anew.
        """
        self._tell("READY=1")
        if self._seconds is not None:
            threading.Thread(target=self._watch, args=(self._seconds / 2, soon), daemon=True).start()

    def stopping(self) -> None:
        """The server drains, in a time that has a bound of its own; its loop ends before it does."""
        self._draining = True
        self._tell("STOPPING=1")

    def close(self) -> None:
        """Nothing more is said."""
        self._closed.set()

    def _watch(self, seconds: float, soon: Callable[[Callable[[], object]], object]) -> None:
        while not self._closed.wait(seconds):
            if self._draining:
                self._alive()
            else:
                with suppress(RuntimeError):  # the loop has ended just now
                    soon(self._alive)

    def _alive(self) -> None:
        self._tell("WATCHDOG=1")

    def _tell(self, said: str) -> None:
        if not self._place:
            return
        # A name that begins with @ is one of the abstract namespace.
        place = "\0" + self._place[1:] if self._place.startswith("@") else self._place
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying:
            notifying.setblocking(False)
            notifying.sendto(said.encode(), place)


def _watched(environment: Mapping[str, str]) -> float | None:
    """Seconds within which a sign of life is wanted; None for never, and where it is another process's."""
    own = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
    microseconds = environment.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if own and microseconds.isdecimal() and int(microseconds) else None


LAST_SECONDS = 3.0
"""That questions get to stop once their grace is over, before `serve` ends the process."""
LOOK_SECONDS = 0.5
"""Between looks for a signal that did not interrupt the wait for one."""
TRIMMED_SECONDS = 60.0
"""Between times at which free pages go back to the system."""

_log = logging.getLogger("dualform.service")


class Server:
    """Serves one engine, or several by name. A context manager: `with Server(engine, "127.0.0.1:0")`."""

    def __init__(
        self,
        engine: Engine | Mapping[str, Engine],
        config: ServiceConfig | str = "127.0.0.1:0",
        log: JsonLog | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        """`log`: what has a line for each call. It stays the caller's to close, and so do the engines. `observers` are
        told of each call, too.
        """
        engines = dict(engine) if isinstance(engine, Mapping) else {"": engine}
        self.config = ServiceConfig(config) if isinstance(config, str) else config
        self.metrics = Metrics()
        self.address = ""
        """host:port as bound; empty before `start`."""
        self.metrics_address = ""
        """Where metrics are scraped, likewise; empty for nowhere."""
        self.transport, self._shutter, self._closing = Transport(self.config), Shutter(), Closing()
        self._gate = Gate(self.config.token, self.config.token_file, self.metrics, self._shutter)
        self._standard = StandardServices(self._gate, tuple(engines))
        self._followers = [
            Follower(own, self.config.follow, partial(self.transport.call, self._standard.found, name))
            for name, own in engines.items()
        ]
        self._resources = Resources(self.config)
        self.memories = Memories(
            {
                name: MemoryServicer(CountedEngine(own, self.metrics, name, self.config.of_questions), self._resources)
                for name, own in engines.items()
            }
        )
        observers = (*observers, *(() if log is None else (log.call,)))
        self._handlers = CallHandlers(
            self.memories,
            self._resources,
            self.config,
            self._gate,
            self._closing,
            self._shutter,
            self.metrics,
            observers,
        )
        self._metrics_port: MetricsPort | None = None
        ProcessCollector(registry=self.metrics.registry)
        self.metrics.registry.register(
            ServerSeries(
                engines,
                lambda: self.transport.ask(self._handlers.state),
                lambda: 0 if log is None else log.dropped,
            )
        )

    def start(self) -> int:
        """Listens; returns the port. Raises ServiceError where the address is not to be had, BadInput for bad TLS."""
        credentials = server_credentials(self.config)
        check_free(self.config.listen)
        services = {SERVICE: self._handlers.handlers(), **self._standard.handlers}
        try:
            port = self.transport.start(credentials, services)
        except RuntimeError as error:
            raise cannot_listen(self.config.listen, "another process took it just now") from error
        self.address = str(Address(self.config.listen.host, port))
        self._shutter.port = port
        self._bind_metrics()
        self.transport.call(self._standard.serving)
        for follower in self._followers:
            follower.start()
        return port

    def _bind_metrics(self) -> None:
        if self.config.metrics is None:
            return
        own = parse_address(self.config.metrics)
        try:
            check_free(own, "--metrics")
            self._metrics_port = MetricsPort(
                own,
                web_context(self.config),
                self.metrics.registry,
                lambda headers: self.transport.ask(lambda: self._gate.caller(headers, None).check(METRICS)),
            )
        except (OSError, DualformError) as error:
            self.stop(0.0)
            if isinstance(error, DualformError):
                raise
            raise cannot_listen(own, error.strerror or str(error), "--metrics") from None
        self.metrics_address = str(Address(own.host, self._metrics_port.server_port))

    def stop(self, grace: float | None = None) -> None:
        """Takes no new questions, gives running ones `grace` seconds, then stops them. Returns when all have ended.

        What comes meanwhile is refused with Unavailable.
        """
        self.transport.call(self._standard.draining)
        for follower in self._followers:
            follower.stop()
        self._closing.close()
        self.transport.stop(self.config.grace if grace is None else grace, self._closing.cut)
        self._resources.lanes.close()
        self._shutter.close()
        if self._metrics_port is not None:
            self._metrics_port.close()
        self.transport.close()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(0.0 if error is not None else None)


def serve(
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    config: ServiceConfig | str = ServiceConfig.address,
    ready: Callable[[str], None] = lambda address: None,
    opening: Callable[[Path], AbstractContextManager[Engine]] | None = None,
    log: JsonLog | None = None,
    traces: Exporter | None = None,
) -> None:
    """Serves the memory at `path` until SIGTERM or SIGINT, then drains. `ready` is told the address once bound.

    Of several paths each memory is asked by the name of its folder (host:port/NAME).

    A second signal ends the process at once, with the exit code 128 and its number. What does not stop LAST_SECONDS
    after the grace of `config` is cut off with the process.

    `opening` opens a memory: dualform.open where it is None, or with others who answer for its shards (shards/).
    `log` has a line for each call, and `traces` a span; both are closed at the end.

    Runs in the main thread. Raises NotAMemory, ServiceError and BadInput before it listens.
    """
    from dualform.query.engine import open_memory

    bound_arenas()  # where it was not done before the first thread began
    config = ServiceConfig(config) if isinstance(config, str) else config
    paths = named([Path(path)] if isinstance(path, str | PathLike) else map(Path, path))
    with ExitStack() as opened:
        engines = {name: opened.enter_context((opening or open_memory)(one)) for name, one in paths.items()}
        supervisor = Supervisor()
        opened.callback(supervisor.close)
        opened.enter_context(free_pages_returned(TRIMMED_SECONDS))
        server = Server(engines, config, log, () if traces is None else (traces.call,))
        raise_limit()
        with stop_signals() as wait:
            server.start()
            supervisor.ready(server.transport.call)
            ready(server.address)
            _log.info("%s", next(iter(engines.values())).answered_by)
            if server.metrics_address:
                _log.info("metrics at %s://%s/metrics", server.config.scheme, server.metrics_address)
            wait()
            supervisor.stopping()
            _log.info("draining: a second signal ends the server at once")
            with _ended_after(config.grace + LAST_SECONDS, log):
                server.stop()
                if traces is not None:
                    traces.close()
    if log is not None:
        log.close()


@contextmanager
def _ended_after(seconds: float, log: JsonLog | None) -> Iterator[None]:
    """Ends the process where what is inside takes longer: work that does not look whether it must stop."""

    def end() -> None:
        if log is None:
            os.write(2, b"ended: some questions did not stop in time\n")
        else:
            _log.warning("ended: some questions did not stop in time")
            log.close()
        os._exit(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
            os.write(2, f"ended at once by a second signal, {name}: open questions were cut off\n".encode())
            os._exit(128 + number)
        came.append(number)
        stopped.put(number)

    def wait() -> None:
        # A signal does not interrupt a wait that is just about to begin, nor one that another thread of the process is
        # given: its handler runs once this thread comes to its next line.
        while True:
            with suppress(Empty):
                stopped.get(timeout=LOOK_SECONDS)
                return

    try:
        for number in former:
            signal.signal(number, stop)
        yield wait
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)

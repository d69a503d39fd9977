"""Prometheus metrics of a server, the port that serves them, and an engine that counts.

Calls are labelled with served memories, methods, and layers that an engine has answered about, so a caller that makes
names up adds no series.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from dualform.errors import Forbidden, Unauthenticated
from dualform.query.bounds import UNBOUNDED, QuestionBounds
from dualform.questions import LayerQuestion, Question
from dualform_proto.address import LOOPBACK, Address, host_of
from dualform_proto.calls import call_of
from dualform_service.call_record import CallRecord, layer_of

if TYPE_CHECKING:
    from dualform.query.view import Counts


A = TypeVar("A")


class Engine(Protocol):
    """`dualform.open` gives one."""

    def ask(
        self, question: Question[A], cancelled: Callable[[], bool] | None = None, bounds: QuestionBounds = UNBOUNDED
    ) -> A:
        """The answer; raises Cancelled soon after `cancelled` first says True, BadInput for what exceeds `bounds`."""

    def counted(self, question: LayerQuestion[A]) -> LayerQuestion[A]:
        """The question with each of its queries named, so that their number is known."""

    @property
    def recording(self) -> bool:
        """Whether the memory is still being recorded, or was cut off."""

    @property
    def answered_by(self) -> str:
        """What scores keys, in words."""

    def refresh(self) -> bool:
        """Takes the newest snapshot of a training that still runs; True where there was a newer one.

        Raises NotAMemory where the memory has gone.
        """


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
QUERIES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Upper bounds of the buckets, included."""
LAYERS = 1000
"""Most layers with a label; grouped convolutions have as many views as groups."""
CONNECTIONS, SILENT_SECONDS = 16, 5.0
"""Most connections of scrapers at once, and how long one may be silent."""
MEMORY = ("memory",)
METHOD = (*MEMORY, "method")
CALL = (*METHOD, "layer")
ENGINE = (
    (CounterMetricFamily, "dualform_screened_queries", "Queries for the best slots.", "queries"),
    (CounterMetricFamily, "dualform_fallbacks", "Queries of these that eight-bit codes could not decide.", "fallbacks"),
    (CounterMetricFamily, "dualform_candidates", "Rows that eight-bit codes left for exact scoring.", "candidates"),
    (CounterMetricFamily, "dualform_rescoring_seconds", "Seconds of exact scoring.", "rescoring_seconds"),
    (GaugeMetricFamily, "dualform_snapshot", "Commits in the served snapshot.", "commits"),
    (
        GaugeMetricFamily,
        "dualform_recording",
        "1 while the memory is still recorded, or if it was cut off.",
        "recording",
    ),
)
"""Series with the label `memory`, and the counts of an engine that they show."""

_log = logging.getLogger("dualform.service")


class Registry(CollectorRegistry):
    """Leaves out the times at which series began, which prometheus_client adds to every counter."""

    def collect(self) -> Iterable[Metric]:
        for family in super().collect():
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield family


class Metrics:
    """Counts calls and the work of engines; safe to use from several threads."""

    def __init__(self) -> None:
        self.registry = Registry()
        own: dict[str, Any] = {"registry": self.registry}
        self._calls = Counter(
            "dualform_calls", "Calls that ended; the outcome is `ok` or the error's code.", (*CALL, "outcome"), **own
        )
        self._seconds = Histogram(
            "dualform_call_seconds",
            "Seconds from a call's headers to the end of its result.",
            CALL,
            buckets=SECONDS,
            **own,
        )
        self._working = Counter(
            "dualform_call_working_seconds",
            "Seconds of these in which a thread worked on the call, or on a scan that it shared.",
            CALL,
            **own,
        )
        self._bytes_in = Counter("dualform_request_bytes", "Bytes of requests, as sent.", METHOD, **own)
        self._bytes_out = Counter("dualform_answer_bytes", "Bytes of results that were read, as sent.", METHOD, **own)
        self._queries = Histogram(
            "dualform_scan_queries", "Queries in a scan, from all calls that shared it.", CALL, buckets=QUERIES, **own
        )
        self._slots = Counter("dualform_slots_scanned", "Slots of the scanned layers.", CALL, **own)
        self.wrong_tokens = Counter("dualform_wrong_tokens", "Calls refused for a wrong or missing token.", **own)
        self.shut = Counter("dualform_connections_shut", "Connections that the server closed.", ("reason",), **own)
        self._layers = set[tuple[str, str]]()
        """With a label, by memory."""

    def add(self, record: CallRecord) -> None:
        """A call that has ended."""
        method = record.memory, record.method
        call = *method, self._label(record.memory, record.layer)
        self._calls.labels(*call, record.outcome).inc()
        self._seconds.labels(*call).observe(record.seconds)
        self._working.labels(*call).inc(record.working)
        self._bytes_in.labels(*method).inc(record.bytes_in)
        self._bytes_out.labels(*method).inc(record.bytes_out)

    def answered(self, memory: str, question: Question[Any], answer: Any) -> None:
        """An engine has answered one call, or several that shared a scan."""
        layer, scan = layer_of(question), getattr(answer, "scan", None)
        if layer and len(self._layers) < LAYERS:
            self._layers.add((memory, layer))
        call = memory, call_of(question).method, self._label(memory, layer)
        if scan is not None:
            self._slots.labels(*call).inc(scan.slots_scanned)
        if isinstance(question, LayerQuestion) and question.queries.count is not None:
            self._queries.labels(*call).observe(question.queries.count)

    def _label(self, memory: str, layer: str) -> str:
        return layer if (memory, layer) in self._layers else ""


class ServerSeries:
    """Series that are read when they are scraped: of the engines, the event loop and the log."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        calls: Callable[[], tuple[int, Mapping[str, int]]],
        dropped: Callable[[], int],
    ) -> None:
        """`engines`: by the names of their memories. `calls`: the number of open calls, and of those that wait, by what
        they wait for. `dropped`: the number of dropped lines of the log.
        """
        self._engines, self._calls, self._dropped = engines, calls, dropped

    def collect(self) -> Iterator[Metric]:
        open_calls, waits = self._calls()
        yield GaugeMetricFamily("dualform_open_calls", "Open calls.", value=open_calls)
        waiting = GaugeMetricFamily(
            "dualform_waiting", "Calls that wait for their message, a scan or a thread.", labels=["place"]
        )
        for place, count in waits.items():
            waiting.add_metric([place], count)
        yield waiting
        yield CounterMetricFamily(
            "dualform_log_lines_dropped", "Lines of --log json dropped for lack of room.", value=self._dropped()
        )
        # An engine counts if it answers in this process.
        yield from _of_engines({name: own.counts() for name, own in self._engines.items() if hasattr(own, "counts")})


def _of_engines(engines: Mapping[str, Counts]) -> Iterator[Metric]:
    for kind, name, what, count in ENGINE:
        family = kind(name, what, labels=MEMORY)
        for memory, own in engines.items():
            family.add_metric([memory], getattr(own, count))
        yield family
    lookups = CounterMetricFamily(
        "dualform_cache_lookups",
        "Cache look-ups of `codes` and of `derived` data (filters, groups, sums, weights): `hit` or `miss`.",
        labels=[*MEMORY, "cache", "result"],
    )
    for memory, own in engines.items():
        for cache in ("codes", "derived"):
            lookups.add_metric([memory, cache, "hit"], getattr(own, f"{cache}_found"))
            lookups.add_metric([memory, cache, "miss"], getattr(own, f"{cache}_made"))
    yield lookups
    every = engines.values()
    yield CounterMetricFamily(
        "dualform_read_bytes",
        "Bytes read from files of keys, values and derived data.",
        value=max((own.read_bytes for own in every), default=None),
    )
    limit = max((own.most_bytes for own in every if own.most_bytes is not None), default=None)
    yield GaugeMetricFamily("dualform_ram_limit_bytes", "RAM limit; absent for one memory without --ram.", value=limit)
    kept = [own.kept_bytes for own in every]
    total = sum(kept) if limit is None else max(kept)  # with a limit, all memories keep what they keep in one budget
    yield GaugeMetricFamily("dualform_kept_bytes", "Bytes kept in RAM between queries.", value=total if kept else None)


class MetricsPort(ThreadingMixIn, WSGIServer):
    """Answers GET /metrics over HTTP, on a separate address that a firewall can open to scrapers only.

    The rules are those for queries: plain HTTP on this machine, TLS and a token for others. Without TLS, the Host must
    be a name of this machine, because another site could let its name resolve to it.
    """

    daemon_threads, request_queue_size = True, CONNECTIONS

    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | None,
        registry: CollectorRegistry,
        check: Callable[[list[tuple[str, str | bytes]]], object],
    ) -> None:
        """Listens from here on. `check` raises Unauthenticated or Forbidden for headers that may not ask. Raises
        OSError.
        """
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._tls, self._check = tls, check
        self._page: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)
        self._hosts = frozenset({*LOOPBACK, host_of(str(address))}) if tls is None else None
        self._places = threading.Semaphore(CONNECTIONS)
        super().__init__((address.host, address.port), _Handler)
        self.set_app(self._answer)
        threading.Thread(target=self.serve_forever, args=(0.1,), name="dualform-metrics", daemon=True).start()

    def server_bind(self) -> None:
        """HTTPServer also looks up the machine's name, which takes long where no DNS answers."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(SILENT_SECONDS)
        if self._tls is None:
            super().finish_request(request, client_address)
        else:
            with self._tls.wrap_socket(request, server_side=True) as encrypted:
                super().finish_request(encrypted, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Broken connections are not logged."""

    def _answer(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        def say(status: str, text: str, *headers: tuple[str, str]) -> Iterable[bytes]:
            start(status, [("Content-Type", "text/plain; charset=utf-8"), *headers])
            return [f"{text}\n".encode()]

        if self._hosts is not None and host_of(environ.get("HTTP_HOST", "localhost")) not in self._hosts:
            return say("421 Misdirected Request", f"Ask as one of {', '.join(sorted(self._hosts))}.")
        try:
            token = environ.get("HTTP_AUTHORIZATION")
            self._check([] if token is None else [("authorization", token)])
            if environ["PATH_INFO"] != "/metrics":
                return say("404 Not Found", "Metrics are at /metrics.")
            return self._page(environ, start)
        except Unauthenticated as error:
            return say("401 Unauthorized", error.message, ("WWW-Authenticate", "Bearer"))
        except Forbidden as error:
            return say("403 Forbidden", str(error))
        except Exception:
            _log.exception("metrics could not be read")
            return say("500 Internal Server Error", "The server's log says why.")


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """stderr is the log's."""


class CountedEngine:
    """Answers as the engine does within `bounds`; `metrics` has what it answered about the memory of that name."""

    def __init__(self, engine: Engine, metrics: Metrics, memory: str, bounds: QuestionBounds) -> None:
        self._engine, self._metrics, self._memory, self._bounds = engine, metrics, memory, bounds

    def counted(self, question: LayerQuestion[A]) -> LayerQuestion[A]:
        """As Engine.counted."""
        return self._engine.counted(question)

    def ask(self, question: Question[A], cancelled: Callable[[], bool] | None = None) -> A:
        """Raises what the engine raises, and BadInput for what exceeds the bounds."""
        answer = self._engine.ask(question, cancelled, self._bounds)
        self._metrics.answered(self._memory, question, answer)
        return answer

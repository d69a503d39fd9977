"""The record of a call: filled while the call is answered, then written to the JSON log and sent as an OpenTelemetry
span. metrics.py counts the calls.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from queue import Full, Queue
from typing import Any, TypeAlias

from dualform.extras import optional
from dualform_proto.v1 import dualform_pb2 as pb

NAME = 200
"""Most characters of a layer's name that are noted: a caller may send megabytes."""
LINES = 10_000
"""Most lines of the log that wait to be written: some seconds of 64 callers."""
LAST_SECONDS, LAST_SPANS_SECONDS = 0.5, 2.0
"""Time to write waiting lines, and to send waiting spans, when the server ends."""
_SERVICE = pb.DESCRIPTOR.services_by_name["Memory"].full_name


@dataclass(eq=False)
class CallRecord:
    """Noted on the loop and by the thread that works on the call; it stays as it is once the call has ended."""

    method: str
    request_id: str
    peer: str
    """As gRPC writes it."""
    trace_parent: str = ""
    """The caller's `traceparent` (W3C); empty if it sent none."""
    caller: str = ""
    """The name of the caller's token; empty if the server needs none, or the token is wrong."""
    memory: str = ""
    """Its name; empty for a memory without a name, or if the call was refused."""
    layer: str = ""
    """That the question names, whether there is such a layer or not, up to NAME characters of it; empty before it is
    read, and of questions about no single layer."""
    outcome: str = "ok"
    """Or the code of the error."""
    bytes_in: int = 0
    bytes_out: int = 0
    began: float = field(default_factory=time.time)
    """Seconds since 1970."""
    seconds: float = 0.0
    """From its headers to the end of its answer."""
    working: float = 0.0
    """Of which so many a thread worked on it: alone, or on a scan that it shared with others, all of whom count it."""
    work_began: float | None = None
    """Seconds after its beginning; None of a call that nothing worked on."""
    _started: float = field(default_factory=time.monotonic)
    _working_since: float | None = None
    _ended: bool = False

    @property
    def waiting(self) -> float:
        """Seconds in which nothing worked on it: for its message, for a thread, for its answer to be read."""
        return max(0.0, self.seconds - self.working)

    @contextmanager
    def work(self) -> Iterator[None]:
        """Work on the call is done inside."""
        now = self._working_since = time.monotonic()
        if self.work_began is None:
            self.work_began = now - self._started
        try:
            yield
        finally:
            if not self._ended:
                self._work_ends(time.monotonic())

    def end(self, outcome: str) -> None:
        """What still works on the call counts up to here."""
        now = time.monotonic()
        self._work_ends(now)
        self.outcome, self.seconds, self._ended = outcome, now - self._started, True

    def _work_ends(self, now: float) -> None:
        since, self._working_since = self._working_since, None
        if since is not None:
            self.working += now - since


def layer_of(question: Any) -> str:
    """Up to NAME characters of the layer's name; empty of a question about no single layer."""
    return (getattr(question, "layer", None) or "")[:NAME]


Observer: TypeAlias = Callable[[CallRecord], None]
"""Is told of each call that has ended, on the loop; it neither waits nor raises."""

CURRENT: ContextVar[CallRecord] = ContextVar("dualform_call")
"""That of the running task."""


def current() -> CallRecord:
    """The record of the call that the running task handles; without one, a record that nobody reads."""
    return CURRENT.get(None) or CallRecord("", "", "")


class JsonLog(QueueHandler):
    """A log of one JSON object a line, for calls and for what else the process logs.

    Lines go into a queue, and a thread writes them: a slow disk, or a pipe that nobody reads, holds up no call. Lines
    that find the queue full are counted, and a line says how many once there is room again.
    """

    def __init__(self, file: int, most: int = LINES) -> None:
        """`file`: the descriptor to write to; it is not closed. A blocked write to one of Python's streams would keep
        the stream's lock, and the process could not end."""
        lines: Queue[Any] = Queue(most)
        super().__init__(lines)
        self.dropped = 0
        """Lines that did not fit into the queue or onto the disk."""
        self._listener: _Writer | None = _Writer(self, lines, file)
        self._listener.start()

    def call(self, record: CallRecord) -> None:
        """An Observer."""
        self.enqueue(
            {
                "time": _time(record.began),
                "kind": "call",
                "request_id": record.request_id,
                "token": record.caller,
                "peer": record.peer,
                "method": record.method,
                "memory": record.memory,
                "layer": record.layer,
                "outcome": record.outcome,
                "waiting": round(record.waiting, 6),
                "working": round(record.working, 6),
                "bytes_in": record.bytes_in,
                "bytes_out": record.bytes_out,
            }
        )

    def prepare(self, record: logging.LogRecord) -> Mapping[str, Any]:
        line = self._line(record, record.getMessage())
        if record.exc_info:
            line["traceback"] = (self.formatter or logging.Formatter()).formatException(record.exc_info)
        return line

    def enqueue(self, line: Any) -> None:
        try:
            self.queue.put_nowait(line)
        except Full:
            self.dropped += 1

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A message that cannot be formatted: the log says where it came from, and its caller goes on."""
        place = f"{record.pathname}:{record.lineno}"
        self.enqueue(self._line(record, f"{place} logged a message that cannot be written"))

    def close(self) -> None:
        """Returns once all is written, or after LAST_SECONDS."""
        listener, self._listener = self._listener, None
        if listener is not None:
            _within(LAST_SECONDS, listener.stop)
        super().close()

    @staticmethod
    def _line(record: logging.LogRecord, message: str) -> dict[str, Any]:
        return {
            "time": _time(record.created),
            "kind": "log",
            "level": record.levelname.lower(),
            "message": message,
        }


class _Writer(QueueListener):
    def __init__(self, log: JsonLog, lines: Queue[Any], file: int) -> None:
        super().__init__(lines)
        self._log, self._lines, self._file, self._told = log, lines, file, 0

    def enqueue_sentinel(self) -> None:
        """Waits for room."""
        self._lines.put(None)

    def handle(self, line: Any) -> None:
        if (dropped := self._log.dropped) > self._told:
            self._write({"time": _time(time.time()), "kind": "dropped", "lines": dropped - self._told})
            self._told = dropped
        self._write(line)

    def _write(self, line: Mapping[str, Any]) -> None:
        left = f"{json.dumps(line)}\n".encode()
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:  # a full disk, or a file that was closed: the calls go on
            self._log.dropped += 1


def _time(seconds: float) -> str:
    """As RFC 3339 has it, in UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _within(seconds: float, work: Callable[[], object]) -> None:
    """Returns once the work is done, or after so many seconds."""
    working = threading.Thread(target=work, name="dualform-last", daemon=True)
    working.start()
    working.join(seconds)


class Traces:
    """Gives a tracer of OpenTelemetry's API a span for each call, and in it one for the work on it.

    A span is made when its call has ended, so a server without traces pays nothing for them. A caller's `traceparent`
    makes it part of the caller's trace.
    """

    def __init__(self, tracer: Any) -> None:
        """Raises MissingPackage without opentelemetry."""
        self._tracer, self._trace = tracer, optional("opentelemetry.trace")
        self._propagator = optional("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()

    def call(self, record: CallRecord) -> None:
        """An Observer."""
        parent = self._propagator.extract({"traceparent": record.trace_parent}) if record.trace_parent else None
        span = self._tracer.start_span(
            f"{_SERVICE}/{record.method}",
            context=parent,
            kind=self._trace.SpanKind.SERVER,
            start_time=_nanoseconds(record.began),
            attributes={
                "rpc.system": "grpc",
                "rpc.service": _SERVICE,
                "rpc.method": record.method,
                "dualform.layer": record.layer,
                "dualform.outcome": record.outcome,
                "dualform.request_id": record.request_id,
            },
        )
        if record.outcome != "ok":
            span.set_status(self._trace.StatusCode.ERROR, record.outcome)
        if record.work_began is not None:
            began = record.began + record.work_began
            work = self._tracer.start_span(
                "work", context=self._trace.set_span_in_context(span), start_time=_nanoseconds(began)
            )
            work.end(_nanoseconds(began + record.working))
        span.end(_nanoseconds(record.began + record.seconds))


class Exporter:
    """Spans go to a collector by OTLP over gRPC: to which one, OpenTelemetry's variables say
    (OTEL_EXPORTER_OTLP_ENDPOINT)."""

    def __init__(self) -> None:
        """Raises MissingPackage without the extra."""
        sdk = optional("opentelemetry.sdk.trace")
        exporting = optional("opentelemetry.sdk.trace.export")
        otlp = optional("opentelemetry.exporter.otlp.proto.grpc.trace_exporter")
        resource = optional("opentelemetry.sdk.resources").Resource.create(
            {"service.name": os.environ.get("OTEL_SERVICE_NAME", "dualform")}
        )
        self._provider = sdk.TracerProvider(resource=resource, shutdown_on_exit=False)
        # Spans wait in a queue of the processor's, of which those that find no room are dropped.
        self._provider.add_span_processor(exporting.BatchSpanProcessor(otlp.OTLPSpanExporter()))
        self.call = Traces(self._provider.get_tracer("dualform")).call

    def close(self) -> None:
        """Sends what waits; a collector that is not there is given LAST_SPANS_SECONDS."""
        _within(LAST_SPANS_SECONDS, self._provider.shutdown)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)

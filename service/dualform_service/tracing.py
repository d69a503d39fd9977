"""Traces by OpenTelemetry: a span for each call, and in it one for the work that was done on it.

A span is made when its call has ended, of what was noted of it, so that a server without traces pays nothing for them.
A caller's `traceparent` makes it part of the caller's trace. OpenTelemetry is loaded by what is made here alone.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from dualform.extras import optional
from dualform_proto.v1 import dualform_pb2 as pb
from dualform_service.call_record import CallRecord

LAST_SECONDS = 2.0
_SERVICE = pb.DESCRIPTOR.services_by_name["Memory"].full_name


class Traces:
    """Gives spans to a tracer of OpenTelemetry's API. Its `call` is an Observer."""

    def __init__(self, tracer: Any) -> None:
        """Raises MissingPackage without opentelemetry."""
        self._tracer, self._trace = tracer, optional("opentelemetry.trace")
        self._propagator = optional("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()

    def call(self, record: CallRecord) -> None:
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
        """Sends what waits; a collector that is not there is given LAST_SECONDS."""
        sending = threading.Thread(target=self._provider.shutdown, name="dualform-traces", daemon=True)
        sending.start()
        sending.join(LAST_SECONDS)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)

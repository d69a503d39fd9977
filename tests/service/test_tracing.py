"""A span for each call, of what was noted of it, to whoever collects them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from dualform.errors import NotFound
from dualform_client import Client
from dualform_service.call_record import Traces
from dualform_service.server import Server
from tests.service.held_engine import until

INFO = "/dualform.v1.Memory/Info"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans():
    kept, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    yield kept, Traces(provider.get_tracer("test")).call
    provider.shutdown()


def test_a_call_is_a_span_and_the_work_on_it_one_inside(engine, spans):
    kept, call = spans
    with Server(engine, observers=[call]) as server, Client(server.address) as client:
        client.topk("fc", "test")
        with pytest.raises(NotFound) as caught:
            client.slots([17])
        until(lambda: len(kept.get_finished_spans()) == 4)
    work, topk, _, slots = kept.get_finished_spans()
    assert [span.name for span in (work, topk, slots)] == [
        "work",
        "dualform.v1.Memory/TopK",
        "dualform.v1.Memory/Slots",
    ]
    assert (topk.kind, topk.status.status_code, topk.parent) == (SpanKind.SERVER, StatusCode.UNSET, None)
    assert topk.attributes["dualform.layer"] == "fc"
    assert work.parent.span_id == topk.context.span_id
    assert topk.start_time <= work.start_time <= work.end_time <= topk.end_time
    assert (slots.status.status_code, slots.status.description) == (StatusCode.ERROR, "not_found")
    assert slots.attributes["dualform.request_id"] == caught.value.request_id


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-01" + "x" * 10_000, True),
        ("nonsense", False),
    ],
)
def test_it_is_part_of_the_callers_trace_if_that_is_one(engine, spans, said, taken):
    kept, call = spans
    with Server(engine, observers=[call]) as server, grpc.insecure_channel(server.address) as channel:
        channel.unary_unary(INFO)(b"", metadata=[("traceparent", said)], timeout=60)
        until(lambda: len(kept.get_finished_spans()) == 2)
    *_, own = kept.get_finished_spans()
    assert (format(own.context.trace_id, "032x") == TRACE) == taken
    assert (own.parent is not None and format(own.parent.span_id, "016x") == SPAN) == taken


def test_spans_reach_a_collector_by_otlp(small_run, monkeypatch):
    found = []

    def export(request, context):
        for part in request.resource_spans:
            names = {own.key: own.value.string_value for own in part.resource.attributes}
            found.extend((names["service.name"], span.name) for own in part.scope_spans for span in own.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    handler = grpc.unary_unary_rpc_method_handler(
        export,
        request_deserializer=trace_service_pb2.ExportTraceServiceRequest.FromString,
        response_serializer=trace_service_pb2.ExportTraceServiceResponse.SerializeToString,
    )
    collector = grpc.server(ThreadPoolExecutor(1))
    service = trace_service_pb2.DESCRIPTOR.services_by_name["TraceService"].full_name
    collector.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": handler}),))
    port = collector.add_insecure_port("127.0.0.1:0")
    collector.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    command = [sys.executable, "-m", "dualform_client.cli", "serve", str(small_run), "--address", "127.0.0.1:0"]
    process = subprocess.Popen([*command, "--tracing", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        with Client(json.loads(process.stdout.readline())["address"]) as client:
            assert client.info().steps == 6
        process.send_signal(signal.SIGTERM)
        _, logged = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
        collector.stop(None)
    assert process.returncode == 0, logged
    assert sorted(found) == [("dualform", "dualform.v1.Memory/Info"), ("dualform", "work")]


def test_a_server_without_traces_loads_none():
    code = "import sys, dualform_service.server; print([name for name in sys.modules if 'opentelemetry' in name])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"

"""A line of JSON and a span for each call, whose writing holds nothing up; and the id that both have of its request."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from dualform.errors import DualformError, NotFound, TimedOut, Unauthenticated
from dualform.questions import TopK, Vectors
from dualform_client import Client
from dualform_proto.calls import REQUEST_ID, call_of
from dualform_service.call_record import NAME, JsonLog, Traces
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.service.held_engine import outcomes, until

WITH_SQL = ServiceConfig("127.0.0.1:0", sql=True)
FIELDS = [
    "time", "kind", "request_id", "token", "peer", "method", "memory", "layer", "outcome", "waiting", "working",
    "bytes_in", "bytes_out",
]  # fmt: skip


@contextmanager
def logged(tmp_path):
    """A log, and its lines once it is closed."""
    lines = []
    with open(tmp_path / "log", "wb") as file:
        log = JsonLog(file.fileno())
        try:
            yield log, lines
        finally:
            log.close()
    lines += [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


def test_each_call_has_a_line_with_what_its_caller_knows_of_it(engine, tmp_path):
    question = TopK("fc", Vectors([[1.0, 2.0, 3.0]]), k=2, where="label = 'mine'")
    sent = len(call_of(question).question.encode(question).SerializeToString())
    with logged(tmp_path) as (log, lines), Server(engine, WITH_SQL, log) as server, Client(server.address) as client:
        client.ask(question)
        client.info()
        with pytest.raises(NotFound) as caught:
            client.slots([17])
        with grpc.insecure_channel(server.address) as channel:
            (answer,) = [channel.unary_unary("/dualform.v1.Memory/Info")(b"", metadata=[("x-request-id", "mine")])]
        engine.hold.clear()
        with Client(server.address, timeout=0.3) as hasty, pytest.raises(TimeoutError):
            hasty.sql("SELECT 'my question'")
    assert [list(line) for line in lines] == [FIELDS] * 5
    by_method = [(line["method"], line["layer"], line["outcome"]) for line in lines]
    assert by_method == [
        ("TopK", "fc", "ok"),
        ("Info", "", "ok"),
        ("Slots", "", "not_found"),
        ("Info", "", "ok"),
        ("Sql", "", by_method[4][2]),
    ]
    assert by_method[4][2] in ("timed_out", "cancelled")
    assert lines[0]["bytes_in"] == sent
    assert (lines[3]["request_id"], lines[3]["bytes_in"], lines[3]["bytes_out"]) == ("mine", 0, len(answer))
    assert lines[2]["request_id"] == caught.value.request_id
    assert lines[2]["bytes_out"] == 0
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert re.fullmatch(r"ipv4:127\.0\.0\.1:\d+", line["peer"])
        assert line["working"] >= 0
        assert line["waiting"] >= 0
    # The statement was worked on until its caller had enough of it, and no line has what was asked.
    assert lines[4]["working"] > 0.1
    assert not [word for word in ("my question", "label", "SELECT") if word in (tmp_path / "log").read_text()]


def test_names_that_callers_make_up_stay_on_their_line(engine, tmp_path):
    with logged(tmp_path) as (log, lines), Server(engine, log=log) as server, Client(server.address) as client:
        client.topk('a"\n{"kind": "call"}\u2028', "test")
        client.topk("x" * 100_000, "test")
    assert [line["layer"] for line in lines] == ['a"\n{"kind": "call"}\u2028', "x" * NAME]


def test_what_else_is_logged_is_json_too(tmp_path):
    with logged(tmp_path) as (log, lines):
        logger = logging.Logger("alone")
        logger.addHandler(log)
        logger.warning("%s did not", "it")
        try:
            raise KeyError("x")
        except KeyError:
            logger.exception("failed")
    first, second = lines
    assert (first["kind"], first["level"], first["message"]) == ("log", "warning", "it did not")
    assert (second["level"], second["message"]) == ("error", "failed")
    assert second["traceback"].endswith("KeyError: 'x'")


def test_a_pipe_that_nobody_reads_holds_no_call_up_and_what_is_dropped_is_counted(engine):
    end, into = os.pipe()
    os.set_blocking(into, False)
    with suppress(BlockingIOError):
        while os.write(into, b" " * 1000):
            pass
    os.set_blocking(into, True)
    calls, most, log = 120, 50, JsonLog(into, most=50)
    with Server(engine, log=log) as server, Client(server.address) as client:
        for _ in range(calls):
            assert client.info().snapshot == 7
        until(lambda: outcomes(server, "Info") == {"ok": calls})
    # The writer has one in hand, and the pipe took a few at most.
    assert calls - most - 10 < log.dropped < calls - most
    log.close()  # it does not wait until somebody reads
    with open(end, "rb") as pipe, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(pipe.read)
        until(lambda: log.queue.empty())
        os.close(into)
        said = [json.loads(line) for line in reading.result(60).split(b"\n") if line.strip()]
    assert [line["kind"] for line in said].count("call") == calls - log.dropped
    assert sum(line["lines"] for line in said if line["kind"] == "dropped") == log.dropped


def test_a_file_that_cannot_be_written_to_is_no_error_of_a_call(engine, tmp_path):
    with open(os.devnull) as read_only:
        log = JsonLog(read_only.fileno())
        with Server(engine, log=log) as server, Client(server.address) as client:
            assert client.info().snapshot == 7
            until(lambda: log.dropped == 1)
        log.close()


class Unsayable:
    def __str__(self) -> str:
        raise ZeroDivisionError("in the midst of it")


def test_a_line_that_cannot_be_formatted_fails_nobody_and_says_where_it_is(tmp_path):
    with logged(tmp_path) as (log, lines):
        for line, message, arguments in ((17, "%d of %d", ("x", 2)), (18, "%s", (Unsayable(),)), (19, "whole", ())):
            log.handle(logging.LogRecord("x", logging.ERROR, "store.py", line, message, arguments, None))
    wrong = "logged a message that cannot be written"
    assert [line["message"] for line in lines] == [f"store.py:17 {wrong}", f"store.py:18 {wrong}", "whole"]


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


CHECK = "/grpc.health.v1.Health/Check"
MADE = re.compile(r"[0-9a-f]{16}")


def told(server: Server, metadata=(), method: str = INFO, message: bytes = b"") -> list[str]:
    """The ids of the metadata behind an answer or a refusal."""
    with grpc.insecure_channel(server.address) as channel:
        ask = channel.unary_unary(method)
        try:
            _, ended = ask.with_call(message, metadata=metadata, timeout=60)
        except grpc.RpcError as error:
            ended = error
        return [value for key, value in ended.trailing_metadata() if key == REQUEST_ID]


@pytest.mark.parametrize(
    ("own", "method", "message"),
    [("a", INFO, b""), ("A.b_c-9", INFO, b"\xff"), ("x" * 64, CHECK, b""), ("a", CHECK, b"\xff")],
)
def test_the_callers_own_comes_back_behind_answers_and_refusals(server, own, method, message):
    assert told(server, ((REQUEST_ID, own),), method, message) == [own]


@pytest.mark.parametrize("own", [None, "", "x" * 65, "a b", 'a"b', "a,b", "a/../b", "{}"])
def test_one_is_made_where_there_is_none_that_a_log_could_hold(server, own):
    first, second = (told(server, () if own is None else ((REQUEST_ID, own),)) for _ in range(2))
    assert len(first) == len(second) == 1
    assert MADE.fullmatch(first[0])
    assert MADE.fullmatch(second[0])
    assert first != second


def test_who_is_refused_for_a_token_is_told_it_too(engine):
    with Server(engine, ServiceConfig("127.0.0.1:0", token="right")) as server:
        assert told(server, ((REQUEST_ID, "mine"),)) == ["mine"]
        with Client(server.address) as client, pytest.raises(Unauthenticated) as caught:
            client.info()
    assert MADE.fullmatch(caught.value.request_id)


def test_an_unforeseen_error_and_the_log_name_the_same(engine, client, caplog):
    engine.error = KeyError("/secret/place")
    with pytest.raises(DualformError, match=r"^The server failed on this question\. ") as caught:
        client.info()
    own = caught.value.request_id
    assert MADE.fullmatch(own)
    assert caught.value.hint == f"The server's log says why, under the request {own}."
    assert f"Info failed, request {own}" in caplog.text
    assert "/secret/place" in caplog.text


def test_a_deadline_that_passes_at_the_callers_has_the_id_that_was_sent(engine, server):
    engine.hold.clear()
    with Client(server.address, timeout=0.2) as client, pytest.raises(TimedOut) as caught:
        client.topk("fc", "test")
    assert MADE.fullmatch(caught.value.request_id)

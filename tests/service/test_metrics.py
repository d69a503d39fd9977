"""What is scraped is what was done, nobody who makes names up adds to it, and documents and dashboards say the same."""

from __future__ import annotations

import http.client
import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dualform.errors import DualformError, NotFound, Unauthenticated
from dualform.questions import (
    TopK,
    Vectors,
)
from dualform_client import Client
from dualform_proto.calls import CALLS
from dualform_service import metrics
from dualform_service.call_record import NAME, CallRecord, JsonLog
from dualform_service.metrics import LAYERS, Metrics
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.service.canned import Canned
from tests.service.held_engine import outcomes, until

HERE = ServiceConfig("127.0.0.1:0", metrics="127.0.0.1:0")


def asked(address: str, path: str = "/metrics", method: str = "GET", headers=None) -> tuple[int, str]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def scraped(server: Server, headers=None) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Values by name of a series and its labels."""
    status, text = asked(server.metrics_address, headers=headers)
    assert status == 200
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def of(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def ended(server: Server, calls: int) -> None:
    series = server.metrics.registry.restricted_registry(["dualform_calls_total"])
    until(lambda: sum(one.value for family in series.collect() for one in family.samples) == calls)


def test_counts_are_those_of_the_calls_that_were_made(engine):
    question = TopK("fc", Vectors([[1.0, 2.0, 3.0]] * 5), k=2)
    with Server(engine, HERE) as server, Client(server.address) as client:
        for _ in range(3):
            client.ask(question)
        client.output("fc", [[1.0, 2.0, 3.0]])
        client.info()
        for _ in range(2):
            with pytest.raises(NotFound):
                client.slots([17])
        ended(server, 7)
        found = scraped(server)
    assert found["dualform_calls_total"] == {
        of(memory="", method="TopK", layer="fc", outcome="ok"): 3,
        of(memory="", method="Output", layer="fc", outcome="ok"): 1,
        of(memory="", method="Info", layer="", outcome="ok"): 1,
        of(memory="", method="Slots", layer="", outcome="not_found"): 2,
    }
    assert found["dualform_call_seconds_count"] == {
        of(memory="", method="TopK", layer="fc"): 3,
        of(memory="", method="Output", layer="fc"): 1,
        of(memory="", method="Info", layer=""): 1,
        of(memory="", method="Slots", layer=""): 2,
    }
    assert found["dualform_slots_scanned_total"][of(memory="", method="TopK", layer="fc")] == 3 * 4
    assert found["dualform_scan_queries_sum"] == {
        of(memory="", method="TopK", layer="fc"): 15,
        of(memory="", method="Output", layer="fc"): 1,
    }
    buckets = found["dualform_scan_queries_bucket"]
    assert [buckets[of(memory="", method="TopK", layer="fc", le=le)] for le in ("4.0", "8.0", "+Inf")] == [0, 3, 3]
    for labels, seconds in found["dualform_call_seconds_sum"].items():
        assert 0 <= found["dualform_call_working_seconds_total"][labels] <= seconds
    assert found["dualform_answer_bytes_total"][of(memory="", method="Slots")] == 0
    assert found["dualform_answer_bytes_total"][of(memory="", method="TopK")] > 0
    assert found["dualform_request_bytes_total"][of(memory="", method="TopK")] > 3 * 15 * 4


def test_a_scan_that_is_shared_is_counted_once(engine):
    engine.hold.clear()
    query = [[1.0, 2.0, 3.0]]
    with Server(engine, HERE) as server, Client(server.address) as client, ThreadPoolExecutor(5) as pool:
        asking = [pool.submit(client.topk, "fc", query, k=2)]
        assert engine.waiting.acquire(timeout=60)
        asking += [pool.submit(client.topk, "fc", query, k=2) for _ in range(4)]
        until(lambda: server.memories.waiting() == 4)
        during = scraped(server)
        engine.hold.set()
        for one in asking:
            one.result(60)
        ended(server, 5)
        found = scraped(server)
    assert during["dualform_open_calls"] == {(): 5}
    assert during["dualform_waiting"][of(place="scan")] == 4
    assert found["dualform_open_calls"] == {(): 0}
    assert found["dualform_waiting"][of(place="scan")] == 0
    assert found["dualform_calls_total"] == {of(memory="", method="TopK", layer="fc", outcome="ok"): 5}
    assert found["dualform_scan_queries_count"] == {of(memory="", method="TopK", layer="fc"): 2}
    assert found["dualform_scan_queries_sum"] == {of(memory="", method="TopK", layer="fc"): 5}
    assert found["dualform_slots_scanned_total"] == {of(memory="", method="TopK", layer="fc"): 8}


def test_layers_that_there_are_none_of_make_no_series(engine):
    with Server(engine, HERE) as server, Client(server.address) as client:
        client.topk("fc", "test")
        ended(server, 1)
        before = {name: set(labels) for name, labels in scraped(server).items()}
        engine.error = NotFound("there is no such layer.")
        names = [f"layer {number}" for number in range(40)] + ['fc"} 1\nx 2', "x" * 100_000, "fc\x00", "\ud7ff", ""]
        for name in names:
            with pytest.raises(DualformError):
                client.topk(name, "test")
        with grpc.insecure_channel(server.address) as channel:
            for number in range(5):
                with pytest.raises(grpc.RpcError, match="Method not found"):
                    channel.unary_unary(f"/dualform.v1.Memory/Other{number}")(b"", timeout=60)
        ended(server, 1 + len(names))
        after = {name: set(labels) for name, labels in scraped(server).items()}
        calls = scraped(server)["dualform_calls_total"]
    assert calls[of(memory="", method="TopK", layer="", outcome="not_found")] == len(names)
    assert calls[of(memory="", method="TopK", layer="fc", outcome="ok")] == 1
    grown = {name: labels - before.get(name, set()) for name, labels in after.items()}
    methods = {call.method for call in CALLS.values()}
    for labels in set[tuple[tuple[str, str], ...]]().union(*grown.values()):
        assert dict(labels).get("layer", "") == ""
        assert dict(labels).get("method", "TopK") in methods


def test_layers_with_a_label_of_their_own_are_bounded(engine):
    counted, question = Metrics(), TopK("fc", Vectors([[1.0, 2.0, 3.0]]), k=2)
    answer = engine.ask(question)
    for number in range(LAYERS + 10):
        name = f"fc.{number}"
        counted.answered("", TopK(name, question.queries, k=2), answer)
        record = CallRecord("TopK", "id", "peer", layer=name)
        record.end("ok")
        counted.add(record)
    long = TopK("x" * (NAME + 1), question.queries, k=2)
    counted.answered("", long, answer)
    text = generate_latest(counted.registry).decode()
    assert text.count("dualform_call_seconds_count{") == LAYERS + 1
    assert 'dualform_calls_total{layer="",memory="",method="TopK",outcome="ok"} 10.0' in text
    assert "x" * (NAME + 1) not in text


def test_what_the_port_answers(engine):
    accept = {"Accept": "application/openmetrics-text;version=1.0.0"}
    with Server(engine, HERE) as server:
        assert asked(server.metrics_address, headers=accept)[1].endswith("# EOF\n")
        assert asked(server.metrics_address, "/")[0] == 404
        assert asked(server.metrics_address, "/metrics/../x")[0] == 404
        assert asked(server.metrics_address, method="POST")[0] == 405
        assert asked(server.metrics_address, "/metrics?x=1")[0] == 200
        # Whoever asks by another name is told nothing.
        for name in ("evil.example", "127.0.0.1.evil.example", "[::1]x", "localhost:evil", ""):
            status, text = asked(server.metrics_address, headers={"Host": name})
            assert (status, "dualform" in text) == (421, False)
        for name in ("LOCALHOST:1", "[::1]:9"):
            assert asked(server.metrics_address, headers={"Host": name})[0] == 200


def test_metrics_ask_for_the_token_that_questions_ask_for(engine):
    config = ServiceConfig("127.0.0.1:0", token="right-token", metrics="127.0.0.1:0")
    with Server(engine, config) as server:
        for headers in ({}, {"Authorization": "Bearer wrong-token"}):
            status, text = asked(server.metrics_address, headers=headers)
            assert status == 401
            assert "token" in text
        with Client(server.address) as client, pytest.raises(Unauthenticated):
            client.info()
        ended(server, 1)
        found = scraped(server, {"Authorization": "Bearer right-token"})
    assert found["dualform_wrong_tokens_total"] == {(): 3}
    assert found["dualform_calls_total"] == {of(memory="", method="Info", layer="", outcome="unauthenticated"): 1}


def silent(server: Server, said: bytes = b"") -> socket.socket:
    """A connection to the port that says no more."""
    host, _, port = server.metrics_address.rpartition(":")
    connection = socket.create_connection((host, int(port)), 60)
    connection.sendall(said)
    return connection


def test_silent_connections_take_no_more_than_their_places_and_end_by_themselves(engine, monkeypatch):
    monkeypatch.setattr(metrics, "SILENT_SECONDS", 1.0)
    with Server(engine, HERE) as server, ExitStack() as quiet:
        for _ in range(metrics.CONNECTIONS):
            quiet.enter_context(silent(server, b"GET /metrics HTTP/1.1\r\n"))
        until(lambda: not server._metrics_port._places._value)
        with pytest.raises((ConnectionError, http.client.BadStatusLine)):
            asked(server.metrics_address)
        with Client(server.address) as client:
            assert client.info().snapshot == 7
        until(lambda: server._metrics_port._places._value == metrics.CONNECTIONS)
        assert asked(server.metrics_address)[0] == 200


@pytest.mark.parametrize("sent", [b"\r\n\r\n", b"\xff" * 100 + b"\r\n\r\n", b"GET\r\n\r\n", b"x" * 70_000])
def test_what_is_no_request_is_refused_without_a_word_on_stderr(engine, sent, capfd):
    with Server(engine, HERE) as server:
        with silent(server, sent) as far, suppress(ConnectionError):
            far.shutdown(socket.SHUT_WR)
            assert b"dualform_" not in far.recv(1 << 16)
        assert asked(server.metrics_address)[0] == 200
    assert capfd.readouterr().err == ""


def test_series_that_cannot_be_read_are_an_error_in_the_log(engine, monkeypatch, caplog):
    with Server(engine, HERE) as server:
        monkeypatch.setattr(server._handlers, "state", lambda: 1 / 0)
        assert asked(server.metrics_address)[0] == 500
    assert "ZeroDivisionError" in caplog.text


def test_layers_of_one_name_are_told_apart_by_their_memories(engine):
    other = Canned()
    with Server({"a": engine, "b": other}, HERE) as server:
        for name, calls in (("a", 1), ("b", 2)):
            with Client(f"{server.address}/{name}") as client:
                for _ in range(calls):
                    client.topk("fc", "test")
        for wrong in (server.address, f"{server.address}/c", f"{server.address}/{'d' * 64}"):
            with Client(wrong) as client, pytest.raises(DualformError):
                client.topk("fc", "test")
        other.error = NotFound("none.")
        with Client(f"{server.address}/b") as client, pytest.raises(NotFound):
            client.topk("only in a", "test")
        ended(server, 7)
        found = scraped(server)
    assert found["dualform_calls_total"] == {
        of(memory="a", method="TopK", layer="fc", outcome="ok"): 1,
        of(memory="b", method="TopK", layer="fc", outcome="ok"): 2,
        of(memory="b", method="TopK", layer="", outcome="not_found"): 1,
        of(memory="", method="TopK", layer="", outcome="bad_input"): 1,
        of(memory="", method="TopK", layer="", outcome="not_found"): 2,
    }
    assert found["dualform_slots_scanned_total"] == {
        of(memory="a", method="TopK", layer="fc"): 4,
        of(memory="b", method="TopK", layer="fc"): 8,
    }


ROOT = Path(__file__).parent.parent.parent
DOCUMENT = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
HISTOGRAMS = {"dualform_call_seconds", "dualform_scan_queries"}
SERIES = re.compile(r"\b(?:dualform|process)_[a-z_]+")


ROWS = re.findall(r"^\| `(dualform_\w+)` \| (.*?) \| (.*) \|$", DOCUMENT, re.MULTILINE)


@pytest.fixture(scope="module")
def registry():
    """Labels by series, as the table has them, and those of the process; a server that was asked has the same."""
    with Server(Canned(), HERE) as server, Client(server.address) as client:
        client.topk("fc", "test")
        until(lambda: outcomes(server, "TopK"))
        families = list(text_string_to_metric_families(asked(server.metrics_address)[1]))
    ours = [family for family in families if not family.name.startswith("process_")]
    described = {family.name + "_total" * (family.type == "counter"): family.documentation for family in ours}
    assert {name: what for name, _, what in ROWS} == described
    assert {family.name for family in ours if family.type == "histogram"} == HISTOGRAMS
    found = {sample.name: set() for family in families if family not in ours for sample in family.samples}
    for name, labels, _ in ROWS:
        own = set(re.findall(r"`(\w+)`", labels))
        for ending in ("_bucket", "_sum", "_count") if name in HISTOGRAMS else ("",):
            found[name + ending] = own | ({"le"} if ending == "_bucket" else set())
    for sample in (sample for family in ours for sample in family.samples):
        assert sample.labels.keys() == found[sample.name]
    return found


def test_the_document_names_every_series_and_none_that_there_is_not(registry):
    named = set(SERIES.findall(DOCUMENT)) - {"dualform_client", "dualform_service"}
    if not any(name.startswith("process_") for name in registry):
        pytest.skip("the system has no /proc, so there are no series of the process")
    assert named <= {name for name, _, _ in ROWS} | registry.keys()
    assert {name for name in registry if name.startswith("process_")} <= named


def test_the_dashboard_uses_series_and_labels_that_there_are(registry):
    assert len(EXPRESSIONS) > 20
    for expression in [*EXPRESSIONS, "dualform_open_calls"]:
        names = SERIES.findall(expression)
        assert names, expression
        for name in names:
            assert name in registry or (name.startswith("process_") and not Path("/proc/self").exists()), expression
        labels = set().union(*(registry.get(name, set()) for name in names)) | {"instance"}
        grouped = ",".join(re.findall(r"by \(([^)]*)\)", expression)).replace(" ", "").split(",")
        used = set(filter(None, grouped)) | set(re.findall(r"[{,](\w+)[=!]", expression))
        assert used <= labels, expression
    shown = {name for expression in EXPRESSIONS for name in SERIES.findall(expression)}
    assert [name for name, _, _ in ROWS if not {name, name + "_bucket", name + "_sum"} & shown] == []


def test_the_line_that_is_shown_is_such_a_line(tmp_path):
    with open(tmp_path / "log", "wb") as file:
        log = JsonLog(file.fileno())
        log.call(CallRecord("TopK", "id", "peer"))
        log.close()
    (line,) = map(json.loads, (tmp_path / "log").read_text().splitlines())
    (shown,) = map(json.loads, re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL))
    assert {key: type(value) for key, value in shown.items()} == {key: type(value) for key, value in line.items()}
    keys = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", DOCUMENT.split("## Metrics")[0], re.MULTILINE)))
    assert [key for key in line if key != "kind"] == keys

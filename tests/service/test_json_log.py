"""A line of JSON for each call, whose writing holds nothing up."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from contextlib import contextmanager, suppress

import grpc
import pytest

from dualform.errors import NotFound, Unauthenticated
from dualform.questions import TopK, Vectors
from dualform_client import Client
from dualform_proto.calls import call_of
from dualform_service.call_record import NAME, JsonLog
from dualform_service.config import ServiceConfig
from dualform_service.server import Server
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
    question = TopK("fc", Vectors([[1.0, 2.0, 3.0]]), k=2)
    sent = len(call_of(question).encode_question(question).SerializeToString())
    with logged(tmp_path) as (log, lines), Server(engine, WITH_SQL, log) as server, Client(server.address) as client:
        client.ask(question)
        client.info()
        with pytest.raises(NotFound) as caught:
            client.slots([17])
        with grpc.insecure_channel(server.address) as channel:
            (answer,) = [channel.unary_unary("/dualform.v1.Memory/Info")(b"", metadata=[("x-request-id", "mine")])]
        engine.hold.clear()
        with Client(server.address, timeout=0.3) as hasty, pytest.raises(TimeoutError):
            hasty.sql("SELECT 1")
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
    # The statement was worked on until its caller had enough of it.
    assert lines[4]["working"] > 0.1


def test_no_line_has_a_secret_or_what_was_asked(engine, tmp_path):
    config = ServiceConfig("127.0.0.1:0", token="right-token", sql=True)
    with logged(tmp_path) as (log, lines), Server(engine, config, log) as server:
        with Client(server.address, token="right-token") as client:
            client.sql("SELECT 'my question'")
            client.topk("fc", "my query set", where="label = 'mine'")
        with Client(server.address, token="wrong-token") as client, pytest.raises(Unauthenticated):
            client.info()
    assert [line["outcome"] for line in lines] == ["ok", "ok", "unauthenticated"]
    said = (tmp_path / "log").read_text()
    assert not [word for word in ("right-token", "wrong-token", "my question", "my query set", "label") if word in said]


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
    text = []
    with open(end, "rb") as pipe:
        reader = threading.Thread(target=lambda: text.append(pipe.read()))
        reader.start()
        until(lambda: log.queue.empty())
        os.close(into)
        reader.join(60)
    said = [json.loads(line) for line in text[0].split(b"\n") if line.strip()]
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


class Faulty(logging.Formatter):
    def formatException(self, of) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("message", "arguments"), [("%d of %d", ("x", 2)), ("%s", (Unsayable(),)), (Unsayable(), ()), ("failed", ())]
)
def test_a_line_that_cannot_be_formatted_fails_nobody_and_says_where_it_is(tmp_path, message, arguments):
    raised = (KeyError, KeyError("x"), None) if message == "failed" else None
    with logged(tmp_path) as (log, lines):
        log.setFormatter(Faulty())
        log.handle(logging.LogRecord("x", logging.ERROR, "store.py", 17, message, arguments, raised))
        log.handle(logging.LogRecord("x", logging.ERROR, "store.py", 18, "whole", (), None))
    assert [line["message"] for line in lines] == ["store.py:17 logged a message that cannot be written", "whole"]

"""One of several callers has half of what there is at most, and asks no more often than it may."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from dualform.answers import QuerySet, Scan
from dualform.errors import Overloaded
from dualform.questions import QuerySetLookup
from dualform_client import Client
from dualform_proto.calls import call_of
from dualform_service.auth import READ, new_token
from dualform_service.scheduling import Asker
from tests.service.held_engine import outcomes, until
from tests.service.http2 import Connection
from tests.service.test_tokens import served, write


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def test_one_token_has_half_of_the_places_and_of_the_threads(engine, file):
    (one, line), (two, other) = new_token("alice", [READ]), new_token("bob", [READ])
    engine.hold.clear()
    many = np.ones((17, 3), np.float32)
    with (
        served(engine, write(file, line, other)) as server,
        Client(server.address, token=one) as alice,
        Client(server.address, token=two) as bob,
    ):
        threads = [threading.Thread(target=lambda: alice.topk("fc", many)) for _ in range(2)]
        for thread in threads:
            thread.start()
        heavy = server._handlers._resources.lanes.heavy
        until(lambda: len(engine.asked) == 1 and heavy.waiting == 1)
        with pytest.raises(Overloaded, match="already holds 2 large questions of this token, half of all"):
            alice.topk("fc", many)
        threads.append(threading.Thread(target=lambda: bob.topk("fc", many)))
        threads[-1].start()
        until(lambda: len(engine.asked) == 2)
        assert heavy.waiting == 1
        engine.hold.set()
        for thread in threads:
            thread.join(60)
    assert len(engine.asked) == 3


def test_a_caller_asks_so_many_questions_a_second(engine, file):
    (one, line), (two, other) = new_token("alice", [READ]), new_token("bob", [READ])
    with (
        served(engine, write(file, line, other), token_rate=0.001) as server,
        Client(server.address, token=one) as alice,
        Client(server.address, token=two) as bob,
    ):
        assert alice.info()
        with pytest.raises(Overloaded, match=r"may ask 0\.001 questions a second\. Ask again in .* s\."):
            alice.info()
        assert bob.info()


@pytest.mark.parametrize("tokens", [["named"], ["as-it-is-in-a-file"]])
def test_new_connections_give_no_caller_more_questions(engine, file, tokens):
    token, line = new_token("alice", [READ])
    token, line = (token, line) if tokens == ["named"] else ("a-token-as-it-is-in-a-file",) * 2
    with served(engine, write(file, line), token_rate=0.001) as server:
        with Client(server.address, token=token) as first:
            assert first.info()
        for _ in range(3):
            with Client(server.address, token=token) as another, pytest.raises(Overloaded):
                another.info()


def test_one_token_has_half_of_the_calls(engine, file):
    (one, line), (two, other) = new_token("alice", [READ]), new_token("bob", [READ])
    with (
        served(engine, write(file, line, other), calls=8) as server,
        Connection(server.address) as silent,
        Client(server.address, token=one) as alice,
        Client(server.address, token=two) as bob,
    ):
        for _ in range(8):  # that send headers and nothing more
            silent.call("/dualform.v1.Memory/Info", token=one)
        until(lambda: server._handlers._open_calls + sum(outcomes(server, "Info").values()) == 8)
        assert bob.info()
        with pytest.raises(Overloaded, match=r"holds 4 calls of this token, half of all"):
            alice.info()


def test_one_token_has_half_of_the_room_for_questions(engine, file):
    (one, line), (two, other) = new_token("alice", [READ]), new_token("bob", [READ])
    engine.hold.clear()
    few = 2**18
    with (
        served(engine, write(file, line, other), request_bytes=few) as server,
        Client(server.address, token=one) as alice,
        Client(server.address, token=two) as bob,
    ):
        room = server._handlers._messages
        assert room.take_now(room.free // 2 - 100, Asker("alice", True))
        with pytest.raises(Overloaded, match="has no room for another question"):
            alice.topk("fc", np.ones((17, 3), np.float32))
        engine.hold.set()
        assert bob.topk("fc", np.ones((17, 3), np.float32))


def test_one_token_has_half_of_the_room_for_answers_that_wait_to_be_read(engine, file, monkeypatch):
    (one, line), (two, other) = new_token("alice", [READ]), new_token("bob", [READ])
    large = QuerySet(
        "test", np.zeros(2**17, np.int64), np.zeros((2**17, 1), np.float32), None, Scan(7, 4, 3, "numpy", 0.25)
    )
    monkeypatch.setattr(engine, "ask", lambda *asked: large)
    question = QuerySetLookup("test", None)
    message = call_of(question).encode_question(question).SerializeToString()
    with served(engine, write(file, line, other), answer_bytes=2**21) as server, ExitStack() as readers:
        stuck = [readers.enter_context(Connection(server.address, 0)) for _ in range(8)]
        for connection in stuck:  # none of which reads its answer
            connection.message(connection.call("/dualform.v1.Memory/QuerySet", token=one), message)
        until(lambda: server._handlers._messages.free == 64 * server.config.request_bytes - 8 * len(message))
        with Client(server.address, token=two, timeout=5) as bob:
            for _ in range(4):
                assert bob.ask(question).name == "test"

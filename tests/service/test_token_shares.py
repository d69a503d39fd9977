"""One of several callers has half of what there is at most, and asks no more often than it may."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager

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
def two(engine, tmp_path):
    """A server of two callers: it, their clients, and the token of the first."""
    (alice, line), (bob, other) = new_token("alice", [READ]), new_token("bob", [READ])

    @contextmanager
    def serving(**settings):
        with (
            served(engine, write(tmp_path / "tokens", line, other), **settings) as server,
            Client(server.address, token=alice) as first,
            Client(server.address, token=bob) as second,
        ):
            yield server, first, second, alice

    return serving


def test_one_token_has_half_of_the_places_and_of_the_threads(engine, two):
    engine.hold.clear()
    many = np.ones((17, 3), np.float32)
    with two() as (server, alice, bob, _):
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


def test_a_caller_asks_so_many_questions_a_second(two):
    with two(token_rate=0.001) as (_, alice, bob, _):
        assert alice.info()
        with pytest.raises(Overloaded, match=r"may ask 0\.001 questions a second\. Ask again in .* s\."):
            alice.info()
        assert bob.info()


@pytest.mark.parametrize(
    ("token", "line"),
    [new_token("alice", [READ]), ("a-token-as-it-is-in-a-file",) * 2],
    ids=["a digest with a name", "a token as it is"],
)
def test_new_connections_give_no_caller_more_questions(engine, tmp_path, token, line):
    with served(engine, write(tmp_path / "tokens", line), token_rate=0.001) as server:
        with Client(server.address, token=token) as first:
            assert first.info()
        for _ in range(3):
            with Client(server.address, token=token) as another, pytest.raises(Overloaded):
                another.info()


def test_one_token_has_half_of_the_calls(two):
    with two(calls=8) as (server, alice, bob, token), Connection(server.address) as silent:
        for _ in range(8):  # that send headers and nothing more
            silent.call("/dualform.v1.Memory/Info", token=token)
        until(lambda: server._handlers._open_calls + sum(outcomes(server, "Info").values()) == 8)
        assert bob.info()
        with pytest.raises(Overloaded, match=r"holds 4 calls of this token, half of all"):
            alice.info()


def test_one_token_has_half_of_the_room_for_questions(engine, two):
    engine.hold.clear()
    with two(request_bytes=2**18) as (server, alice, bob, _):
        room = server._handlers._messages
        assert room.take_now(room.free // 2 - 100, Asker("alice", True))
        with pytest.raises(Overloaded, match="has no room for another question"):
            alice.topk("fc", np.ones((17, 3), np.float32))
        engine.hold.set()
        assert bob.topk("fc", np.ones((17, 3), np.float32))


def test_one_token_has_half_of_the_room_for_answers_that_wait_to_be_read(engine, two, monkeypatch):
    large = QuerySet(
        "test", np.zeros(2**17, np.int64), np.zeros((2**17, 1), np.float32), None, Scan(7, 4, 3, "numpy", 0.25)
    )
    monkeypatch.setattr(engine, "ask", lambda *asked: large)
    question = QuerySetLookup("test", None)
    message = call_of(question).encode_question(question).SerializeToString()
    with two(answer_bytes=2**21) as (server, _, bob, token), ExitStack() as readers:
        stuck = [readers.enter_context(Connection(server.address, 0)) for _ in range(8)]
        for connection in stuck:  # none of which reads its answer
            connection.message(connection.call("/dualform.v1.Memory/QuerySet", token=token), message)
        until(lambda: server._handlers._messages.free == 64 * server.config.request_bytes - 8 * len(message))
        for _ in range(4):
            assert bob.ask(question).name == "test"

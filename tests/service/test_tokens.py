"""Callers by their tokens: what a token file may say, who is let in, what each may ask and how much of the server."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dualform.answers import QuerySet, Scan
from dualform.errors import BadInput, Forbidden, Overloaded, Unauthenticated
from dualform.questions import QuerySetLookup
from dualform_client import Client
from dualform_client.client import is_serving
from dualform_proto.calls import call_of
from dualform_service import admission
from dualform_service.auth import ADMIN, READ, SQL, new_token, read_tokens
from dualform_service.scheduling import Asker
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.service.held_engine import outcomes, until
from tests.service.http2 import Connection

DIGEST = hashlib.sha256(b"secret").hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def write(file: Path, *lines: str, mode: int = 0o600) -> Path:
    file.write_text("".join(f"{line}\n" for line in lines))
    file.chmod(mode)
    return file


def served(engine, file: Path, **settings) -> Server:
    return Server(engine, ServiceConfig("127.0.0.1:0", token_file=file, sql=True, **settings))


def value(server, name, **labels):
    return server.metrics.registry.get_sample_value(f"dualform_{name}_total", labels)


def test_a_file_holds_digests_and_says_who_may_what(file):
    token, line = new_token("alice", [READ, SQL])
    tokens = read_tokens(write(file, "# ours", "", line, f"bob admin sha256:{DIGEST}", mode=0o644))
    assert token not in file.read_text()
    caller = tokens.caller([("authorization", f"Bearer {token}")])
    assert (caller.name, caller.scopes) == ("alice", {READ, SQL})
    assert tokens.caller([("authorization", b"bEaReR secret")]).name == "bob"
    assert len(tokens) > 1


@pytest.mark.parametrize(
    ("lines", "mode", "says"),
    [
        ([f"alice read sha256:{DIGEST}"], 0o622, "other users may write to it.*chmod go-w"),
        ([f"alice read sha256:{DIGEST}"], 0o660, "other users may write to it"),
        ([], 0o600, "it is empty.*dualform token NAME"),
        (["# nothing"], 0o600, "it is empty"),
        ([f"alice read sha256:{DIGEST}", "torn rea"], 0o600, "its line 2 is not of the form NAME SCOPES sha256:HEX"),
        ([f"alice read sha256:{DIGEST[:-1]}"], 0o600, "its line 1 is not of the form"),
        ([f"alice everything sha256:{DIGEST}"], 0o600, "its line 1 is not of the form.*read, sql, admin, metrics"),
        ([f"alice read sha256:{DIGEST}", f"alice sql sha256:{'0' * 64}"], 0o600, "its line 2 names alice again"),
        ([f"alice read sha256:{DIGEST}", f"bob sql sha256:{DIGEST}"], 0o600, "two of its lines have the same token"),
        (["a-token-as-it-is-in-a-file"], 0o640, "it holds a token in plain text, and other users may read it"),
        (["short"], 0o600, "its token has fewer than 16 characters"),
        (["not\x07printable-characters"], 0o600, "its token contains characters that a header cannot carry"),
    ],
)
def test_what_cannot_be_used_is_refused(file, lines, mode, says):
    with pytest.raises(BadInput, match=rf"^The token file .* cannot be used: .*{says}"):
        read_tokens(write(file, *lines, mode=mode))


def test_each_token_allows_what_its_scopes_say(engine, file):
    made = {scope: new_token(scope, [scope]) for scope in (READ, SQL, ADMIN)}
    listing = reflection_pb2.ServerReflectionRequest(list_services="")
    with (
        served(engine, write(file, *(line for _, line in made.values()))) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        for scope, (token, _) in made.items():
            with Client(server.address, token=token) as client:
                asks = {READ: client.info, SQL: lambda client=client: client.sql("SELECT 1"), ADMIN: client.verify}
                for needed, ask in asks.items():
                    if needed == scope:
                        assert ask()
                    else:
                        with pytest.raises(Forbidden, match=f"has the scope '{needed}'"):
                            ask()
            listed = reflection(iter([listing]), metadata=(("authorization", f"Bearer {token}"),), timeout=60)
            if scope == ADMIN:
                assert next(listed).list_services_response.service
            else:
                with pytest.raises(grpc.RpcError) as refused:
                    next(listed)
                assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert is_serving(server.address), "health asks for no token"
        until(lambda: outcomes(server, "Verify") == {"forbidden": 2, "ok": 1})


def test_a_file_that_changes_is_read_again_and_a_torn_one_is_not(engine, file, monkeypatch, caplog):
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.0)
    (first, line), (second, other) = new_token("alice", [READ]), new_token("bob", [READ])
    with (
        served(engine, write(file, line)) as server,
        Client(server.address, token=first) as alice,
        Client(server.address, token=second) as bob,
    ):
        assert alice.info()
        with pytest.raises(Unauthenticated):
            bob.info()
        write(file, line, other)
        assert bob.info()
        write(file, line, other[:40])
        assert bob.info(), "the former tokens stay"
        assert "the former tokens stay: The token file" in caplog.text
        write(file, other)
        with pytest.raises(Unauthenticated):
            alice.info()
        file.unlink()
        assert bob.info(), "the former tokens stay"


def test_ten_wrong_tokens_end_the_connection_and_a_right_one_is_let_in_whatever_came_before(engine, caplog):
    config = ServiceConfig("127.0.0.1:0", token="right")
    with Server(engine, config) as server, grpc.insecure_channel(server.address) as channel:
        info = channel.unary_unary("/dualform.v1.Memory/Info")

        def ask(token: str) -> grpc.StatusCode:
            try:
                info(b"", metadata=(("authorization", f"Bearer {token}"),), timeout=60, wait_for_ready=True)
            except grpc.RpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        for _ in range(3):
            assert [ask("wrong") for _ in range(9)] == [grpc.StatusCode.UNAUTHENTICATED] * 9
            assert ask("right") is grpc.StatusCode.OK
        for _ in range(10):
            assert ask("wrong") in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE)
        until(lambda: value(server, "connections_shut", reason="wrong tokens") == 1)
        assert ask("right") in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
        assert ask("right") is grpc.StatusCode.OK
        assert value(server, "wrong_tokens") == 37
    assert 1 <= caplog.text.count("calls with a missing or wrong token: ") < 37
    assert "wrong'" not in caplog.text


def test_tokens_are_no_arguments_of_any_command():
    """What stands in a command line everybody on the machine can read."""
    from dualform_client.cli.main import COMMANDS, dualform as group

    for name in COMMANDS:
        command = group.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        assert "--token" not in {flag for parameter in command.params for flag in parameter.opts}, name
    assert os.environ.get("DUALFORM_TOKEN") is None


def test_the_first_word_of_a_torn_line_is_no_token(engine, file, monkeypatch, caplog):
    """It is a caller's name, which is no secret, and a file of one word is a token of the older form."""
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.0)
    name = "a-name-of-many-letters"
    token, line = new_token(name, [READ])
    with (
        served(engine, write(file, line)) as server,
        Client(server.address, token=token) as right,
        Client(server.address, token=name) as guessed,
    ):
        assert right.info()
        write(file, name)
        with pytest.raises(Unauthenticated):
            guessed.verify()
        assert right.info(), "the former tokens stay"
    assert "the token file now holds a token in plain text" in caplog.text


def test_a_token_that_is_no_text_is_not_logged(engine, caplog, capfd):
    """gRPC's own log has a traceback with the whole of such metadata, three times a call."""
    with (
        Server(engine, ServiceConfig("127.0.0.1:0", token="right")) as server,
        Connection(server.address) as connection,
    ):
        connection.call("/dualform.v1.Memory/Info", token=b"the-token-itself\xed\xa0\x80")
        assert connection.frames()
        until(lambda: value(server, "wrong_tokens") == 1)
    said = "".join((caplog.text, *capfd.readouterr()))
    assert "calls with a missing or wrong token: 1," in said
    assert "the-token-itself" not in said
    assert "Traceback" not in said


def test_what_is_said_of_a_line_that_is_none_shows_nothing_of_it(file):
    """It may be a token that was written where its digest belongs."""
    token, line = new_token("alice", [READ])
    for lines in ([line, token], [line, f"bob read {token}"], [f"bob {token}"]):
        with pytest.raises(BadInput, match="is not of the form NAME SCOPES sha256:HEX") as caught:
            read_tokens(write(file, *lines))
        assert token not in f"{caught.value!r} {caught.value}"


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
    with two() as (server, alice, bob, _), ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(alice.topk, "fc", many) for _ in range(2)]
        heavy = server._handlers._resources.lanes.heavy
        until(lambda: len(engine.asked) == 1 and heavy.waiting == 1)
        with pytest.raises(Overloaded, match="already holds 2 large questions of this token, half of all"):
            alice.topk("fc", many)
        asking.append(pool.submit(bob.topk, "fc", many))
        until(lambda: len(engine.asked) == 2)
        assert heavy.waiting == 1
        engine.hold.set()
        for one in asking:
            one.result(60)
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
        assert room.take_now(Asker("alice", True), room.free // 2 - 100)
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
    message = call_of(question).question.encode(question).SerializeToString()
    with two(answer_bytes=2**21) as (server, _, bob, token), ExitStack() as readers:
        stuck = [readers.enter_context(Connection(server.address, 0)) for _ in range(8)]
        for connection in stuck:  # none of which reads its answer
            connection.message(connection.call("/dualform.v1.Memory/QuerySet", token=token), message)
        until(lambda: server._handlers._messages.free == 64 * server.config.request_bytes - 8 * len(message))
        for _ in range(4):
            assert bob.ask(question).name == "test"

"""Callers by their tokens: what a token file may say, who is let in, what each may ask and how much of the server."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dualform.errors import BadInput, Forbidden, Unauthenticated
from dualform_client import Client
from dualform_client.connection import is_serving
from dualform_service import gate
from dualform_service.auth import ADMIN, READ, SQL, new_token, read_tokens
from dualform_service.config import ServiceConfig
from dualform_service.server import Server
from tests.service.held_engine import until
from tests.service.http2 import Connection

QUERY = np.ones((1, 3), np.float32)
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
    assert tokens.several


def test_tokens_that_are_made_are_of_32_random_bytes():
    made = {new_token("alice", [READ])[0] for _ in range(50)}
    assert len(made) == 50
    assert {len(token) for token in made} == {43}


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


def test_a_file_that_is_not_there_is_refused_before_anything_is_served(engine, file):
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        served(engine, file)


def test_a_token_as_it_is_may_stand_in_a_file_of_its_owner(engine, file):
    with served(engine, write(file, "a-token-as-it-is-in-a-file")) as server:
        with Client(server.address, token="a-token-as-it-is-in-a-file") as client:
            assert client.verify()
        with Client(server.address, token="another") as client, pytest.raises(Unauthenticated):
            client.info()


def test_each_token_allows_what_its_scopes_say(engine, file):
    made = {scope: new_token(scope, [scope]) for scope in (READ, SQL, ADMIN)}
    with served(engine, write(file, *(line for _, line in made.values()))) as server:
        for scope, (token, _) in made.items():
            with Client(server.address, token=token) as client:
                asks = {READ: client.info, SQL: lambda client=client: client.sql("SELECT 1"), ADMIN: client.verify}
                for needed, ask in asks.items():
                    if needed == scope:
                        assert ask()
                    else:
                        with pytest.raises(Forbidden, match=f"has the scope '{needed}'"):
                            ask()
        assert is_serving(server.address), "health asks for no token"


def test_reflection_is_an_admins(engine, file):
    made = {scope: new_token(scope, [scope]) for scope in (READ, ADMIN)}
    with (
        served(engine, write(file, *(line for _, line in made.values()))) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        question = reflection_pb2.ServerReflectionRequest(list_services="")

        def ask(scope: str):
            metadata = (("authorization", f"Bearer {made[scope][0]}"),)
            return next(stub.ServerReflectionInfo(iter([question]), metadata=metadata, timeout=60))

        assert ask(ADMIN).list_services_response.service
        with pytest.raises(grpc.RpcError) as refused:
            ask(READ)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_a_file_that_changes_is_read_again_and_a_torn_one_is_not(engine, file, monkeypatch, caplog):
    monkeypatch.setattr(gate, "LOOK_SECONDS", 0.0)
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


def test_a_token_and_a_file_of_tokens_are_one_too_many(file):
    with pytest.raises(BadInput, match="token and token_file cannot be combined"):
        ServiceConfig(token="t", token_file=file)


def test_an_address_that_others_reach_is_served_with_a_token_file(file):
    ServiceConfig("0.0.0.0:1", token_file=file, certificate=Path("c"), key=Path("k"))
    with pytest.raises(BadInput, match="needs both TLS and a token"):
        ServiceConfig("0.0.0.0:1", token_file=file)


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
    monkeypatch.setattr(gate, "LOOK_SECONDS", 0.0)
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


def test_who_was_not_allowed_is_noted(engine, file):
    (token, line), noted = new_token("alice", [READ]), []
    with served(engine, write(file, line)) as server, Client(server.address, token=token) as alice:
        server._handlers._observers = (*server._handlers._observers, noted.append)
        with pytest.raises(Forbidden):
            alice.verify()
        until(lambda: noted)
    assert (noted[0].caller, noted[0].outcome) == ("alice", "forbidden")


def test_connections_with_wrong_tokens_fill_no_log(engine, caplog):
    with Server(engine, ServiceConfig("127.0.0.1:0", token="right")) as server:
        for _ in range(30):
            with Connection(server.address) as connection:
                for _ in range(10):
                    connection.call("/dualform.v1.Memory/Info", token="wrong")
                while connection.frames():
                    pass
        until(lambda: value(server, "connections_shut", reason="wrong tokens") == 30)
        assert value(server, "wrong_tokens") == 300
        assert len(caplog.records) < 15  # one a second, or so


@pytest.mark.parametrize("spoilt", [b"\xe9", b"\xed\xa0\x80", b"\xff" * 5])
def test_a_token_that_is_no_text_is_not_logged(engine, caplog, capfd, spoilt):
    """gRPC's own log has a traceback with the whole of such metadata, three times a call."""
    with (
        Server(engine, ServiceConfig("127.0.0.1:0", token="right")) as server,
        Connection(server.address) as connection,
    ):
        connection.call("/dualform.v1.Memory/Info", token=b"the-token-itself" + spoilt)
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

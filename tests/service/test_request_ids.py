"""Every answer and refusal has the id of its request, and so has what the server logs of it."""

from __future__ import annotations

import re

import grpc
import pytest

from dualform.errors import BadMask, DualformError, NotFound, TimedOut, Unauthenticated
from dualform_client import AsyncClient, Client
from dualform_proto.metadata import REQUEST_ID
from dualform_service.config import ServiceConfig
from dualform_service.server import Server

INFO, CHECK = "/dualform.v1.Memory/Info", "/grpc.health.v1.Health/Check"
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


def test_of_several_the_first_that_may_be_is_taken(server):
    assert told(server, ((REQUEST_ID, "not this"), (REQUEST_ID, "first"), (REQUEST_ID, "second"))) == ["first"]


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


async def test_errors_of_both_clients_have_it(engine, server):
    engine.error = BadMask("no.", field="where")
    async with AsyncClient(server.address) as client:
        with pytest.raises(BadMask) as caught:
            await client.info()
    assert MADE.fullmatch(caught.value.request_id)


def test_a_deadline_that_passes_at_the_callers_has_the_id_that_was_sent(engine, server):
    engine.hold.clear()
    with Client(server.address, timeout=0.2) as client, pytest.raises(TimedOut) as caught:
        client.topk("fc", "test")
    assert MADE.fullmatch(caught.value.request_id)


def test_what_no_server_said_has_none(engine):
    engine.error = NotFound("none.")
    with pytest.raises(NotFound) as caught:
        engine.info()
    assert caught.value.request_id == ""

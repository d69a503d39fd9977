"""How a server starts, bounds what it takes on and what it answers, stops work, and drains."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from dualform.errors import (
    BadInput,
    BadMask,
    Cancelled,
    Forbidden,
    Overloaded,
    ServiceError,
    TimedOut,
    Unavailable,
)
from dualform.questions import GroupSum, Vectors
from dualform.store.files.ram_budget import resident_bytes
from dualform_client import Client
from dualform_client.client import is_serving
from dualform_proto.calls import CALLS
from dualform_proto.v1.dualform_pb2_grpc import MemoryStub
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.query import arrays
from tests.service.held_engine import outcomes, until


@pytest.mark.parametrize(("option", "says"), [("address", "Choose another"), ("metrics", ".* --metrics")])
def test_a_port_in_use_is_an_error_that_names_it_and_leaves_nothing_open(engine, option, says):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        server = Server(engine, ServiceConfig(**{"address": "127.0.0.1:0", option: address}))
        with pytest.raises(ServiceError, match=rf"^Cannot listen on {address}: Address already in use\. ?{says}"):
            server.start()
    if option == "metrics":
        with pytest.raises(ConnectionError):
            socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])), 60).close()


def test_a_port_can_be_taken_again_right_after(engine):
    with Server(engine) as first, Client(first.address) as client:
        client.info()
    with Server(engine, first.address) as second, Client(second.address) as client:
        client.info()


def test_more_questions_than_places_are_refused_at_once(engine):
    engine.hold.clear()
    with (
        Server(engine, ServiceConfig("127.0.0.1:0", max_concurrent=2, sql=True)) as server,
        Client(server.address) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        running = [pool.submit(client.sql, "SELECT 1") for _ in range(2)]
        for _ in running:
            assert engine.waiting.acquire(timeout=60)
        with pytest.raises(Overloaded, match=r"already holds 2 large questions.*larger --max-concurrent"):
            client.sql("SELECT 1")
        assert is_serving(server.address)
        engine.hold.set()
        assert [one.result(60).rows for one in running] == [4, 4]
        assert client.sql("SELECT 1").rows == 4
    assert outcomes(server, "Sql") == {"ok": 3, "overloaded": 1}


@pytest.mark.parametrize("ask", ["topk", "sql"])
def test_the_callers_deadline_stops_the_work(engine, server, ask):
    engine.hold.clear()
    for seconds in (0.2, 2, 20):  # on a busy machine the first may be over before the engine is asked
        with Client(server.address, timeout=seconds) as client:
            asks = {"topk": lambda: client.topk("fc", "test"), "sql": lambda: client.sql("S")}
            with pytest.raises(TimedOut):
                asks[ask]()
        if engine.waiting.acquire(blocking=False):
            break
    assert engine.cancelled.wait(60)


def test_the_servers_own_deadline_stops_the_work(engine):
    engine.hold.clear()
    config = ServiceConfig("127.0.0.1:0", deadline=0.2)
    with Server(engine, config) as server, Client(server.address, timeout=None) as client:
        until(lambda: _timed_out(client) and engine.waiting.acquire(blocking=False))
        assert engine.cancelled.wait(60)


def _timed_out(client):
    with pytest.raises(TimedOut, match=r"^The answer was not ready within 0\.2 s\. .*longer --deadline"):
        client.topk("fc", "test")
    return True


def test_an_observer_that_raises_fails_no_call(engine, caplog):
    told = []
    with Server(engine, observers=[lambda record: 1 / 0, told.append]) as server, Client(server.address) as client:
        assert client.info().snapshot == 7
        until(lambda: told)
    assert "ZeroDivisionError" in caplog.text


def test_a_caller_that_goes_away_stops_the_work(engine, server):
    engine.hold.clear()
    with ThreadPoolExecutor(1) as pool, Client(server.address) as client:
        asking = pool.submit(client.topk, "fc", "test")
        assert engine.waiting.acquire(timeout=60)
        client.close()
        assert engine.cancelled.wait(60)
        assert isinstance(asking.exception(60), Cancelled)


def test_a_callers_own_limit_is_no_fault_in_the_log(caplog):
    slots = 120_000
    memory = arrays.engine(arrays.memory({"fc": np.ones((slots, 1), np.float32)}, {"sample": list(range(slots))}))
    question = GroupSum("fc", Vectors(np.ones((4, 1), np.float32)), by=("sample",))
    request = CALLS[GroupSum].question.encode(question)
    with Server(memory) as server, grpc.insecure_channel(server.address) as channel:
        for _ in range(2):
            with pytest.raises(grpc.RpcError, match="Received message larger than max"):
                MemoryStub(channel).GroupSum(request)
        until(lambda: sum(outcomes(server, "GroupSum").values()) == 2)
        assert outcomes(server, "GroupSum").keys() <= {"cancelled", "ok"}  # or it was sent before they knew
    assert {record.levelname for record in caplog.records} <= {"WARNING"}
    assert "Traceback" not in caplog.text


def test_a_question_that_is_too_large_for_the_client_is_never_sent(client, engine):
    with pytest.raises(BadInput, match=r"The question takes 68\.\d MiB, and a message holds at most 64\.0 MiB"):
        client.topk("fc", np.zeros((6, 3_000_000), np.float32))
    assert engine.asked == []


def test_a_question_that_is_too_large_for_the_server_is_refused_by_name(engine):
    config = ServiceConfig("127.0.0.1:0", request_bytes=1000)
    with (
        Server(engine, config) as server,
        Client(server.address) as client,
        pytest.raises(BadInput, match=r"A message to or from 127.*is too large"),
    ):
        client.topk("fc", np.zeros((1, 3000), np.float32))


def test_messages_of_many_megabytes_pass(engine):
    config = ServiceConfig("127.0.0.1:0", request_bytes=32 * 2**20)
    with Server(engine, config) as server, Client(server.address) as client:
        client.topk("fc", np.ones((4, 1_500_000), np.float32))
    assert engine.asked[-1].queries.rows.shape == (4, 1_500_000)


def test_what_comes_while_a_server_closes_is_sent_elsewhere(engine):
    with Server(engine) as server, Client(server.address) as client:
        assert client.info().steps
        server._closing.close()
        with pytest.raises(Unavailable, match=r"^The server is closing\. Ask another one, or this one once it has"):
            client.info()
        assert is_serving(server.address)
    assert outcomes(server, "Info") == {"ok": 1, "unavailable": 1}


def test_draining_stops_what_outlasts_its_grace(engine):
    engine.hold.clear()
    server = Server(engine)
    server.start()
    with Client(server.address) as client, ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.topk, "fc", "test")
        assert engine.waiting.acquire(timeout=60)
        server.stop(grace=0.1)
        assert engine.cancelled.wait(60)
        assert isinstance(running.exception(60), ServiceError)
    assert outcomes(server, "TopK") == {"unavailable": 1}, "its caller had not left"


@pytest.mark.parametrize("recording", [True, False])
def test_a_training_is_followed_while_it_runs_and_after_for_it_may_be_resumed(engine, recording):
    engine.contents = replace(engine.contents, recording=recording)
    with Server(engine, ServiceConfig("127.0.0.1:0", follow=0.01)):
        for _ in range(2):
            assert engine.refreshed.wait(60)
            engine.refreshed.clear()


def test_sql_is_answered_only_where_the_server_was_told_to(engine):
    with (
        Server(engine) as server,
        Client(server.address) as client,
        pytest.raises(Forbidden, match=r"^This server does not answer SQL\. Start it with --sql"),
    ):
        client.sql("SELECT 1")
    assert engine.asked == []


SLOTS, WIDTH = 20_000, 4
QUERIES = np.ones((13_000, WIDTH), np.float32)


@pytest.fixture(scope="module")
def bounded() -> Iterator[Client]:
    keys = np.random.default_rng(0).standard_normal((SLOTS, WIDTH)).astype(np.float32)
    memory = arrays.engine(arrays.memory({"fc": keys}, {"label": [slot % 3 for slot in range(SLOTS)]}))
    with Server(memory) as server, Client(server.address) as client:
        client.topk("fc", QUERIES[:1])
        yield client


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (lambda client: client.group_sum("fc", QUERIES, by="slot"), "by=slot makes more than"),
        (lambda client: client.topk("fc", QUERIES, by="slot"), "by=slot makes more than"),
        (lambda client: client.topk("fc", QUERIES, k=SLOTS), "The answer would take 2975.6 MiB"),
    ],
    ids=["sums by slot", "best by slot", "all slots"],
)
def test_what_does_not_fit_takes_no_room(bounded, asked, says):
    before = resident_bytes()
    with pytest.raises(BadInput, match=says):
        asked(bounded)
    assert resident_bytes() - before < 200e6  # gigabytes, where it was worked on


def test_masks_are_bounded_on_a_server(bounded):
    with pytest.raises(BadMask, match="where must be at most 65,536 bytes long"):
        bounded.topk("fc", QUERIES[:1], where="label IN (" + "1, " * 30_000 + "1)")
    with pytest.raises(BadMask, match="where must have at most 16 patterns, not 17"):
        bounded.topk("fc", QUERIES[:1], where=" OR ".join(["dataset LIKE 'm%'"] * 17))
    listed = ", ".join(map(str, range(9_000)))
    assert bounded.topk("fc", QUERIES[:1], where=f"slot IN ({listed})").scan.slots_matching == 9_000


METHODS = {
    "dualform.v1.Memory": {
        "Info",
        "TopK",
        "GroupSum",
        "GradientTopK",
        "GradientSum",
        "Output",
        "Contributions",
        "Placebo",
        "Weights",
        "Cancellation",
        "Slots",
        "Sql",
        "QuerySet",
        "Verify",
        "Distribution",
        "Previews",
    },
    "grpc.health.v1.Health": {"Check", "List", "Watch"},
    "grpc.reflection.v1.ServerReflection": {"ServerReflectionInfo"},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo"},
}


def reflected(address: str, version: str, **asked: str) -> reflection_pb2.ServerReflectionResponse:
    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        (answer,) = call(iter([reflection_pb2.ServerReflectionRequest(**asked)]), timeout=60)
    return answer


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_every_service_that_is_listed_is_described(server, version):
    listed = reflected(server.address, version, list_services="").list_services_response.service
    assert {service.name for service in listed} == METHODS.keys()
    for name, methods in METHODS.items():
        answer = reflected(server.address, version, file_containing_symbol=name)
        files = map(
            descriptor_pb2.FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto
        )
        found = {f"{file.package}.{service.name}": service for file in files for service in file.service}
        assert name in found, answer.error_response
        assert {method.name for method in found[name].method} == methods


def test_health_lists_what_it_knows_of_but_no_memories_by_their_names(engine):
    with Server({"secret": engine, "other": engine}) as server, grpc.insecure_channel(server.address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).List(health_pb2.HealthListRequest(), timeout=60)
    assert answer.statuses.keys() == {"", "dualform.v1.Memory", "grpc.health.v1.Health"}
    assert {own.status for own in answer.statuses.values()} == {health_pb2.HealthCheckResponse.SERVING}

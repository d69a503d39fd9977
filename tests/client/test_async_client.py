from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from dualform.errors import ServiceError
from dualform_client import AsyncClient
from dualform_service.server import Server
from tests.service.canned import Canned


@pytest.fixture
def engine() -> Canned:
    return Canned()


@pytest.fixture
def server(engine: Canned) -> Iterator[Server]:
    with Server(engine, "127.0.0.1:0") as server:
        yield server


async def test_asks_several_questions_at_once(engine, server):
    engine.hold.clear()
    async with AsyncClient(server.address) as client:
        asked = [asyncio.create_task(client.topk("fc", "test")) for _ in range(2)]
        for _ in asked:
            assert await asyncio.to_thread(engine.waiting.acquire, timeout=60)
        engine.hold.set()
        assert [hits.ids.tolist() for hits in await asyncio.gather(*asked)] == [[1, 3]] * 2


async def test_cancelling_a_question_stops_the_servers_work(engine, server):
    engine.hold.clear()
    async with AsyncClient(server.address) as client:
        asked = asyncio.create_task(client.topk("fc", "test"))
        assert await asyncio.to_thread(engine.waiting.acquire, timeout=60)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert await asyncio.to_thread(engine.cancelled.wait, 60)


def test_can_be_made_before_there_is_an_event_loop(server):
    client = AsyncClient(server.address)

    async def ask() -> int:
        async with client:
            return (await client.info()).snapshot

    assert asyncio.run(ask()) == 7
    assert asyncio.run(ask()) == 7, "and be opened again in another loop"


def test_is_asked_again_in_another_loop_once_the_first_has_closed(server):
    client = AsyncClient(server.address)
    for _ in range(3):
        assert asyncio.run(client.topk("fc", "test")).ids.tolist() == [1, 3]
    asyncio.run(client.close())
    asyncio.run(client.info())
    asyncio.run(client.close())
    assert asyncio.run(client.info()).snapshot == 7
    asyncio.run(client.close())


async def test_another_loop_is_named_while_the_first_is_open(server):
    async with AsyncClient(server.address) as client:
        await client.info()
        with pytest.raises(ServiceError, match=r"belongs to another event loop\. Make an AsyncClient for each"):
            await asyncio.to_thread(asyncio.run, client.info())
        assert (await client.info()).snapshot == 7


async def test_closing_what_was_never_opened_does_nothing():
    threads = threading.active_count()
    await AsyncClient("127.0.0.1:1").close()
    assert threading.active_count() == threads

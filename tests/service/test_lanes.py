"""What takes long holds up nothing that does not: look-ups and light scans have threads of their own."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from dualform.errors import Overloaded
from dualform.kernels import workers
from dualform.query.where.expression import connect, interruptible
from dualform_client import Client
from dualform_service import scheduling
from dualform_service.config import ServiceConfig
from dualform_service.scheduling import HEAVY_NICE, Asker, Lane, Lanes, ScanCosts
from dualform_service.server import Server
from tests.service.canned import Canned
from tests.service.held_engine import until

QUERY = np.ones((1, 3), np.float32)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 60)

    asyncio.run(bounded())


class Selective(Canned):
    """Holds masked questions only, which stand in `asked`."""

    def _begin(self, asked: Any, cancelled: Callable[[], bool] | None = None) -> None:
        if getattr(asked, "where", None) is not None:
            super()._begin(asked, cancelled)


def test_a_flood_of_masked_questions_holds_up_neither_light_ones_nor_look_ups():
    engine = Selective()
    with (
        Server(engine, ServiceConfig("127.0.0.1:0", max_small=24)) as server,
        Client(server.address, timeout=60) as client,
        Client(server.address, timeout=60) as flooding,
        ThreadPoolExecutor(24) as pool,
    ):
        client.topk("fc", QUERY)  # its kind is known to be light from here on
        engine.hold.clear()
        flood = [pool.submit(flooding.output, "fc", QUERY, f"slot <> {i}") for i in range(12)]
        flood += [pool.submit(flooding.topk, "fc", QUERY, where=f"slot <> {i}") for i in range(12)]
        until(lambda: server.memories.waiting() == 24 - 3)
        assert client.topk("fc", QUERY).ids.tolist() == [1, 3]
        assert client.info().snapshot == 7
        assert client.slots([1]).rows == 1
        with pytest.raises(Overloaded, match="already holds 24 small questions"):
            client.topk("fc", QUERY, where="slot <> 99")
        assert len([one for one in engine.asked if one != "info"]) == 3, "two outputs, and one of the others"
        engine.hold.set()
        for one in flood:
            one.result(60)


def test_who_asks_much_waits_for_itself():
    async def test() -> None:
        lane, go, order = Lane("test", 1), threading.Event(), list[str]()
        held = asyncio.create_task(lane.run(lambda: go.wait(60), Asker("a")))
        await asyncio.sleep(0)
        asked = [
            asyncio.create_task(lane.run(lambda name=name: order.append(name), Asker(name[0])))
            for name in ("a1", "a2", "a3", "b1")
        ]
        await asyncio.sleep(0)
        assert lane.waiting == 4
        go.set()
        await asyncio.gather(held, *asked)
        assert order == ["a1", "b1", "a2", "a3"]
        lane.close()

    run(test)


def test_work_whose_caller_is_gone_keeps_its_thread_until_it_ends():
    async def test() -> None:
        lane, go = Lane("test", 1), threading.Event()
        left = asyncio.create_task(lane.run(lambda: go.wait(60), Asker("a")))
        await asyncio.sleep(0.01)
        left.cancel()
        other = asyncio.create_task(lane.run(lambda: 7, Asker("b")))
        await asyncio.sleep(0.05)
        assert lane.waiting == 1
        go.set()
        assert await other == 7
        lane.close()

    run(test)


def test_heavy_work_stands_back_on_the_processor():
    async def test() -> None:
        lanes = Lanes()

        def nice() -> int:
            return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

        own = nice()
        assert await lanes.heavy.run(nice, Asker("a")) == min(19, own + HEAVY_NICE)
        for lane in (lanes.light, lanes.lookups, lanes.untried, lanes.messages):
            assert await lane.run(nice, Asker("a")) == own
        lanes.close()

    run(test)


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError])
def test_heavy_work_is_done_where_a_thread_cannot_stand_back(monkeypatch, error):
    """Beyond Linux a thread has no priority of its own, and a container may forbid it."""

    def refused(*_: int) -> None:
        raise error

    monkeypatch.setattr(os, "setpriority", refused)

    async def test() -> None:
        lanes = Lanes()
        assert await lanes.heavy.run(lambda: 7, Asker("a")) == 7
        lanes.close()

    run(test)


def test_nobody_has_all_threads_of_first_scans():
    async def test() -> None:
        lanes, go = Lanes(), threading.Event()
        held = [asyncio.create_task(lanes.untried.run(lambda: go.wait(60), Asker("a", half=True))) for _ in range(2)]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(lanes.untried.run(lambda: 7, Asker("b", half=True)), 10) == 7
        assert lanes.untried.waiting == 1
        go.set()
        await asyncio.gather(*held)
        lanes.close()

    run(test)


def test_threads_that_all_lanes_share_do_not_stand_back():
    async def test() -> None:
        lanes, nices = Lanes(), dict[int, int]()
        together = threading.Barrier(2)

        def work(worker: int, _: int) -> None:
            nices[worker] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            together.wait(60)

        def nice() -> int:
            return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

        await lanes.heavy.run(lambda: workers.divide(range(2), work, workers=2), Asker("a"))
        assert nices == {0: min(19, nice() + HEAVY_NICE), 1: nice()}
        lanes.close()

    workers._pool.cache_clear()
    run(test)


def test_what_a_scan_took_is_what_the_next_of_its_kind_is_taken_to_take(monkeypatch):
    seconds = iter([0.0, 0.9, 0.0, 1.1, 0.0, 0.1])
    monkeypatch.setattr(scheduling.time, "thread_time", lambda: next(seconds))
    costs = ScanCosts()
    assert costs.light("kind") is None
    for light in (True, False, True):
        with costs.noted("kind"):
            pass
        assert costs.light("kind") is light
    assert costs.light("other") is None


def test_a_scan_that_is_cut_short_shows_only_that_it_takes_much(monkeypatch):
    seconds = iter([0.0, 0.1, 0.0, 1.1, 0.0, 0.1])
    monkeypatch.setattr(scheduling.time, "thread_time", lambda: next(seconds))
    costs = ScanCosts()
    for light in (None, False, False):
        with pytest.raises(ZeroDivisionError), costs.noted("kind"):
            raise ZeroDivisionError
        assert costs.light("kind") is light


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_mask_takes_on_its_own_thread_counts(monkeypatch, fails):
    monkeypatch.setattr(scheduling, "LIGHT_SECONDS", 0.05)
    costs = ScanCosts()

    def mask() -> None:
        while time.thread_time() < 0.2:
            pass
        if fails:
            raise ZeroDivisionError

    with connect(1) as connection, suppress(ZeroDivisionError), costs.noted("slow mask"):
        interruptible(connection, mask, lambda: None)
    with costs.noted("its thread's next scan"):
        pass
    assert costs.light("slow mask") is False
    assert costs.light("its thread's next scan") is True

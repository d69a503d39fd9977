"""What takes long holds up nothing that does not, whoever comes takes turns, and room that is given up comes back."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dualform.answers import Hits, QuerySet, Scan
from dualform.errors import BadInput, Overloaded
from dualform.kernels import workers
from dualform.query.attended import attended
from dualform.questions import QuerySetLookup, TopK, Vectors
from dualform_client import Client
from dualform_proto.calls import call_of
from dualform_service import scheduling
from dualform_service.admission import MessageReads
from dualform_service.scheduling import Asker, Deadline, FairSemaphore, Lane, Lanes, ScanCosts
from dualform_service.server import Server
from dualform_service.servicer import UNREAD, EncodedAnswer, MemoryServicer, Resources
from dualform_service.settings import ServiceConfig
from tests.service.canned import Canned
from tests.service.held_engine import until

QUERY = np.ones((1, 3), np.float32)


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


async def test_who_asks_much_waits_for_itself():
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


async def test_work_whose_caller_is_gone_keeps_its_thread_until_it_ends():
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


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError])
async def test_heavy_work_is_done_where_a_thread_cannot_stand_back(monkeypatch, error):
    """Beyond Linux a thread has no priority of its own, and a container may forbid it."""

    def refused(*_: int) -> None:
        raise error

    monkeypatch.setattr(os, "setpriority", refused)
    lanes = Lanes()
    assert await lanes.heavy.run(lambda: 7, Asker("a")) == 7
    lanes.close()


async def test_nobody_has_all_threads_of_first_scans():
    lanes, go = Lanes(), threading.Event()
    held = [asyncio.create_task(lanes.untried.run(lambda: go.wait(60), Asker("a", half=True))) for _ in range(2)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(lanes.untried.run(lambda: 7, Asker("b", half=True)), 10) == 7
    assert lanes.untried.waiting == 1
    go.set()
    await asyncio.gather(*held)
    lanes.close()


async def test_heavy_work_stands_back_on_the_processor_but_for_threads_that_all_lanes_share():
    workers._pool.cache_clear()
    lanes, nices, together = Lanes(), dict[int, int](), threading.Barrier(2)

    def nice() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def work(worker: int, _: int) -> None:
        nices[worker] = nice()
        together.wait(60)

    own = nice()
    for lane in (lanes.light, lanes.lookups, lanes.untried, lanes.messages):
        assert await lane.run(nice, Asker("a")) == own
    await lanes.heavy.run(lambda: workers.divide(range(2), work, workers=2), Asker("a"))
    assert nices == {0: min(19, own + 15), 1: own}
    lanes.close()


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_scan_took_is_what_the_next_of_its_kind_is_taken_to_take(monkeypatch, fails):
    """One that is cut short shows only that it takes much."""
    seconds = iter([0.0, 0.9, 0.0, 1.1, 0.0, 0.1])
    monkeypatch.setattr(scheduling.time, "thread_time", lambda: next(seconds))
    costs = ScanCosts()
    for light in (None, False, False) if fails else (True, False, True):
        with suppress(ZeroDivisionError), costs.noted("kind"):
            assert not fails or 1 / 0
        assert costs.light("kind") is light
    assert costs.light("other") is None


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_mask_takes_on_its_own_thread_counts(monkeypatch, fails):
    monkeypatch.setattr(scheduling, "LIGHT_SECONDS", 0.05)
    costs = ScanCosts()

    def mask() -> None:
        while time.thread_time() < 0.2:
            pass
        if fails:
            raise ZeroDivisionError

    with suppress(ZeroDivisionError), costs.noted("slow mask"):
        attended(mask, lambda: None, lambda: None)
    with costs.noted("its thread's next scan"):
        pass
    assert costs.light("slow mask") is False
    assert costs.light("its thread's next scan") is True


async def read(reads: MessageReads, connection: str, message: Awaitable[object], seconds: float = 60.0) -> bool:
    """Whether it came."""
    try:
        async with asyncio.timeout(seconds) as limit, reads.one(connection, limit):
            await message
            return True
    except TimeoutError:
        return False


async def test_what_takes_long_goes_on_while_nobody_waits_and_ends_once_somebody_does():
    reads, came = MessageReads(2, 0.05), asyncio.Event()
    slow = [asyncio.create_task(read(reads, "a", came.wait())) for _ in range(2)]
    await asyncio.sleep(0.2)
    assert not any(task.done() for task in slow)
    assert await read(reads, "b", asyncio.sleep(0))
    assert await slow[0] is False
    assert not slow[1].done()
    came.set()
    assert await slow[1]


async def test_connections_take_turns():
    reads, order = MessageReads(1, 60.0), list[str]()
    first = asyncio.Event()

    async def one(name: str) -> None:
        await read(reads, name[0], noted(name))

    async def noted(name: str) -> None:
        order.append(name)

    held = asyncio.create_task(read(reads, "a", first.wait()))
    await asyncio.sleep(0)
    tasks = [asyncio.create_task(one(name)) for name in ("a1", "a2", "a3", "b1", "b2", "c1")]
    await asyncio.sleep(0.01)
    first.set()
    await asyncio.gather(held, *tasks)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_a_read_that_nobody_waits_for_any_more_is_not_cancelled_but_ends_with_its_call():
    """gRPC lets go of what it set aside for a read as that ends, and never for one that is cancelled."""

    class Context:
        def __init__(self) -> None:
            self.call_ends, self.became = asyncio.Event(), ""

        def peer(self) -> str:
            return "a"

        async def read(self) -> object:
            try:
                await self.call_ends.wait()
            except asyncio.CancelledError:
                self.became = "cancelled"
                raise
            self.became = "ended"
            raise RuntimeError("the call is over")

    reads, late, left = MessageReads(2, 60.0), Context(), Context()
    told = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, said: told.append(said))
    with pytest.raises(TimeoutError):
        await reads.read(late, 0.01)
    leaving = asyncio.create_task(reads.read(left, 60.0))
    await asyncio.sleep(0.01)
    leaving.cancel()
    await asyncio.sleep(0)
    assert (late.became, left.became, reads._turns.free) == ("", "", 2)
    for context in (late, left):
        context.call_ends.set()
    await asyncio.sleep(0.01)
    assert (late.became, left.became) == ("ended", "ended")
    gc.collect()
    assert told == []


@settings(deadline=None, max_examples=12)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.sampled_from([0.0, 0.002, 0.01, 9.0]), st.sampled_from([0.001, 0.005, 60])
        ),
        max_size=30,
    ),
    st.integers(1, 4),
)
async def test_whatever_comes_or_is_given_up_no_place_is_lost_and_none_is_taken_twice(calls, most):
    reads, now, highest = MessageReads(most, 0.003), 0, 0

    async def message(seconds: float) -> None:
        nonlocal now, highest
        now += 1
        highest = max(highest, now)
        try:
            await asyncio.sleep(seconds)
        finally:
            now -= 1

    async def one(connection: str, seconds: float, patience: float) -> None:
        coming = message(seconds)
        try:
            await asyncio.wait_for(read(reads, connection, coming, 0.05), patience)
        except TimeoutError:
            pass
        finally:
            coming.close()

    await asyncio.gather(*(one(*call) for call in calls))
    assert (now, reads._turns.free, len(reads._reading), reads._turns.waiting) == (0, most, 0, 0)
    assert highest <= most


ONE = Asker("one")


async def test_a_large_one_is_not_passed_over_for_ever_by_small_ones():
    room = FairSemaphore(10)
    await room.take(ONE, 6)
    large = asyncio.create_task(room.take(ONE, 8))
    await asyncio.sleep(0)
    assert not room.take_now(ONE, 2)
    room.give_back(ONE, 6)
    await large


CALLS = st.lists(
    st.tuples(
        st.integers(1, 10),
        st.sampled_from("ab"),
        st.sampled_from([0.0, 0.001, 0.004]),
        st.sampled_from([0.001, 0.005, 60]),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=15)
@given(CALLS, st.booleans())
async def test_no_more_is_held_than_there_is_nor_than_a_share_and_all_of_it_comes_back(calls, half):
    """Whoever waits or gives up. A share may be exceeded by what is all that one holds."""
    room, held = FairSemaphore(10), {"a": list[int](), "b": list[int]()}

    async def hold(size: int, name: str, seconds: float) -> None:
        await room.take(Asker(name, half), size)
        held[name].append(size)
        assert sum(held["a"]) + sum(held["b"]) <= 10
        assert not half or len(held[name]) == 1 or sum(held[name]) <= 5
        try:
            await asyncio.sleep(seconds)
        finally:
            held[name].remove(size)
            room.give_back(Asker(name, half), size)

    async def one(size: int, name: str, seconds: float, patience: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(hold(size, name, seconds), patience)

    await asyncio.gather(*(one(*call) for call in calls))
    assert room.free == 10
    assert room.take_now(ONE, 10)


async def test_who_has_its_share_keeps_nobody_else_waiting():
    room, half, other = FairSemaphore(10), Asker("half", True), Asker("other", True)
    await room.take(half, 5)
    more = asyncio.create_task(room.take(half, 1))
    await asyncio.sleep(0)
    await room.take(other, 5)
    room.give_back(other, 5)
    assert not more.done()
    room.give_back(half, 5)
    await more


SCAN = Scan(7, 4, 3, "numpy", 0.25)
LARGEST = 2**21
ASKING = 30


class Large:
    """Each answer takes its share of the largest, `size` bytes."""

    def __init__(self, size: int) -> None:
        self._size = size

    def ask(self, question: Any, *_: object) -> Any:
        if isinstance(question, QuerySetLookup):
            outputs = np.full((1, self._size // 4), len(question.name), np.float32)
            return QuerySet(question.name, np.zeros(1, np.int64), outputs, None, SCAN)
        count = self._size // 12
        ids = np.repeat(np.asarray(question.queries.rows[:, 0], np.int64), count)
        scores = np.ones(len(ids), np.float32)
        return Hits(ids, scores, np.full((question.queries.count, 1), count), None, (), SCAN, "sample")


async def kept(ask: Callable[[MemoryServicer, int], Any]) -> tuple[int, list[bytes], Resources]:
    """Bytes that are held once `ASKING` have asked and none has read; then what each got, having read in turn."""
    resources = Resources(ServiceConfig("127.0.0.1:0", answer_bytes=LARGEST))
    servicer = MemoryServicer(Large(LARGEST * 3 // 4), resources)  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        asking = [asyncio.create_task(ask(servicer, number)) for number in range(ASKING)]
        while resources.unread.waiting + sum(one.done() for one in asking) < ASKING:
            await asyncio.sleep(0.01)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    got: list[bytes] = []
    for one in asyncio.as_completed(asking):
        answer: EncodedAnswer = await one
        got.append(answer.data)
        answer.release()
    resources.lanes.close()
    return held, got, resources


def message(question: Any) -> bytes:
    return bytes(call_of(question).question.encode(question).SerializeToString())


def look_up(servicer: MemoryServicer, number: int) -> Any:
    asked = message(QuerySetLookup("x" * (number + 1), None))
    return servicer.answer("QuerySet", asked, Deadline(None, 120.0), Asker(f"caller {number}"))


def scan(servicer: MemoryServicer, number: int) -> Any:
    asked = message(TopK("fc", Vectors(np.array([[number, 0, 0]], np.float32)), 10**6))
    return servicer.answer("TopK", asked, Deadline(None, 120.0), Asker(f"caller {number}"))


@pytest.mark.parametrize("ask", [look_up, scan])
async def test_those_that_wait_for_room_hold_no_answer(ask):
    held, got, resources = await kept(ask)
    assert held < (UNREAD + 2) * LARGEST, "all would take 45 MiB"
    assert len(set(got)) == ASKING
    assert all(len(one) > LARGEST // 2 for one in got)
    assert resources.unread.free == UNREAD * LARGEST


async def test_what_gets_no_room_before_its_deadline_leaves_none_taken():
    resources = Resources(ServiceConfig("127.0.0.1:0", answer_bytes=LARGEST))
    servicer = MemoryServicer(Large(LARGEST // 2), resources)  # type: ignore[arg-type]
    other = Asker("other")
    assert resources.unread.take_now(other, resources.unread.free)
    for ask in (look_up, scan):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(servicer, 1), 0.3)
    resources.unread.give_back(other, UNREAD * LARGEST)
    assert resources.unread.free == UNREAD * LARGEST
    assert resources.unread.waiting == 0
    (await scan(servicer, 1)).release()
    with pytest.raises(BadInput, match=r"takes 3\.0 MiB; a message holds at most 2\.0 MiB"):
        await look_up(MemoryServicer(Large(3 * LARGEST // 2), resources), 1)  # type: ignore[arg-type]
    assert resources.unread.free == UNREAD * LARGEST
    resources.lanes.close()

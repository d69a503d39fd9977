"""Room for bytes: none is lost and none is given twice, whoever gives up waiting, and who waits holds no answer."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dualform.answers import Hits, QuerySet, Scan
from dualform.errors import BadInput
from dualform.questions import QuerySetLookup, TopK, Vectors
from dualform_proto.calls import call_of
from dualform_service.config import ServiceConfig
from dualform_service.limits import UNREAD, ByteRoom, Resources
from dualform_service.scheduling import Asker, Deadline
from dualform_service.servicer import EncodedAnswer, MemoryServicer

ONE = Asker("one")


def test_a_large_one_is_not_passed_over_for_ever_by_small_ones():
    async def test() -> None:
        room = ByteRoom(10)
        await room.take(6, ONE)
        large = asyncio.create_task(room.take(8, ONE))
        await asyncio.sleep(0)
        assert not room.take_now(2, ONE)
        room.give_back(6, ONE)
        await large

    asyncio.run(asyncio.wait_for(test(), 60))


CALLS = st.lists(
    st.tuples(
        st.integers(1, 10),
        st.sampled_from("ab"),
        st.sampled_from([0.0, 0.001, 0.004]),
        st.sampled_from([0.001, 0.005, 60]),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=40)
@given(CALLS, st.booleans())
def test_no_more_is_held_than_there_is_nor_than_a_share_and_all_of_it_comes_back(calls, half):
    """Whoever waits or gives up. A share may be exceeded by what is all that one holds."""

    async def test() -> None:
        room, held = ByteRoom(10), {"a": list[int](), "b": list[int]()}

        async def hold(size: int, name: str, seconds: float) -> None:
            await room.take(size, Asker(name, half))
            held[name].append(size)
            assert sum(held["a"]) + sum(held["b"]) <= 10
            assert not half or len(held[name]) == 1 or sum(held[name]) <= 5
            try:
                await asyncio.sleep(seconds)
            finally:
                held[name].remove(size)
                room.give_back(size, Asker(name, half))

        async def one(size: int, name: str, seconds: float, patience: float) -> None:
            with suppress(TimeoutError):
                await asyncio.wait_for(hold(size, name, seconds), patience)

        await asyncio.gather(*(one(*call) for call in calls))
        assert room.free == 10
        assert room.take_now(10, ONE)

    asyncio.run(asyncio.wait_for(test(), 60))


def test_who_has_its_share_keeps_nobody_else_waiting():
    async def test() -> None:
        room, half, other = ByteRoom(10), Asker("half", True), Asker("other", True)
        await room.take(5, half)
        more = asyncio.create_task(room.take(1, half))
        await asyncio.sleep(0)
        await room.take(5, other)
        room.give_back(5, other)
        assert not more.done()
        room.give_back(5, half)
        await more

    asyncio.run(asyncio.wait_for(test(), 60))


SCAN = Scan(7, 4, 3, "numpy", 0.25)
LARGEST = 2**21
ASKING = 60


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


def kept(ask: Callable[[MemoryServicer, int], Any], size: int = LARGEST * 3 // 4) -> tuple[int, list[bytes], Resources]:
    """Bytes that are held once `ASKING` have asked and none has read; then what each got, having read in turn."""

    async def test() -> tuple[int, list[bytes], Resources]:
        resources = Resources(ServiceConfig("127.0.0.1:0", answer_bytes=LARGEST))
        servicer = MemoryServicer(Large(size), resources)  # type: ignore[arg-type]
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            asking = [asyncio.create_task(ask(servicer, number)) for number in range(ASKING)]
            while len(resources.unread._waiting) + sum(one.done() for one in asking) < ASKING:
                await asyncio.sleep(0.01)
            held = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        got: list[bytes] = []
        for one in asyncio.as_completed(asking):
            answer: EncodedAnswer = await one
            got.append(answer.data)
            answer.release()
        resources.close()
        return held, got, resources

    return asyncio.run(asyncio.wait_for(test(), 120))


def message(question: Any) -> bytes:
    return bytes(call_of(question).encode_question(question).SerializeToString())


def look_up(servicer: MemoryServicer, number: int) -> Any:
    asked = message(QuerySetLookup("x" * (number + 1), None))
    return servicer.answer("QuerySet", asked, Deadline(None, 120.0), Asker(f"caller {number}"))


def scan(servicer: MemoryServicer, number: int) -> Any:
    asked = message(TopK("fc", Vectors(np.array([[number, 0, 0]], np.float32)), 10**6))
    return servicer.answer("TopK", asked, Deadline(None, 120.0), Asker(f"caller {number}"))


@pytest.mark.parametrize("ask", [look_up, scan])
def test_those_that_wait_for_room_hold_no_answer(ask):
    held, got, resources = kept(ask)
    assert held < (UNREAD + 2) * LARGEST, "all would take 90 MiB"
    assert len(set(got)) == ASKING
    assert all(len(one) > LARGEST // 2 for one in got)
    assert resources.unread.free == UNREAD * LARGEST


def test_what_gets_no_room_before_its_deadline_leaves_none_taken():
    async def test() -> None:
        resources = Resources(ServiceConfig("127.0.0.1:0", answer_bytes=LARGEST))
        servicer = MemoryServicer(Large(LARGEST // 2), resources)  # type: ignore[arg-type]
        other = Asker("other")
        assert resources.unread.take_now(resources.unread.free, other)
        for ask in (look_up, scan):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ask(servicer, 1), 0.3)
        resources.unread.give_back(UNREAD * LARGEST, other)
        assert resources.unread.free == UNREAD * LARGEST
        assert len(resources.unread._waiting) == 0
        (await scan(servicer, 1)).release()
        with pytest.raises(BadInput, match=r"takes 3\.0 MiB; a message holds at most 2\.0 MiB"):
            await look_up(MemoryServicer(Large(3 * LARGEST // 2), resources), 1)  # type: ignore[arg-type]
        assert resources.unread.free == UNREAD * LARGEST
        resources.close()

    asyncio.run(asyncio.wait_for(test(), 60))

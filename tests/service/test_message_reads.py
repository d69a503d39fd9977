"""Messages that come take turns, and those that do not come make room."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings, strategies as st

from dualform_service.limits import MessageReads


async def read(reads: MessageReads, connection: str, message: Awaitable[object], seconds: float = 60.0) -> bool:
    """Whether it came."""
    try:
        async with asyncio.timeout(seconds) as limit, reads.one(connection, limit):
            await message
            return True
    except TimeoutError:
        return False


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 60)

    asyncio.run(bounded())


def test_what_takes_long_goes_on_while_nobody_waits_and_ends_once_somebody_does():
    async def test() -> None:
        reads, came = MessageReads(2, 0.05), asyncio.Event()
        slow = [asyncio.create_task(read(reads, "a", came.wait())) for _ in range(2)]
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in slow)
        assert await read(reads, "b", asyncio.sleep(0))
        assert await slow[0] is False
        assert not slow[1].done()
        came.set()
        assert await slow[1]

    run(test)


def test_whoever_waits_is_helped_though_another_began_in_the_meantime():
    async def test() -> None:
        reads, never = MessageReads(1, 0.05), asyncio.Event()
        quick = asyncio.create_task(read(reads, "a", asyncio.sleep(0.03)))
        await asyncio.sleep(0)
        slow = asyncio.create_task(read(reads, "b", never.wait()))
        await asyncio.sleep(0)
        assert await read(reads, "c", asyncio.sleep(0), 5.0)
        assert (await quick, await slow) == (True, False)

    run(test)


def test_connections_take_turns():
    async def test() -> None:
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

    run(test)


def test_a_read_that_nobody_waits_for_any_more_is_not_cancelled_but_ends_with_its_call():
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

    async def test() -> None:
        reads, late, left = MessageReads(2, 60.0), Context(), Context()
        told = list[object]()
        asyncio.get_running_loop().set_exception_handler(lambda _, said: told.append(said))
        with pytest.raises(TimeoutError):
            await reads.read(late, 0.01)
        leaving = asyncio.create_task(reads.read(left, 60.0))
        await asyncio.sleep(0.01)
        leaving.cancel()
        await asyncio.sleep(0)
        assert (late.became, left.became, reads._turns._free) == ("", "", 2)
        for context in (late, left):
            context.call_ends.set()
        await asyncio.sleep(0.01)
        assert (late.became, left.became) == ("ended", "ended")
        gc.collect()
        assert told == []

    run(test)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.sampled_from([0.0, 0.002, 0.01, 9.0]), st.sampled_from([0.001, 0.005, 60])
        ),
        max_size=30,
    ),
    st.integers(1, 4),
)
def test_whatever_comes_or_is_given_up_no_place_is_lost_and_none_is_taken_twice(calls, most):
    async def test() -> None:
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
        assert (now, reads._turns._free, len(reads._reading), reads._turns.waiting) == (0, most, 0, 0)
        assert highest <= most

    run(test)

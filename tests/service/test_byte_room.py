"""Room for bytes: none is lost and none is given twice, whoever gives up waiting."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from hypothesis import given, settings, strategies as st

from dualform_service.limits import ByteRoom

CALLS = st.lists(
    st.tuples(st.integers(1, 10), st.sampled_from([0.0, 0.001, 0.004]), st.sampled_from([0.001, 0.005, 60])),
    max_size=30,
)


@settings(deadline=None, max_examples=30)
@given(CALLS)
def test_whoever_waits_or_gives_up_no_more_is_held_than_there_is_and_all_of_it_comes_back(calls):
    async def test() -> None:
        room, held, most = ByteRoom(10), 0, 0

        async def hold(size: int, seconds: float) -> None:
            nonlocal held, most
            await room.take(size)
            held += size
            most = max(most, held)
            try:
                await asyncio.sleep(seconds)
            finally:
                held -= size
                room.give_back(size)

        async def one(size: int, seconds: float, patience: float) -> None:
            with suppress(TimeoutError):
                await asyncio.wait_for(hold(size, seconds), patience)

        await asyncio.gather(*(one(*call) for call in calls))
        assert most <= 10
        assert held == 0
        assert room.take_now(10)

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_large_one_is_not_passed_over_for_ever_by_small_ones():
    async def test() -> None:
        room = ByteRoom(10)
        await room.take(6)
        large = asyncio.create_task(room.take(8))
        await asyncio.sleep(0)
        assert not room.take_now(2)
        room.give_back(6)
        await large

    asyncio.run(asyncio.wait_for(test(), 60))

"""Room for bytes: none is lost and none is given twice, whoever gives up waiting."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from hypothesis import given, settings, strategies as st

from dualform_service.limits import ByteRoom
from dualform_service.scheduling import Asker

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

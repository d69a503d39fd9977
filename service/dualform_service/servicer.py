"""The calls of dualform.v1 over the engine, each by its line in the table of dualform_proto.calls.

Each call takes a place and a lane (scheduling.py), decodes its question, asks it, and encodes the answer. Errors become
gRPC statuses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from dualform.errors import BadInput
from dualform.questions import Inventory, LayerQuestion, PreviewLookup, QuerySetLookup, SlotLookup
from dualform_proto.calls import CALLS, Call
from dualform_service.batching import Batches, can_share
from dualform_service.call_record import CallRecord, current, layer_of
from dualform_service.limits import Holding, NoRoom, Resources
from dualform_service.metrics import CountedEngine
from dualform_service.scheduling import Asker, Deadline, Lane

SMALL_BYTES = 2**20
"""Largest message of a question that is decoded before it has a place of its own, to see whether it is small."""
FREE_BYTES = 64 * 2**10
"""Largest message that is decoded or encoded at once, on the loop, and largest answer that takes no room: there are
few beside those that do."""
BESIDE_BYTES = 1024
"""What the message of a large answer mostly takes beside its numbers."""
LOOKUPS = (PreviewLookup, Inventory, QuerySetLookup, SlotLookup)

_CALLS = {call.method: call for call in CALLS.values()}


@dataclass(frozen=True)
class EncodedAnswer:
    data: bytes
    release: Callable[[], None]
    """To be called once it was read, or will not be: then others have its room."""


class MemoryServicer:
    """Of one memory. Called on the event loop; the engine is asked on threads."""

    def __init__(self, engine: CountedEngine, resources: Resources) -> None:
        self._engine, self._resources, self._lanes = engine, resources, resources.lanes
        self.batches = Batches(engine, resources.lanes, resources.answer_bytes)

    async def answer(self, name: str, message: bytes, deadline: Deadline, asker: Asker) -> EncodedAnswer:
        """The answer of the method `name` to a message. Askers take turns where threads are few."""
        call = _CALLS[name]
        if issubclass(call.question.kind, LOOKUPS):
            with self._resources.lookup_places.one(asker):
                return await self._within_room(
                    lambda _: self._ask(call, message, deadline, self._lanes.lookups, asker), asker
                )
        if issubclass(call.question.kind, LayerQuestion) and len(message) <= SMALL_BYTES:
            question = await self._decoded(call, message, asker)
            if can_share(question):
                light = self.batches.light(question)
                places = self._resources.light_places if light else self._resources.slow_places
                with places.one(asker):
                    return await self._within_room(
                        lambda held: self._share(call, question, deadline, asker, held), asker
                    )
        with self._resources.alone_places.one(asker):
            return await self._held(await self._ask(call, message, deadline, self._lanes.heavy, asker), asker)

    async def _share(self, call: Call, question: Any, deadline: Deadline, asker: Asker, held: Holding) -> bytes:
        """The answer to a question that may share its work. Raises NoRoom, before its message is made."""
        answer = await self.batches.ask(question, deadline, asker)
        if answer.nbytes <= FREE_BYTES:
            return _encoded(call, answer)
        held.hold_now(answer.nbytes + BESIDE_BYTES)
        return await self._lanes.messages.run(lambda: _encoded(call, answer), asker)

    async def _ask(self, call: Call, message: bytes, deadline: Deadline, lane: Lane, asker: Asker) -> bytes:
        """The answer to a question that is asked alone; it is not even decoded before it has a thread."""
        record = current()

        def work() -> bytes:
            if deadline.passed():
                raise deadline.error()
            return _encoded(call, self._engine.ask(_decoded(call, message, record), deadline.passed))

        return await lane.run(work, asker)

    async def _decoded(self, call: Call, message: bytes, asker: Asker) -> Any:
        record = current()
        if len(message) <= FREE_BYTES:
            return _decoded(call, message, record)
        return await self._lanes.messages.run(lambda: _decoded(call, message, record), asker)

    async def _within_room(self, ask: Callable[[Holding], Awaitable[bytes]], asker: Asker) -> EncodedAnswer:
        """What `ask` returns, with room among the answers that nobody has read yet. Many may wait for room, so none of
        them holds an answer meanwhile: it is let go, and asked for again once there is room for it."""
        held = Holding(self._resources.unread, asker)
        try:
            while True:
                try:
                    data = await ask(held)
                    self._require_fitting(data)
                    if len(data) > FREE_BYTES:
                        held.hold_now(len(data))
                    return EncodedAnswer(data, held.release)
                except NoRoom as full:
                    data, size = b"", full.size
                await held.hold(size)
        except BaseException:
            held.release()
            raise

    async def _held(self, data: bytes, asker: Asker) -> EncodedAnswer:
        """Waits, in its place, for room among the answers that nobody has read yet: what took long is not asked for
        again, as few have such a place."""
        self._require_fitting(data)
        held = Holding(self._resources.unread, asker)
        if len(data) > FREE_BYTES:
            await held.hold(len(data))
        return EncodedAnswer(data, held.release)

    def _require_fitting(self, data: bytes) -> None:
        size, limit = len(data), self._resources.answer_bytes
        if size > limit:
            raise BadInput(
                f"The answer takes {size / 2**20:.1f} MiB; a message holds at most {limit / 2**20:.1f} MiB.",
                hint="Ask with fewer queries, a smaller k or a narrower filter at a time.",
            )


def _encoded(call: Call, answer: Any) -> bytes:
    data: bytes = call.result.encode(answer).SerializeToString()
    return data


def _decoded(call: Call, message: bytes, record: CallRecord) -> Any:
    """Raises BadInput for bytes that are no question of the method."""
    try:
        request = call.question.message.FromString(message)
    except DecodeError:
        raise BadInput(
            f"The message is not a {call.question.message.DESCRIPTOR.full_name}.",
            hint="Send a message of dualform.v1, encoded by protobuf.",
        ) from None
    question = call.question.decode(request)
    record.layer = layer_of(question)
    return question

"""The calls of dualform.v1 over the engine, each by its line in the table of dualform_proto.calls.

Each call takes a place and a lane (scheduling.py), decodes its question, asks it, and encodes the answer. Errors become
gRPC statuses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from dualform.errors import BadInput
from dualform.questions import Inventory, LayerQuestion, PreviewLookup, QuerySetLookup, SlotLookup
from dualform_proto.calls import CALLS, Call
from dualform_proto.v1 import dualform_pb2 as pb
from dualform_service.batching import Batches, can_share
from dualform_service.call_record import CallRecord, current
from dualform_service.engine import Answering
from dualform_service.limits import Holding, NoRoom, Resources
from dualform_service.scheduling import Asker, Deadline, Lane

SMALL_BYTES = 2**20
"""Largest message of a question that is decoded before it has a place of its own, to see whether it is small."""
FREE_BYTES = 64 * 2**10
"""Largest message that is decoded or encoded at once, on the loop, and largest answer that takes no room: there are
few beside those that do."""
BESIDE_BYTES = 1024
"""What the message of a large answer mostly takes beside its numbers."""
LOOKUPS = (PreviewLookup, Inventory, QuerySetLookup, SlotLookup)

_SERVICE = pb.DESCRIPTOR.services_by_name["Memory"]


@dataclass(frozen=True)
class EncodedAnswer:
    data: bytes
    release: Callable[[], None]
    """To be called once it was read, or will not be: then others have its room."""


@dataclass(frozen=True)
class _Method:
    call: Call
    request: type[Message]
    shares: bool
    """Whether its questions may be small."""
    looks_up: bool


class MemoryServicer:
    """Of one memory. Called on the event loop; the engine is asked on threads."""

    def __init__(self, engine: Answering, resources: Resources) -> None:
        self._engine, self._resources, self._lanes = engine, resources, resources.lanes
        self.batches = Batches(engine, resources.lanes, resources.answer_bytes)
        self.methods: Mapping[str, _Method] = {
            call.method: _Method(
                call,
                GetMessageClass(_SERVICE.methods_by_name[call.method].input_type),
                issubclass(kind, LayerQuestion),
                issubclass(kind, LOOKUPS),
            )
            for kind, call in CALLS.items()
        }

    async def answer(self, name: str, message: bytes, deadline: Deadline, asker: Asker) -> EncodedAnswer:
        """The answer of the method `name` to a message. Askers take turns where threads are few."""
        method = self.methods[name]
        if method.looks_up:
            with self._resources.lookup_places.one(asker):
                return await self._within_room(
                    lambda _: self._ask(method, message, deadline, self._lanes.lookups, asker), asker
                )
        if method.shares and len(message) <= SMALL_BYTES:
            question = await self._decoded(method, message, asker)
            if can_share(question):
                light = self.batches.light(question)
                places = self._resources.light_places if light else self._resources.slow_places
                with places.one(asker):
                    return await self._within_room(
                        lambda held: self._share(method, question, deadline, asker, held), asker
                    )
        with self._resources.alone_places.one(asker):
            return await self._held(await self._ask(method, message, deadline, self._lanes.heavy, asker), asker)

    async def _share(self, method: _Method, question: Any, deadline: Deadline, asker: Asker, held: Holding) -> bytes:
        """The answer to a question that may share its work. Raises NoRoom, before its message is made."""
        answer = await self.batches.ask(question, deadline, asker)
        if answer.nbytes <= FREE_BYTES:
            return _encoded(method, answer)
        held.hold_now(answer.nbytes + BESIDE_BYTES)
        return await self._lanes.messages.run(lambda: _encoded(method, answer), asker)

    async def _ask(self, method: _Method, message: bytes, deadline: Deadline, lane: Lane, asker: Asker) -> bytes:
        """The answer to a question that is asked alone; it is not even decoded before it has a thread."""
        record = current()

        def work() -> bytes:
            if deadline.passed():
                raise deadline.error()
            return _encoded(method, self._engine.ask(_decoded(method, message, record), deadline.passed))

        return await lane.run(work, asker)

    async def _decoded(self, method: _Method, message: bytes, asker: Asker) -> Any:
        record = current()
        if len(message) <= FREE_BYTES:
            return _decoded(method, message, record)
        return await self._lanes.messages.run(lambda: _decoded(method, message, record), asker)

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


def _encoded(method: _Method, answer: Any) -> bytes:
    return method.call.encode_answer(answer).SerializeToString()


def _decoded(method: _Method, message: bytes, record: CallRecord) -> Any:
    """Raises BadInput for bytes that are no question of the method."""
    try:
        request = method.request.FromString(message)
    except DecodeError:
        raise BadInput(
            f"The message is not a {method.request.DESCRIPTOR.full_name}.",
            hint="Send a message of dualform.v1, encoded by protobuf.",
        ) from None
    question = method.call.decode_question(request)
    record.asks(question)
    return question

"""gRPC's health checking and reflection, as handlers of raw bytes.

grpc_health has a servicer, but it knows no List, its watches do not end with the server, and it waits for a message
without a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from dualform.errors import DualformError
from dualform_proto.v1 import dualform_pb2 as pb
from dualform_service.admission import Gate, MessageReads
from dualform_service.scheduling import Asker, FairSemaphore
from dualform_service.transport import Context, Handler, refuse

SERVICE = pb.DESCRIPTOR.services_by_name["Memory"].full_name
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
REFLECTION, PACKAGE = "ServerReflectionInfo", "grpc.reflection.v1"
Response: Any = health_pb2.HealthCheckResponse
MESSAGE_BYTES, MESSAGE_SECONDS = 1024, 1.0
"""Largest request, and the time for it to arrive."""
CALLS, READING, PATIENCE = 256, 16, 0.25
"""Calls of these services at once, except watches; the others as in handlers.py."""
WATCHES, OWN_WATCHES = 1024, 8
"""Most watches at once, of all connections and of one: they last, and cost little."""


class StandardServices:
    """Health says SERVING for the server as a whole, for dualform.v1.Memory and for dualform.v1.Memory/NAME, until it
    drains. A memory that is gone is NOT_SERVING, and so is all else where no memory is left.
    """

    def __init__(self, gate: Gate, memories: Sequence[str] = ("",)) -> None:
        """`gate`: checks the tokens of callers of reflection. `memories`: their names; "" for a memory without one."""
        self._gate, self._reads = gate, MessageReads(READING, PATIENCE)
        self._serving, self._drains, self._there, self._changed = False, False, set(memories), asyncio.Event()
        self._names = {"": "", SERVICE: "", HEALTH: ""} | {f"{SERVICE}/{name}": name for name in memories if name}
        """The memory of each service name; "" for names that stand for the whole server."""
        names = (f"{PACKAGE}.ServerReflection", reflection.SERVICE_NAME)
        self._reflection = reflection.aio.ReflectionServicer((SERVICE, HEALTH, *names), pool=_described())
        short, self._watches = FairSemaphore(CALLS), FairSemaphore(WATCHES, OWN_WATCHES)
        self.handlers: dict[str, dict[str, Handler]] = {
            HEALTH: {
                "Check": _bounded(self._check, short),
                "List": _bounded(self._list, short),
                "Watch": _bounded(self._watch, self._watches),
            },
            **{name: {REFLECTION: _bounded(self._reflect, short)} for name in names},
        }

    def serving(self) -> None:
        """On the loop."""
        self._serving = True
        self._tell_watchers()

    def draining(self) -> None:
        """On the loop."""
        self._serving, self._drains = False, True
        self._tell_watchers()

    def found(self, memory: str, there: bool) -> None:
        """On the loop: whether the memory of that name is where it was."""
        if there:
            self._there.add(memory)
        else:
            self._there.discard(memory)
        self._tell_watchers()

    def _status(self, name: str) -> int:
        memory = self._names[name]
        there = memory in self._there if memory else bool(self._there)
        return int(Response.SERVING if self._serving and there else Response.NOT_SERVING)

    def _tell_watchers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _asked(self, context: Context, of: type[Message], seconds: float | None) -> Any:
        """The next message; None at the end. Ends the call if it comes late or cannot be parsed."""
        try:
            message = await self._reads.read(context, seconds)
            if message is None:
                return None
            if len(message) > MESSAGE_BYTES:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"A message has {MESSAGE_BYTES} bytes at most.")
            return of.FromString(message)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "No message came in time.")
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"The message is not a {of.DESCRIPTOR.full_name}.")

    async def _check(self, context: Context) -> None:
        name = (await self._only(context, health_pb2.HealthCheckRequest)).service
        if name not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "Unknown service.")
        await context.write(Response(status=self._status(name)).SerializeToString())

    async def _list(self, context: Context) -> None:
        await self._only(context, health_pb2.HealthListRequest)
        # Health needs no token, so the list leaves out the names of memories.
        named = [name for name, memory in self._names.items() if not memory]
        statuses = {name: Response(status=self._status(name)) for name in named}
        await context.write(health_pb2.HealthListResponse(statuses=statuses).SerializeToString())

    async def _watch(self, context: Context) -> None:
        name, told = (await self._only(context, health_pb2.HealthCheckRequest)).service, None
        while True:
            changed, drains = self._changed, self._drains
            status = self._status(name) if name in self._names else Response.SERVICE_UNKNOWN
            if status != told:
                await context.write(Response(status=status).SerializeToString())
                told = status
            if drains:  # nobody who watches holds up the end
                return
            await changed.wait()

    async def _only(self, context: Context, of: type[Message]) -> Any:
        """The one message of a call."""
        request = await self._asked(context, of, MESSAGE_SECONDS)
        if request is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "A call must hold one message.")
        return request

    async def _reflect(self, context: Context) -> None:
        try:
            self._gate.caller(context.invocation_metadata() or (), context.peer()).check(REFLECTION)
        except DualformError as error:
            await refuse(context, error)

        async def asked() -> AsyncIterator[Any]:
            while (request := await self._asked(context, reflection_pb2.ServerReflectionRequest, None)) is not None:
                yield request

        async for answer in self._reflection.ServerReflectionInfo(asked(), context):
            await context.write(answer.SerializeToString())


def _bounded(handler: Handler, room: FairSemaphore) -> Handler:
    """The handler, with a limit on its calls at once, and on those of one connection."""

    async def handle(context: Context) -> None:
        asker = Asker(context.peer())
        if not room.take_now(asker):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many such calls at once.")
        try:
            await handler(context)
        finally:
            room.give_back(asker)

    return handle


def _described() -> DescriptorPool:
    """The .proto files of all services. grpc_reflection has only v1alpha, so v1 is made from its text: their messages
    are the same. The pool is a separate one, because a later grpc_reflection may bring v1.
    """
    pool = DescriptorPool()
    for file in (reflection_pb2.DESCRIPTOR, pb.DESCRIPTOR, health_pb2.DESCRIPTOR):
        pool.AddSerializedFile(file.serialized_pb)
    text = str(FileDescriptorProto.FromString(reflection_pb2.DESCRIPTOR.serialized_pb))
    text = text.replace("grpc_reflection/v1alpha", "grpc/reflection/v1").replace("grpc.reflection.v1alpha", PACKAGE)
    pool.AddSerializedFile(text_format.Parse(text, FileDescriptorProto()).SerializeToString())
    return pool

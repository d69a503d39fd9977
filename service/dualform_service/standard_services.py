"""The standard services beside ours: gRPC health checking and reflection, as handlers of raw bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from dualform.errors import DualformError, MissingPackage
from dualform_proto.v1 import dualform_pb2 as pb
from dualform_service.described import PACKAGE, described
from dualform_service.gate import Gate
from dualform_service.message_reads import MessageReads
from dualform_service.transport import Context, Handler, refuse
from dualform_service.turns import Holdings

SERVICE = pb.DESCRIPTOR.services_by_name["Memory"].full_name
REFLECTION = "ServerReflectionInfo"
MESSAGE_BYTES, MESSAGE_SECONDS = 1024, 1.0
"""Of what asks for health: the largest, and how long it may take to come."""
CALLS, READING, PATIENCE = 256, 16, 0.25
"""Calls of these services that there may be at once, but for watches; the others as in handlers.py."""
WATCHES, OWN_WATCHES = 1024, 8
"""At once, of all connections and of one: they last, and cost little."""


class StandardServices:
    """Health says SERVING for the server as a whole, for dualform.v1.Memory and for dualform.v1.Memory/NAME, until it
    drains. A memory that is gone is NOT_SERVING, and so is all else where no memory is left.
    """

    def __init__(self, gate: Gate, memories: Sequence[str] = ("",)) -> None:
        """`gate`: lets in who asks for reflection. `memories`: their names, an empty one for one that has none."""
        try:
            from grpc_health.v1 import health_pb2
            from grpc_reflection.v1alpha import reflection, reflection_pb2
        except ImportError as error:
            raise MissingPackage(
                f"Serving needs {error.name}, which is not installed.", hint="Install it: pip install 'dualform[serve]'"
            ) from None
        self._health: Any = health_pb2
        self._serving, self._there = False, set(memories)
        self._changed: asyncio.Event | None = None
        self._calls, self._reads, self._gate = 0, MessageReads(READING, PATIENCE), gate
        self._drains, self._watches = False, Holdings()
        """By connection."""
        health, self._reflected = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection_pb2
        self._names = {"": "", SERVICE: "", health: ""} | {f"{SERVICE}/{name}": name for name in memories if name}
        """What may be asked for, with the memory that it is about; empty where it is about all of them."""
        names = (f"{PACKAGE}.ServerReflection", reflection.SERVICE_NAME)
        files = described(reflection_pb2.DESCRIPTOR, pb.DESCRIPTOR, health_pb2.DESCRIPTOR)
        self._reflection: Any = reflection.aio.ReflectionServicer((SERVICE, health, *names), pool=files)
        self.handlers: dict[str, dict[str, Handler]] = {
            health: {
                "Check": self._bounded(self._check),
                "List": self._bounded(self._list),
                "Watch": self._watched,
            },
            **{name: {REFLECTION: self._bounded(self._reflect)} for name in names},
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
        status = self._health.HealthCheckResponse
        return int(status.SERVING if self._serving and there else status.NOT_SERVING)

    def _tell_watchers(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    def _bounded(self, handler: Handler) -> Handler:
        async def handle(context: Context) -> None:
            if self._calls >= CALLS:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many such calls at once.")
            self._calls += 1
            try:
                await handler(context)
            finally:
                self._calls -= 1

        return handle

    async def _watched(self, context: Context) -> None:
        peer = context.peer()
        if self._watches.total() >= WATCHES or self._watches[peer] >= OWN_WATCHES:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many health watches at once.")
        self._watches[peer] += 1
        try:
            await self._watch(context)
        finally:
            self._watches.give_back(peer)

    async def _asked(self, context: Context, of: type[Message], seconds: float | None) -> Any:
        """The next message; None at the end. Ends the call where none comes in time, or one that is none."""
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
        name = await self._service(context)
        if name not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "Unknown service.")
        await self._tell(context, self._status(name))

    async def _list(self, context: Context) -> None:
        await self._only(context, self._health.HealthListRequest)
        # Whoever asks needs no token, and is told of no memory that it cannot name.
        named = [name for name, memory in self._names.items() if not memory]
        statuses = {name: self._health.HealthCheckResponse(status=self._status(name)) for name in named}
        await context.write(self._health.HealthListResponse(statuses=statuses).SerializeToString())

    async def _watch(self, context: Context) -> None:
        name, told = await self._service(context), None
        while True:
            changed = self._changed = self._changed or asyncio.Event()
            drains, status = self._drains, self._health.HealthCheckResponse.SERVICE_UNKNOWN
            if name in self._names:
                status = self._status(name)
            if status != told:
                await self._tell(context, status)
                told = status
            if drains:  # nobody who watches holds up the end
                return
            await changed.wait()

    async def _service(self, context: Context) -> str:
        return str((await self._only(context, self._health.HealthCheckRequest)).service)

    async def _only(self, context: Context, of: type[Message]) -> Any:
        """The one message of a call."""
        request = await self._asked(context, of, MESSAGE_SECONDS)
        if request is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "A call must hold one message.")
        return request

    async def _tell(self, context: Context, status: int) -> None:
        await context.write(self._health.HealthCheckResponse(status=status).SerializeToString())

    async def _reflect(self, context: Context) -> None:
        try:
            self._gate.caller(context.invocation_metadata() or (), context.peer()).check(REFLECTION)
        except DualformError as error:
            await refuse(context, error)

        async def asked() -> AsyncIterator[Any]:
            of = self._reflected.ServerReflectionRequest
            while (request := await self._asked(context, of, None)) is not None:
                yield request

        async for answer in self._reflection.ServerReflectionInfo(asked(), context):
            await context.write(answer.SerializeToString())

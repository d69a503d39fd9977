"""What every call of ours goes through, on the transport's loop: who may ask, in how long, of what size.

headers    is there room for one more call? does the server close? who calls, and may they? which memory is asked?
message    seconds to come; only so many are on their way at once, and only so many bytes are held
work       on a thread of its kind (servicer.py, scheduling.py)
answer     seconds to be read, then its room is free again
end        whoever observes is told how it went
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import grpc.aio

from dualform.errors import BadInput, Cancelled, DualformError, FolderError, Forbidden, Overloaded, TimedOut
from dualform.questions import SqlStatement
from dualform_proto.calls import CALLS, request_id_of
from dualform_service.admission import Closing, Gate, MessageReads, Rates, Shutter
from dualform_service.call_record import CURRENT, CallRecord, Observer, current
from dualform_service.memories import Memories
from dualform_service.metrics import Metrics
from dualform_service.scheduling import Asker, Deadline, FairSemaphore, Places
from dualform_service.servicer import EncodedAnswer, MemoryServicer, Resources
from dualform_service.settings import ServiceConfig
from dualform_service.transport import Context, Handler, refuse

_log = logging.getLogger("dualform.service")

_OUTSIDE = re.compile(
    r"(?<![\w.~<])(?:/|\w:\\).*?[/\\](?=(?:memory\.json|weights|probes|gallery|(?:shard|run|derived)-?\w*)\b)"
)
"""Of a path, what lies before the memory's own names."""
_ABSOLUTE = re.compile(r"(?<![\w.~<])(?:/|\w:\\)\S")


def as_ours(name: str, error: Exception, deadline: Deadline, request_id: str) -> DualformError:
    """What a caller of the method `name` is told of an error."""
    if isinstance(error, Cancelled):
        return deadline.error()
    if isinstance(error, FolderError):
        _log.warning("%s failed, request %s: %s", name, request_id, error)
        return _without_places(error, request_id)
    if isinstance(error, DualformError):
        return error
    # The text of an unforeseen error can name anything on this machine: it goes to the log, not to the caller.
    _log.error("%s failed, request %s", name, request_id, exc_info=error)
    return DualformError("The server failed on this question.", hint=_in_the_log(request_id))


def _without_places(error: FolderError, request_id: str) -> DualformError:
    """The error with files as they are named within the memory."""
    message, hint = (_OUTSIDE.sub("", text) for text in (error.message, error.hint))
    if _ABSOLUTE.search(message):
        message = "The memory's folder cannot be read."
    if _ABSOLUTE.search(hint) or not hint:
        hint = _in_the_log(request_id)
    return type(error)(message, hint=hint, field=error.field)


def _in_the_log(request_id: str) -> str:
    return f"The server's log says why, under the request {request_id}."


TRACE_PARENT = 55
"""Characters of a trace's and a span's numbers, with what goes between."""
READING, PATIENCE = 64, 0.25
"""Messages on their way at once, and seconds after which one that is not there yet makes room for others."""


class CallHandlers:
    """The handlers of dualform.v1. All state is the loop's."""

    def __init__(
        self,
        memories: Memories,
        resources: Resources,
        config: ServiceConfig,
        gate: Gate,
        closing: Closing,
        shutter: Shutter,
        metrics: Metrics,
        observers: Sequence[Observer] = (),
    ) -> None:
        """`observers`: told of each call that has ended, beside the metrics."""
        self._memories, self._resources = memories, resources
        self._config, self._closing, self._metrics = config, closing, metrics
        self._gate, self._rates, self._observers = gate, Rates(config.token_rate), (metrics.add, *observers)
        self._reads = MessageReads(READING, PATIENCE)
        self._messages = FairSemaphore(READING * config.request_bytes)
        self._call_places = Places(config.calls, "calls", "ServiceConfig.calls")
        self._open_calls = 0
        """That there are."""
        self._shutter = shutter

    def handlers(self) -> dict[str, Handler]:
        """By method."""
        return {call.method: self._handler(call.method) for call in CALLS.values()}

    def state(self) -> tuple[int, Mapping[str, int]]:
        """On the loop: the number of open calls, and of those that wait, by what they wait for."""
        waiting = {lane.name: lane.waiting for lane in self._resources.lanes.all}
        waiting |= {"scan": self._memories.waiting(), "reading": self._reads.waiting}
        return self._open_calls, waiting

    def _handler(self, method: str) -> Handler:
        async def handle(context: Context) -> None:
            deadline = Deadline(context.time_remaining(), self._config.deadline)
            metadata, request_id = context.invocation_metadata() or (), request_id_of(context.trailing_metadata())
            trace = next((value for key, value in metadata if key == "traceparent" and isinstance(value, str)), "")
            record = CallRecord(method, request_id, context.peer(), trace[:TRACE_PARENT])
            CURRENT.set(record)
            self._open_calls += 1
            outcome = "ok"
            try:
                await self._answer(method, context, deadline)
            except asyncio.CancelledError:
                outcome = (self._closing.cut_off or deadline.error()).code
                raise
            except Exception as error:
                failure = as_ours(method, error, deadline, record.request_id)
                outcome = failure.code
                await self._refuse(context, failure)
            finally:
                self._open_calls -= 1
                deadline.end()
                record.end(outcome)
                for observe in self._observers:
                    try:
                        observe(record)
                    except Exception:
                        _log.exception("an observer of calls failed")

        return handle

    async def _answer(self, method: str, context: Context, deadline: Deadline) -> None:
        self._closing.admit()
        if self._open_calls > self._config.calls and not await self._reads.give_way(context.peer()):
            raise Overloaded("The server has no free place for another call.", hint="Ask again in a moment.")
        asker, record = self._asker(method, context), current()
        with self._call_places.one(asker), ExitStack() as held:
            record.memory, servicer = self._memories.of(context.invocation_metadata() or ())
            message = await self._message(context)
            record.bytes_in = len(message)
            if not self._messages.take_now(asker, len(message)):
                raise Overloaded("The server has no room for another question.", hint="Ask again in a moment.")
            held.callback(self._messages.give_back, asker, len(message))
            answer = await self._work(servicer, method, message, asker, deadline)
            held.callback(answer.release)
            await self._write(context, answer.data, deadline)
            record.bytes_out = len(answer.data)

    def _asker(self, method: str, context: Context) -> Asker:
        """Raises Unauthenticated, Forbidden or Overloaded."""
        peer = context.peer()
        caller = self._gate.caller(context.invocation_metadata() or (), peer)
        current().caller = caller.name
        caller.check(method)
        if method == CALLS[SqlStatement].method and not self._config.sql:
            raise Forbidden(
                "This server does not answer SQL.", hint="Start it with --sql, or open the memory's folder."
            )
        # By its host where it has no name: connections are made as fast as questions.
        self._rates.take(caller.name or peer.rpartition(":")[0])
        # Where one token, or none, is all there is, who connects is all that tells callers apart.
        return Asker(caller.name, True) if self._gate.several else Asker(peer, False)

    async def _work(
        self, servicer: MemoryServicer, method: str, message: bytes, asker: Asker, deadline: Deadline
    ) -> EncodedAnswer:
        """Raises TimedOut at the deadline. What still runs then looks for itself whether it must stop."""
        try:
            async with asyncio.timeout(deadline.remaining()) as limit:
                return await servicer.answer(method, message, deadline, asker)
        except TimeoutError:
            if limit.expired():
                raise deadline.error() from None
            raise

    async def _message(self, context: Context) -> bytes:
        """The message of a call. Raises BadInput where none comes, or a larger one than may, and TimedOut."""
        seconds, most = self._config.message_seconds, self._config.request_bytes
        try:
            message = await self._reads.read(context, seconds)
        except TimeoutError:
            raise TimedOut(
                f"The call's message did not arrive within {seconds:.3g} s, or other calls displaced it.",
                hint="Send it again, at once.",
            ) from None
        if message is None:
            raise BadInput(
                f"A call must hold one message of at most {most / 2**20:.3g} MiB.",
                hint="Ask with fewer queries at a time, or start the server with more --request-bytes.",
            )
        return message

    async def _refuse(self, context: Context, failure: DualformError) -> None:
        """Ends the call with the status of an error; a caller that does not take it loses its connection."""
        try:
            async with asyncio.timeout(self._config.write_seconds) as limit:
                await refuse(context, failure)
        except TimeoutError:
            if limit.expired():
                self._shutter.shut(context.peer(), self._metrics.shut.labels("answer unread").inc)
            raise
        except grpc.aio.InternalError:
            raise _gone(failure.code) from None

    async def _write(self, context: Context, answer: bytes, deadline: Deadline) -> None:
        """Returns when the transport has got rid of the answer; a caller that does not take it loses its connection."""
        seconds = self._config.write_seconds + len(answer) / 2**20
        try:
            async with asyncio.timeout(seconds):
                await context.write(answer)
        except TimeoutError:
            unread = TimedOut(f"The answer was not read within {seconds:.3g} s.")
            deadline.cut(unread)
            # A status would wait in the transport's queue behind the bytes that are not read.
            _log.warning("%s did not read its answer within %.3g s; its connection is shut", context.peer(), seconds)
            self._shutter.shut(context.peer(), self._metrics.shut.labels("answer unread").inc)
            # The transport ends this early, as it cancels what was on the connection.
            await asyncio.sleep(deadline.remaining())
            raise unread from None
        except grpc.aio.InternalError:
            raise _gone(f"{len(answer) / 2**20:.1f} MiB") from None


def _gone(answer: str) -> asyncio.CancelledError:
    """Of a caller whose side has ended the call, which takes no status any more."""
    _log.warning(
        "%s did not take the answer of request %s (%s): it went away, or does not accept a message of that size",
        *(current().peer, current().request_id, answer),
    )
    return asyncio.CancelledError()

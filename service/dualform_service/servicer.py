"""The calls of dualform.v1 over the engine, each by its line in the table of dualform_proto.calls.

A call gets a place, its question is decoded, asked and its answer encoded. What goes wrong becomes an error of ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from dualform.errors import BadInput, Cancelled, DualformError
from dualform.questions import LayerQuestion
from dualform_proto.calls import CALLS, Call
from dualform_proto.v1 import dualform_pb2 as pb
from dualform_service.batching import Batches, can_share
from dualform_service.config import ServiceConfig
from dualform_service.engine import Engine
from dualform_service.limits import ByteRoom, Deadline, Places

SMALL_BYTES = 2**20
"""Largest message of a question that is decoded before it has a place of its own, to see whether it is small."""
FREE_BYTES = 64 * 2**10
"""Largest answer that takes no room: there are few beside those that do."""
UNREAD = 4
"""Answers of the largest size that may wait to be read at once."""

_log = logging.getLogger("dualform.service")
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


class MemoryServicer:
    """Called from the threads of a pool."""

    def __init__(self, engine: Engine, batches: Batches, config: ServiceConfig) -> None:
        self._engine, self._batches, self._config = engine, batches, config
        self._places = Places(
            config.max_concurrent, "The server already answers {} questions at once.", "--max-concurrent"
        )
        """For what works on a thread of its own."""
        self._small_places = Places(config.max_small, "The server already holds {} small questions.", "--max-small")
        """For small questions, which may share their work."""
        self._unread = ByteRoom(UNREAD * config.answer_bytes)
        self.methods: Mapping[str, _Method] = {
            call.method: _Method(
                call,
                GetMessageClass(_SERVICE.methods_by_name[call.method].input_type),
                issubclass(kind, LayerQuestion),
            )
            for kind, call in CALLS.items()
        }

    def answer(self, name: str, message: bytes, deadline: Deadline) -> EncodedAnswer:
        """The answer of the method `name` to a message. Raises DualformError, whatever goes wrong."""
        method = self.methods[name]
        small = method.shares and len(message) <= SMALL_BYTES
        try:
            with (self._small_places if small else self._places).one():
                deadline.check()
                response = (self._share if small else self._ask)(method, message, deadline)
                deadline.check()
                return self._encoded(response, deadline)
        except Exception as error:  # whatever it is, the caller gets a status and the log the rest
            raise as_ours(name, error, deadline) from None

    def _ask(self, method: _Method, message: bytes, deadline: Deadline) -> Message:
        """A question that is answered alone; it is not even decoded before it has a place."""
        return method.call.encode_answer(self._engine.ask(_decoded(method, message), deadline.passed))

    def _share(self, method: _Method, message: bytes, deadline: Deadline) -> Message:
        """A question that shares its scan with others of its kind if it has few queries; else as `_ask`."""
        question = _decoded(method, message)
        if can_share(question):
            return method.call.encode_answer(self._batches.ask(question, deadline))
        with self._places.one():
            return method.call.encode_answer(self._engine.ask(question, deadline.passed))

    def _encoded(self, response: Message, deadline: Deadline) -> EncodedAnswer:
        """Waits, in its place, for room among the answers that nobody has read yet."""
        size, limit = response.ByteSize(), self._config.answer_bytes
        if size > limit:
            raise BadInput(
                f"The answer takes {size / 2**20:.1f} MiB, and a message holds at most {limit / 2**20:.1f} MiB.",
                hint="Ask with fewer queries, a smaller k or a narrower mask at a time.",
            )
        if size <= FREE_BYTES:
            return EncodedAnswer(response.SerializeToString(), lambda: None)
        self._unread.take(size, deadline)
        try:
            return EncodedAnswer(response.SerializeToString(), lambda: self._unread.give_back(size))
        except BaseException:
            self._unread.give_back(size)
            raise


def _decoded(method: _Method, message: bytes) -> Any:
    """Raises BadInput for bytes that are no question of the method."""
    try:
        request = method.request.FromString(message)
    except DecodeError:
        raise BadInput(
            f"The bytes that came are no {method.request.DESCRIPTOR.full_name}.",
            hint="Send what protobuf makes of dualform.v1's messages.",
        ) from None
    return method.call.decode_question(request)


def as_ours(name: str, error: Exception, deadline: Deadline) -> DualformError:
    """What a caller of the method `name` is told of an error."""
    if isinstance(error, Cancelled):
        return deadline.error()
    if isinstance(error, DualformError):
        return error
    # The text of an unforeseen error can name anything on this machine: it goes to the log, not to the caller.
    _log.error("%s failed", name, exc_info=error)
    return DualformError("The server failed on this question.", hint="The server's log says why.")

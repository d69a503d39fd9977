"""The calls of dualform.v1 over the engine, each by its line in the table of dualform_proto.calls.

A call gets a place and a deadline, its question is decoded, asked and its answer encoded; errors become statuses.
"""

from __future__ import annotations

import logging
import time
from functools import partial

import grpc
from google.protobuf.message import Message

from dualform.errors import BadInput, Cancelled, DualformError
from dualform.questions import LayerQuestion
from dualform_proto.calls import CALLS, Call
from dualform_proto.errors import to_status
from dualform_service.batching import Batches, can_share
from dualform_service.config import ServiceConfig
from dualform_service.engine import Engine
from dualform_service.limits import Deadline, Places
from dualform_service.metrics import Metrics

SMALL_BYTES = 2**20
"""Largest message of a question that is decoded before it has a place of its own, to see whether it is small."""

_log = logging.getLogger("dualform.service")


class MemoryServicer:
    """Has a method for each call of the table."""

    def __init__(self, engine: Engine, batches: Batches, config: ServiceConfig, metrics: Metrics) -> None:
        self._engine, self._batches, self._config, self._metrics = engine, batches, config, metrics
        self._places = Places(
            config.max_concurrent, "The server already answers {} questions at once.", "--max-concurrent"
        )
        """For what works on a thread of its own."""
        self._small_places = Places(config.max_small, "The server already holds {} small questions.", "--max-small")
        """For small questions, which may share their work."""
        for kind, call in CALLS.items():
            setattr(self, call.method, partial(self._call, call, issubclass(kind, LayerQuestion)))

    def _call(self, call: Call, shares: bool, request: Message, context: grpc.ServicerContext) -> Message:
        """The response to a request; an error ends the call with a status."""
        started = time.monotonic()
        deadline = Deadline(context, self._config.deadline)
        try:
            small = shares and request.ByteSize() <= SMALL_BYTES
            with (self._small_places if small else self._places).one():
                deadline.check()
                response = (self._share if small else self._ask)(call, request, deadline)
            deadline.check()
            self._check_size(response)
        except Exception as error:  # whatever it is, the caller gets a status and the log the rest
            failure = _as_ours(call.method, error, deadline)
        else:
            self._metrics.add(call.method, "ok", time.monotonic() - started)
            return response
        self._metrics.add(call.method, failure.code, time.monotonic() - started)
        context.abort_with_status(to_status(failure))
        raise AssertionError("a call goes on after its abort")

    def _ask(self, call: Call, request: Message, deadline: Deadline) -> Message:
        """A question that is answered alone; it is not even decoded before it has a place."""
        return call.encode_answer(self._engine.ask(call.decode_question(request), deadline.passed))

    def _share(self, call: Call, request: Message, deadline: Deadline) -> Message:
        """A question that shares its scan with others of its kind if it has few queries; else as `_ask`."""
        question = call.decode_question(request)
        if can_share(question):
            return call.encode_answer(self._batches.ask(question, deadline))
        with self._places.one():
            return call.encode_answer(self._engine.ask(question, deadline.passed))

    def _check_size(self, response: Message) -> None:
        size, limit = response.ByteSize(), self._config.message_bytes
        if size > limit:
            raise BadInput(
                f"The answer takes {size / 2**20:.1f} MiB, and a message holds at most {limit / 2**20:.1f} MiB.",
                hint="Ask with fewer queries, a smaller k or a narrower mask at a time.",
            )


def _as_ours(name: str, error: Exception, deadline: Deadline) -> DualformError:
    if isinstance(error, Cancelled):
        return deadline.error()
    if isinstance(error, DualformError):
        return error
    # The text of an unforeseen error can name anything on this machine: it goes to the log, not to the caller.
    _log.error("%s failed", name, exc_info=error)
    return DualformError("The server failed on this question.", hint="The server's log says why.")

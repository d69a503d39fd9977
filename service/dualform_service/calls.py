"""What every call has in common: a place, a deadline, errors as statuses, a bounded answer, a count."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from dualform.errors import BadInput, Cancelled, DualformError
from dualform_proto.errors import to_status
from dualform_service.config import ServiceConfig
from dualform_service.limits import Deadline, Places
from dualform_service.metrics import Metrics

R = TypeVar("R", bound=Message)

_log = logging.getLogger("dualform.service")


class Calls:
    """Runs the work of one call after another, from many threads."""

    def __init__(self, config: ServiceConfig, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        self.places = Places(
            config.max_concurrent, "The server already answers {} questions at once.", "--max-concurrent"
        )
        """For what works on a thread of its own."""
        self.small_places = Places(config.max_small, "The server already holds {} small questions.", "--max-small")
        """For small questions, which may share their work."""

    def answer(self, name: str, context: grpc.ServicerContext, work: Callable[[Deadline], R], small: bool = False) -> R:
        """What `work` returns. It is told when to stop; errors end the call with a status."""
        started = time.monotonic()
        deadline = Deadline(context, self._config.deadline)
        try:
            with (self.small_places if small else self.places).one():
                deadline.check()
                response = work(deadline)
            deadline.check()
            self._check_size(response)
        except Exception as error:
            failure = _as_ours(name, error, deadline)
        else:
            self._metrics.add(name, "ok", time.monotonic() - started)
            return response
        self._metrics.add(name, failure.code, time.monotonic() - started)
        context.abort_with_status(to_status(failure))
        raise AssertionError("a call goes on after its abort")

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

"""A log of one JSON object a line: a line for each call, and what else the process logs, on one stream.

What writes a line only puts it into a queue; a thread of its own writes, so that a disk that is slow, or a pipe that
nobody reads, holds up no call. A queue that is full takes no more: such lines are counted, and their number is said
once there is room again.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from dualform_service.call_record import CallRecord

LINES = 10_000
"""That wait to be written at most: what 64 callers give in some seconds."""
GATHERING = 0.05
"""Seconds in which lines are gathered before they are written together."""
LAST_SECONDS = 0.5
"""In which what still waits is written as the log closes."""


class JsonLog(logging.Handler):
    """Calls are put in with `call`, log records as with any handler."""

    def __init__(self, file: int, most: int = LINES) -> None:
        """`file`: the descriptor to write to, which stays the caller's. Python's own streams have locks, which a thread
        that waits in them would hold as the process ends."""
        super().__init__()
        self._file, self._most = file, most
        self._waiting = deque[CallRecord | Mapping[str, Any]]()
        self.dropped = 0
        """Lines for which there was no room, in the queue or on the disk."""
        self._said, self._cut = 0, False
        """Of these, so many have been told of; whether the last thing written is a piece of a line."""
        self._counting = threading.Lock()
        self._some, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._write_all, name="dualform-log", daemon=True)
        self._thread.start()

    def call(self, record: CallRecord) -> None:
        """An Observer."""
        self._put(record)

    def emit(self, record: logging.LogRecord) -> None:
        line = {"time": _time(record.created), "kind": "log", "level": record.levelname.lower()}
        try:
            line["message"] = record.getMessage()
        except Exception as error:  # whose arguments do not fit; whoever logs it must not fail by that
            line["message"] = (
                f"{record.pathname}:{record.lineno} logged a message that cannot be written ({type(error).__name__})"
            )
        if record.exc_info:
            line["traceback"] = (self.formatter or logging.Formatter()).formatException(record.exc_info)
        self._put(line)

    def close(self) -> None:
        """Returns once all is written, or after LAST_SECONDS; lines that come later are dropped."""
        if not self._closing:
            self._closing = True
            self._some.set()
            self._thread.join(LAST_SECONDS)
        super().close()

    def _put(self, line: CallRecord | Mapping[str, Any]) -> None:
        if self._closing or len(self._waiting) >= self._most:
            with self._counting:
                self.dropped += 1
            return
        self._waiting.append(line)
        if not self._some.is_set():
            self._some.set()

    def _write_all(self) -> None:
        closing = False
        while not closing:
            self._some.wait()
            closing = self._closing
            if not closing:
                time.sleep(GATHERING)
            self._some.clear()
            lines = [_line(self._waiting.popleft()) for _ in range(len(self._waiting))]
            if (dropped := self.dropped) > self._said:
                said = {"time": _time(time.time()), "kind": "dropped", "lines": dropped - self._said}
                if self._written([json.dumps(said)]):
                    self._said = dropped
            lost = len(lines) - self._written(lines)
            with self._counting:
                self.dropped += lost

    def _written(self, lines: list[str]) -> int:
        """How many of them were written whole."""
        text = "".join(f"{line}\n" for line in lines).encode()
        # A piece of a line stays where it is; what comes next begins on a line of its own.
        left = memoryview(b"\n" + text if self._cut and text else text)
        with suppress(OSError):  # a full disk, or a file that was closed: the calls go on
            while left:
                count = os.write(self._file, left)
                self._cut = not bytes(left[:count]).endswith(b"\n")
                left = left[count:]
        return len(lines) - min(len(lines), bytes(left).count(b"\n"))


def _line(of: CallRecord | Mapping[str, Any]) -> str:
    if not isinstance(of, CallRecord):
        return json.dumps(of)
    return json.dumps(
        {
            "time": _time(of.began),
            "kind": "call",
            "request_id": of.request_id,
            "token": of.caller,
            "peer": of.peer,
            "method": of.method,
            "memory": of.memory,
            "layer": of.layer,
            "outcome": of.outcome,
            "waiting": round(of.waiting, 6),
            "working": round(of.working, 6),
            "bytes_in": of.bytes_in,
            "bytes_out": of.bytes_out,
        }
    )


def _time(seconds: float) -> str:
    """As RFC 3339 has it, in UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""Lets callers in: tokens that are read again when their file changes, and what becomes of who brings wrong ones."""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from dualform.errors import BadInput, Unauthenticated
from dualform_service.auth import ANYONE, Caller, Tokens, read_tokens
from dualform_service.limits import Shutter
from dualform_service.metrics import Metrics

LOOK_SECONDS = 1.0
"""Between looks at the token file, and between lines of the log about wrong tokens."""
WRONG = 10
"""Tokens in a row, of one connection, after which it is shut."""
CONNECTIONS = 4096
"""That are remembered for their wrong tokens."""

_log = logging.getLogger("dualform.service")


class Gate:
    """On the loop. A right token is always let in, whatever came before it."""

    def __init__(self, token: str | None, file: Path | None, metrics: Metrics, shutter: Shutter) -> None:
        """`shutter`: of connections to the server's own port. Raises BadInput for a file that cannot be used."""
        self._file, self._metrics, self._shutter = file, metrics, shutter
        self._mark = None if file is None else _mark(file)
        self._tokens = None if token is None else Tokens.one(token)
        if file is not None:
            self._tokens = read_tokens(file)
        self._looked = time.monotonic()
        self._wrong = OrderedDict[str, int]()
        """Tokens in a row, by connection."""
        self._unsaid, self._unsaid_shut, self._said = 0, 0, float("-inf")

    @property
    def several(self) -> bool:
        """Whether there are tokens of several callers."""
        return self._tokens is not None and self._tokens.several

    def caller(self, metadata: Iterable[tuple[str, str | bytes]], peer: str | None) -> Caller:
        """Who calls; what it may ask is its own to say (`Caller.check`). `peer` is the connection as gRPC writes it,
        None for one that ends with the call. Raises Unauthenticated.
        """
        self._look()
        if self._tokens is None:
            return ANYONE
        try:
            found = self._tokens.caller(metadata)
        except Unauthenticated:
            self._note(peer)
            raise
        self._wrong.pop(peer or "", None)
        return found

    def _look(self) -> None:
        """Reads the file again if it is another one; what cannot be used leaves the former tokens."""
        now = time.monotonic()
        if self._file is None or now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        mark = _mark(self._file)
        if mark == self._mark:
            return
        self._mark = mark
        try:
            found = read_tokens(self._file)
        except BadInput as error:
            _log.error("the former tokens stay: %s", error)
            return
        if self._tokens is not None and self._tokens.named and not found.named:
            # A line that is torn behind its first word looks like that; the word is a caller's name, and no secret.
            _log.error("the former tokens stay: the token file now holds a token in plain text instead of callers")
            return
        self._tokens = found
        _log.info("the token file was read again")

    def _note(self, peer: str | None) -> None:
        self._metrics.wrong_tokens.inc()
        self._unsaid += 1
        if peer is not None:
            self._count(peer)
        now = time.monotonic()
        if now - self._said >= LOOK_SECONDS:
            _log.warning(
                "calls with a missing or wrong token: %d, last by %s; connections closed after %d such calls: %d",
                *(self._unsaid, peer or "a scraper", WRONG, self._unsaid_shut),
            )
            self._unsaid, self._unsaid_shut, self._said = 0, 0, now

    def _count(self, peer: str) -> None:
        count = self._wrong[peer] = self._wrong.pop(peer, 0) + 1
        if len(self._wrong) > CONNECTIONS:
            self._wrong.popitem(last=False)
        if count >= WRONG:
            del self._wrong[peer]
            self._shutter.shut(peer, self._note_shut)

    def _note_shut(self) -> None:
        self._unsaid_shut += 1
        self._metrics.shut.labels("wrong tokens").inc()


def _mark(file: Path) -> tuple[int, ...] | None:
    """Another one where the file was changed or replaced."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode

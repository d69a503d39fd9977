"""Which calls are let in, and what bounds slow or hostile callers: tokens, rates, messages on their way, connections.

gRPC has no way to drop a single connection, so the sockets of this process are looked through for one. It cuts off what
reaches a server while it stops with CANCELLED, which tells nobody to ask again. So a server that closes first refuses
with UNAVAILABLE while calls keep coming, and stops once none does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc.aio

from dualform.errors import BadInput, DualformError, Overloaded, Unauthenticated, Unavailable
from dualform_service.auth import ANYONE, Caller, read_tokens, single_token
from dualform_service.metrics import Metrics
from dualform_service.scheduling import Asker, FairSemaphore
from dualform_service.transport import Context

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
        self._tokens = single_token(token) if token is not None else read_tokens(file) if file is not None else None
        self._looked = time.monotonic()
        self._wrong = OrderedDict[str, int]()
        """Tokens in a row, by connection."""
        self._unsaid, self._unsaid_shut, self._said = 0, 0, float("-inf")

    @property
    def several(self) -> bool:
        """Whether there are tokens of several callers."""
        return len(self._tokens or ()) > 1

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
        if "" in found.names and "" not in (self._tokens or found).names:
            # A line that is torn behind its first word looks like that; the word is a caller's name, and no secret.
            _log.error("the former tokens stay: the token file now holds a token in plain text instead of callers")
            return
        self._tokens = found
        _log.info("the token file was read again")

    def _note(self, peer: str | None) -> None:
        self._metrics.wrong_tokens.inc()
        self._unsaid += 1
        if peer is not None:
            count = self._wrong[peer] = self._wrong.pop(peer, 0) + 1
            if len(self._wrong) > CONNECTIONS:
                self._wrong.popitem(last=False)
            if count >= WRONG:
                del self._wrong[peer]
                self._shutter.shut(peer, self._note_shut)
        now = time.monotonic()
        if now - self._said >= LOOK_SECONDS:
            _log.warning(
                "calls with a missing or wrong token: %d, last by %s; connections closed after %d such calls: %d",
                *(self._unsaid, peer or "a scraper", WRONG, self._unsaid_shut),
            )
            self._unsaid, self._unsaid_shut, self._said = 0, 0, now

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


CALLERS = 4096
"""That are remembered."""


class Rates:
    """So many a second for each caller, a second's worth of them at once. On the loop."""

    def __init__(self, per_second: float | None) -> None:
        """None: as many as come."""
        self._per_second = per_second
        self._most = max(1.0, per_second or 0.0)
        self._left = OrderedDict[str, tuple[float, float]]()
        """Questions that a caller may ask at once, and when that was so, in seconds of time.monotonic()."""

    def take(self, caller: str) -> None:
        """One question. Raises Overloaded where it comes too soon, and says when the next one may come."""
        if self._per_second is None:
            return
        now = time.monotonic()
        left, then = self._left.pop(caller, (self._most, now))
        left = min(self._most, left + (now - then) * self._per_second)
        allowed = left >= 1.0
        self._left[caller] = (left - 1.0 if allowed else left, now)
        if len(self._left) > CALLERS:
            self._left.popitem(last=False)
        if not allowed:
            raise Overloaded(
                f"A caller may ask {self._per_second:g} questions a second.",
                hint=f"Ask again in {(1.0 - left) / self._per_second:.2g} s.",
            )


class MessageReads:
    """A fixed number of messages on their way, on one event loop. Connections take turns; while others wait, what has
    been coming for longer than `patience` ends, oldest first.

    A message that is there already is read within milliseconds. So calls that send none hold nobody up for long,
    however many there are, and messages that take their time may do so where nobody else wants to be read.
    """

    def __init__(self, most: int, patience: float) -> None:
        """`patience` in seconds."""
        self._turns, self._patience = FairSemaphore(most), patience
        self._reading = OrderedDict[asyncio.Timeout, float]()
        """Since when, oldest first."""
        self._ending: asyncio.TimerHandle | None = None
        self._coming = dict[str, dict[asyncio.Timeout, asyncio.Event]]()
        """All that are read or wait for it, by connection, oldest first, with what is set at their end."""

    @property
    def waiting(self) -> int:
        """How many wait for their turn to be read."""
        return self._turns.waiting

    async def read(self, context: Context, seconds: float | None) -> bytes | None:
        """The next message of a call; None where no more comes. Raises TimeoutError where it takes too long."""
        async with asyncio.timeout(seconds) as limit:
            peer, ended = context.peer(), asyncio.Event()
            self._coming.setdefault(peer, {})[limit] = ended
            try:
                async with self.one(peer, limit):
                    message: Any = await _to_its_end(context)
            finally:
                self._forget(peer, limit)
                ended.set()
        return None if message is grpc.aio.EOF else bytes(message)

    async def give_way(self, connection: str) -> bool:
        """Ends the oldest read of the connection that has the most, for one more of `connection`; returns once it has
        ended. False where no other has more than this one."""
        peer, most = max(self._coming.items(), key=lambda own: len(own[1]), default=("", {}))
        if len(most) <= len(self._coming.get(connection, ())):
            return False
        oldest, ended = next(iter(most.items()))
        self._forget(peer, oldest)
        if not oldest.expired():
            oldest.reschedule(asyncio.get_running_loop().time())
        await ended.wait()
        return True

    def _forget(self, peer: str, limit: asyncio.Timeout) -> None:
        own = self._coming.get(peer, {})
        own.pop(limit, None)
        if not own:
            self._coming.pop(peer, None)

    @asynccontextmanager
    async def one(self, connection: str, limit: asyncio.Timeout) -> AsyncIterator[None]:
        """Held while a message is read. `limit`, inside which the caller is, passes early where others want to read."""
        if not self._turns.free:
            self._press()
        async with self._turns.one(Asker(connection)):
            self._reading[limit] = asyncio.get_running_loop().time()
            if self._turns.waiting:
                self._press()
            try:
                yield
            finally:
                del self._reading[limit]

    def _press(self) -> None:
        """See to it that the oldest ends in time for whoever waits."""
        loop = asyncio.get_running_loop()
        if self._ending is None:
            began = next((began for limit, began in self._reading.items() if (limit.when() or inf) > loop.time()), None)
            if began is not None:
                self._ending = loop.call_at(began + self._patience, self._end_oldest)

    def _end_oldest(self) -> None:
        """One for each that waits."""
        self._ending = None
        now = asyncio.get_running_loop().time()
        for limit, began in list(self._reading.items())[: self._turns.waiting]:
            if began + self._patience > now:
                break
            if not limit.expired():
                limit.reschedule(now)
        if self._turns.waiting:
            self._press()


async def _to_its_end(context: Context) -> Any:
    """The next message. Reading goes on where nobody waits for it any more, until the transport ends it with its call:
    grpc.aio keeps for good what it set aside for a read whose task was cancelled (grpc issue 43360)."""
    reading = asyncio.ensure_future(context.read())
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        reading.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody else asks for it
        raise


FILES = 1 << 16
"""That a server wants to be let have open, each connection being one."""


def raise_limit() -> None:
    """Has the system let this process have FILES open files, or as many as it may ask for: most begin with 1,024."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        if resource.RLIM_INFINITY != soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Shutter:
    """Shuts connections to one port, on a thread of its own, as it looks through all files of the process."""

    def __init__(self) -> None:
        self.port = 0
        """That of the server, once it listens."""
        self._pool = ThreadPoolExecutor(1, "dualform-shut")
        self._wanted = dict[str, Callable[[], object]]()

    def shut(self, peer: str, then: Callable[[], object]) -> None:
        """Shuts the connection of a peer, as gRPC writes it, soon. `then` is called on the loop where it was found; the
        call that asks for this may have been cancelled by it."""
        self._wanted[peer] = then
        self._pool.submit(self._shut_all, asyncio.get_running_loop())

    def close(self) -> None:
        self._pool.shutdown()

    def _shut_all(self, loop: asyncio.AbstractEventLoop) -> None:
        """All that are wanted so far, in one look: whoever waits behind finds its own done."""
        wanted = dict(self._wanted.popitem() for _ in range(len(self._wanted)))
        for peer in shut(wanted, self.port) if wanted else ():
            loop.call_soon_threadsafe(wanted[peer])


def shut(peers: Collection[str], port: int) -> set[str]:
    """Shuts the connections of peers, as gRPC writes them, to a port of ours; returns those that were found.

    Where the system does not list a process's files nothing happens, and a call's deadline ends it.
    """
    found = set[str]()
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    # A file of our own, for gRPC may close its one at any moment, and another may get that number.
                    with socket.socket(fileno=os.dup(int(name))) as own:
                        if (peer := _peer_of(own)) in peers and own.getsockname()[1] == port:
                            own.shutdown(socket.SHUT_RDWR)
                            found.add(peer)
    return found


def _peer_of(own: socket.socket) -> str:
    """The far end, as gRPC writes it; empty of what has no address."""
    if own.family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    host, number = own.getpeername()[:2]
    host = host.removeprefix("::ffff:")  # of a socket of IPv6 that serves both
    return f"ipv6:%5B{quote(host, safe=':')}%5D:{number}" if ":" in host else f"ipv4:{host}:{number}"


QUIET_SECONDS = 0.1
"""Once no call has come for so long, a server stops."""
MOST_SECONDS = 1.0
"""Or after so long, however many come."""


class Closing:
    """Lets questions in until the server closes; health is told to the end."""

    def __init__(self) -> None:
        self._closing = False
        self._last = float("-inf")
        """When the last question came, in seconds of time.monotonic()."""
        self.cut_off: DualformError | None = None
        """What ends calls whose callers are still there; None before their grace is over."""

    def close(self) -> None:
        """Refuse what comes from here on; returns once nothing does, or after MOST_SECONDS."""
        self._closing = True
        end = time.monotonic() + MOST_SECONDS
        while (quiet := min(self._last + QUIET_SECONDS, end) - time.monotonic()) > 0:
            time.sleep(quiet)

    def cut(self) -> None:
        """On the loop: calls that are still there are ended now."""
        self.cut_off = Unavailable("The server has closed.")

    def admit(self) -> None:
        """To be called as a question comes. Raises Unavailable once the server closes."""
        self._last = time.monotonic()
        if self._closing:
            raise Unavailable("The server is closing.", hint="Ask another one, or this one once it has started again.")

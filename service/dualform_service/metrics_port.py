"""Where metrics are scraped: GET /metrics over HTTP, on an address of its own.

A port of its own can be let through to who scrapes and to nobody else. What stands there, names of layers and counts,
tells less than an answer does, and so the rule is that of questions: on this machine plain HTTP does, beyond it TLS and
a token are needed, and where questions need a token, so does this. Without TLS the Host must be a name of this machine:
a page elsewhere could have its own name resolve to it. A page is made on a thread.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from dualform.errors import Forbidden, Unauthenticated
from dualform_proto.address import LOOPBACK, Address, host_of

CONNECTIONS, SECONDS, HEAD_BYTES = 16, 5.0, 8 << 10
"""At once, of which the longest silent one gives way to one more, or that one is shut; for a request, and for its
answer to be taken; of a request, at most."""
PATH = "/metrics"

Page = Callable[[str], tuple[str, bytes]]
"""What is to be said to whoever accepts this: the content's type and the content."""


class MetricsPort:
    """All of it is called on the event loop."""

    def __init__(self, prepare: Callable[[], Page], check: Callable[[list[tuple[str, str | bytes]]], object]) -> None:
        """`prepare` is called on the loop for each request; what it returns makes the page, on a thread. `check`
        raises Unauthenticated or Forbidden for headers that may not ask."""
        self._prepare, self._check = prepare, check
        self._hosts: frozenset[str] | None = None
        """Names by which it is asked; None for any."""
        self._open = 0
        self._silent = OrderedDict[asyncio.StreamWriter, None]()
        """Connections that have not said yet what they want, the oldest first."""
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listens; returns the port. Raises OSError."""
        patience = None if tls is None else SECONDS
        self._hosts = frozenset({*LOOPBACK, host_of(str(Address(host, port)))}) if tls is None else None
        self._server = await asyncio.start_server(
            self._serve, host, port, limit=HEAD_BYTES, ssl=tls, ssl_handshake_timeout=patience
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        may = self._open < CONNECTIONS or self._gave_way()
        self._open += 1
        try:
            if may:
                async with asyncio.timeout(2 * SECONDS):
                    await self._answer(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # who does not ask in time, or goes away, is owed nothing
        finally:
            self._open -= 1
            # What nobody reads must not be waited for.
            writer.transport.abort()

    def _gave_way(self) -> bool:
        """Whether one that says nothing was shut for another."""
        if not self._silent:
            return False
        self._silent.popitem(last=False)[0].transport.abort()
        return True

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._silent[writer] = None
        try:
            async with asyncio.timeout(SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
        finally:
            self._silent.pop(writer, None)
        status, kind, content = await self._said(head.decode("latin-1"))
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(content)}", "Connection: close"]
        if status.startswith("401"):
            lines.append("WWW-Authenticate: Bearer")
        writer.write("\r\n".join((*lines, "", "")).encode() + content)
        await writer.drain()
        writer.close()
        with suppress(OSError, ssl.SSLError):
            await writer.wait_closed()

    async def _said(self, head: str) -> tuple[str, str, bytes]:
        """Status, content's type and content."""
        request, *lines = head.split("\r\n")
        pairs = (line.partition(":") for line in lines if line)
        headers: list[tuple[str, str | bytes]] = [(name.strip().lower(), value.strip()) for name, _, value in pairs]
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        plain = "text/plain; charset=utf-8"
        asked_as = [host_of(str(value)) for name, value in headers if name == "host"]
        if self._hosts is not None and not self._hosts.issuperset(asked_as):
            return "421 Misdirected Request", plain, f"Ask as one of {', '.join(sorted(self._hosts))}.\n".encode()
        try:
            self._check(headers)
        except Unauthenticated as error:
            return "401 Unauthorized", plain, f"{error.message}\n".encode()
        except Forbidden as error:
            return "403 Forbidden", plain, f"{error}\n".encode()
        if method != "GET":
            return "405 Method Not Allowed", plain, b"Ask with GET.\n"
        if path != PATH:
            return "404 Not Found", plain, f"Metrics are at {PATH}.\n".encode()
        make, accept = self._prepare(), next((value for name, value in headers if name == "accept"), "")
        return "200 OK", *await asyncio.to_thread(make, str(accept))

"""Pages next to a server of memories. They use the server's tokens and TLS, and end with it."""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse
from starlette.types import Receive, Scope, Send

from dualform.errors import BadInput, Damaged, DualformError, Forbidden, NotAMemory, NotFound, Unauthenticated
from dualform.methods import Answers
from dualform_explorer.application import DEADLINE, Failure, Pages
from dualform_explorer.guard import PUBLIC, Guard
from dualform_explorer.memories import Memories
from dualform_explorer.rendering import templates
from dualform_explorer.server import run
from dualform_proto.address import LOOPBACK, parse_address

Opened = Mapping[str, Callable[[], Answers]]
"""By name, a function that connects to a memory."""
_MOST = 64
"""The most visitors whose pages are kept. The one who asked longest ago is dropped first."""
_SECONDS = 5.0
"""The time after which a token is checked again, and the time limit for that check."""
_OF_A_KNOWN_TOKEN = (Forbidden, NotFound, NotAMemory, Damaged)
"""Errors that a server raises only after it has accepted the token. The page shows them."""
_UNSURE = Failure("The server did not say whether it takes this token.", "Ask again in a moment.")


class Visitors:
    """An ASGI application with separate pages for each token."""

    def __init__(self, connect: Callable[[str], Opened], door: str, deadline: float) -> None:
        """`connect`: opens the memories with a token, each over a separate connection. `door`: the page that asks for a
        token.
        """
        self._connect, self._door, self._deadline = connect, door, deadline
        self._public = Pages(Memories({}), deadline).application
        self._unsure = templates().get_template("trouble.html").render(failure=_UNSURE, links=())
        self._visits: OrderedDict[str, _Visit] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(PUBLIC):
            await self._public(scope, receive, send)
            if scope["type"] == "lifespan":
                for visit in self._visits.values():
                    visit.pages.close()
            return
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        try:
            if scheme.lower() != "bearer":
                raise Unauthenticated("No token was given.")
            visit = await self._visit(token.strip())
        except (DualformError, TimeoutError) as error:
            if isinstance(error, Unauthenticated) or (isinstance(error, BadInput) and error.field == "token"):
                await HTMLResponse(self._door, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
            else:
                await HTMLResponse(self._unsure, 503, {"Retry-After": "1"})(scope, receive, send)
            return
        await visit.pages.application(scope, receive, send)

    async def _visit(self, token: str) -> _Visit:
        """Raises Unauthenticated if the server rejects the token, BadInput if it is malformed, and TimedOut or another
        error if the server does not answer.
        """
        visit = self._visits.get(token)
        if visit is not None and monotonic() - visit.checked < _SECONDS:
            self._visits.move_to_end(token)
            return visit
        memories = Memories(self._connect(token)) if visit is None else visit.memories
        try:
            await asyncio.wait_for(asyncio.to_thread(_ask, memories), _SECONDS)
        except BaseException as error:
            if visit is None:
                memories.close()
            elif isinstance(error, Unauthenticated) and self._visits.get(token) is visit:
                del self._visits[token]
                visit.pages.close()
            raise
        kept = self._visits.get(token)
        if kept is None:
            kept = self._visits[token] = _Visit(memories, Pages(memories, self._deadline))
            kept.pages.begin()
        elif visit is None:  # two first requests of one visitor at once
            memories.close()
        kept.checked = monotonic()
        self._visits.move_to_end(token)
        if len(self._visits) > _MOST:
            self._visits.popitem(last=False)[1].pages.close()
        return kept


def _ask(memories: Memories) -> None:
    with suppress(*_OF_A_KNOWN_TOKEN):
        memories.one(memories.names[0]).info()


@dataclass
class _Visit:
    """The pages of one valid token."""

    memories: Memories
    pages: Pages
    checked: float = 0.0


def serve_beside(
    address: str,
    tokens: bool,
    pair: tuple[Path, Path] | None,
    connect: Callable[[str | None], Opened],
    listening: socket.socket,
    wait: Callable[[], object],
) -> None:
    """Serve until `wait` returns. `address`: host:port of the pages; the server has checked that a public one has
    tokens and TLS. `tokens`: whether the server requires tokens; visitors then need one. `pair`: certificate and key
    for TLS. `connect`: opens the server's memories with a token.
    """
    door = templates().get_template("door.html").render()
    pages = Visitors(connect, door, DEADLINE) if tokens else Pages(Memories(connect(None)), DEADLINE).application
    # TLS ties a browser to the server's name. Without it, another site could resolve its own name to our address.
    hosts = None if pair is not None else {*LOOPBACK, parse_address(address).host.lower()}
    run(Guard(pages, hosts, door), listening, wait, pair)

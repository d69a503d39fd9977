"""Pages for whoever may ask the server behind them: each visitor's questions are asked with the token that came with
them, so that the server alone decides who sees what.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from time import monotonic

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse
from starlette.types import Receive, Scope, Send

from dualform.errors import DualformError, Unauthenticated
from dualform.methods import Answers
from dualform_explorer.application import Pages
from dualform_explorer.guard import PUBLIC
from dualform_explorer.memories import Memories

Opened = Mapping[str, Callable[[], Answers]]
"""By name, what connects to a memory."""
_MOST = 64
"""Visitors whose pages are kept; of more, those go who asked longest ago."""
_SECONDS = 5.0
"""After which a token is shown to the server again."""


class Visitors:
    """An ASGI application: pages for each token."""

    def __init__(self, connect: Callable[[str], Opened], door: str, deadline: float) -> None:
        """`connect`: the memories, as asked with a token. `door`: the page that takes one."""
        self._connect, self._door, self._deadline = connect, door, deadline
        self._public = Pages(Memories({}), deadline).application()
        self._visits: OrderedDict[str, _Visit] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(PUBLIC):
            await self._public(scope, receive, send)
            if scope["type"] == "lifespan":
                for visit in self._visits.values():
                    await visit.close()
            return
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        admitted = await self._visit(token.strip()) if scheme.lower() == "bearer" else None
        if admitted is None:
            await HTMLResponse(self._door, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
        else:
            await admitted.application(scope, receive, send)

    async def _visit(self, token: str) -> _Visit | None:
        """None where the server lets nobody in with that token."""
        visit = self._visits.get(token) or _Visit(self._connect(token), self._deadline)
        try:
            await visit.check()
        except Unauthenticated:
            if self._visits.get(token) is visit:
                del self._visits[token]
            await visit.close()
            return None
        kept = self._visits.setdefault(token, visit)
        if kept is not visit:  # the same visitor came twice at once
            await visit.close()
        self._visits.move_to_end(token)
        if len(self._visits) > _MOST:
            _, oldest = self._visits.popitem(last=False)
            await oldest.close()
        return kept


class _Visit:
    """The pages of one token."""

    def __init__(self, opened: Opened, deadline: float) -> None:
        self._memories = Memories(opened)
        self.application: Starlette = Pages(self._memories, deadline).application()
        self._stack = AsyncExitStack()
        self._checked: float | None = None

    async def check(self) -> None:
        """Raises Unauthenticated where the server knows no such token, or does not any more."""
        if self._checked is not None and monotonic() - self._checked < _SECONDS:
            return
        if self._checked is None:
            await self._stack.enter_async_context(self.application.router.lifespan_context(self.application))
        self._checked = monotonic()
        await asyncio.to_thread(self._ask)

    def _ask(self) -> None:
        try:
            self._memories.one(self._memories.names[0]).info()
        except Unauthenticated:
            raise
        except DualformError:
            pass  # the page says what else is wrong, in its place

    async def close(self) -> None:
        await self._stack.aclose()

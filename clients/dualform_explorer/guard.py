"""Which requests are answered: those addressed to a name of the server, of a bounded number of parameters, that no page
elsewhere sent behind its reader's back, and that bring the token if there is one. And the headers that tell browsers
what a page may do.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dualform_proto.address import host_of

_HEADERS = {
    # Nothing of a page comes from elsewhere, and nothing in it runs or paints but files of ours.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
PUBLIC = "/static/"
"""What needs no token: the same for everyone."""
MOST_PARAMETERS = 200
"""Of an address; a page's own has some twenty, and one for each part of a mask."""


class Guard:
    """In front of the application. A request's Host must be one of the server's names: otherwise a page elsewhere could
    have its name resolve to this machine, and read what the server answers. Such a page may link here, but its images
    and scripts are not answered: each would be work.
    """

    def __init__(
        self, application: ASGIApp, hosts: Collection[str] | None, door: str, token: str | None = None, prefix: str = ""
    ) -> None:
        """`hosts`: names without a port, in lower case; None for any, where TLS holds a browser to the server's own.
        `door`: the page that takes a token. `prefix`: of the path, where a proxy in front leaves it there."""
        self._application, self._door = application, door
        self._hosts = None if hosts is None else frozenset(hosts)
        self._token = None if token is None else token.encode()
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        # Browsers say which page a request is of, in headers that no page can set.
        elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        admitted = self._token is None or (
            scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._token)
        )
        answer: ASGIApp = self._application
        if self._prefix and scope["path"] == self._prefix:
            answer = RedirectResponse(f"{self._prefix.rpartition('/')[2]}/", 307)
        elif self._prefix and scope["path"].startswith(f"{self._prefix}/"):
            scope = {**scope, "path": scope["path"].removeprefix(self._prefix)}
        if self._hosts is not None and host_of(headers.get("host", "")) not in self._hosts:
            listed = ", ".join(sorted(self._hosts))
            answer = PlainTextResponse(
                f"This server is not {headers.get('host')!r}. It answers as {listed}; "
                "dualform explore TARGET --host NAME begins pages with a further name.",
                421,
            )
        elif elsewhere and headers.get("sec-fetch-mode") != "navigate":
            answer = PlainTextResponse("Pages elsewhere may link here, and load nothing from here.", 403)
        elif (count := scope["query_string"].count(b"&") + 1) > MOST_PARAMETERS:
            answer = PlainTextResponse(
                f"The address has {count} parameters; at most {MOST_PARAMETERS} are read. Write the mask as one where.",
                400,
            )
        elif not scope["path"].startswith(PUBLIC) and not admitted:
            answer = HTMLResponse(self._door, 401, {"WWW-Authenticate": "Bearer"})
        await answer(scope, receive, marked)

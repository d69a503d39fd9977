"""Checks requests before the pages see them, and adds security headers.

A request must be addressed to one of the server's names, have a bounded number of parameters, come from no other site's
page in the background, and carry the token if there is one.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dualform_proto.address import host_of

_HEADERS = {
    # Pages load only our own files, and only those run.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
PUBLIC = "/static/"
"""Needs no token, because it is the same for everyone."""
MOST_PARAMETERS = 200
"""The most parameters of an address. A page has about twenty, and one for each chip."""


class Guard:
    """Wraps the application. Checking the Host header stops DNS rebinding, by which a page of another site could read
    our answers. Other sites may link to pages, but cannot load images or scripts from here, which would cost us work.
    """

    def __init__(
        self, application: ASGIApp, hosts: Collection[str] | None, door: str, token: str | None = None, prefix: str = ""
    ) -> None:
        """`hosts`: lower-case names without a port; None for any name, if TLS ties a browser to the server's own.
        `door`: the page that asks for a token. `prefix`: a prefix of the path that a proxy leaves in place.
        """
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
        # Browsers set these headers, and pages cannot change them.
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

"""What no page of ours may do: ask anything of another server, or complain to its console."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Route, WebError


@dataclass
class Watch:
    """Over all tabs of a test."""

    elsewhere: list[str] = field(default_factory=list)
    """Addresses of other servers that were asked for. The requests were aborted."""
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the console, and exceptions."""
    expected: list[str] = field(default_factory=list)
    """Patterns of complaints that a test brings about: a browser notes each answer that is an error."""

    def over(self, context: BrowserContext) -> None:
        context.route(lambda url: urlsplit(url).hostname != "127.0.0.1", self._abort)
        context.on("console", self._said)
        context.on("weberror", self._raised)

    def leave(self, context: BrowserContext) -> None:
        context.unroute_all()
        context.remove_listener("console", self._said)
        context.remove_listener("weberror", self._raised)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _raised(self, error: WebError) -> None:
        self.complaints.append(str(error.error))

    def _abort(self, route: Route) -> None:
        self.elsewhere.append(route.request.url)
        route.abort()

    @property
    def unexpected(self) -> list[str]:
        return [said for said in self.complaints if not any(re.search(own, said) for own in self.expected)]

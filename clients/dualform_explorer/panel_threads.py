"""Panels side by side in threads, each with its time: one that fails or is late says so in its place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from dualform.errors import DualformError
from dualform_explorer.rendering import templates

_THREADS = 12
log = logging.getLogger("dualform_explorer")


@dataclass(frozen=True)
class Failure:
    """In a panel's place."""

    message: str
    hint: str = ""
    code: str = ""
    field: str = ""
    """The argument of the question that is to blame."""


class PanelThreads:
    """Few of them: a page that nobody waits for any more does not keep those who follow."""

    def __init__(self, seconds: float) -> None:
        """`seconds` that a panel may take."""
        self.seconds = seconds
        self._threads = ThreadPoolExecutor(_THREADS, "dualform-explorer")
        self._templates = templates()

    async def panel(
        self, name: str, title: str, make: Callable[[], Any], context: dict[str, Any], template: str
    ) -> Markup:
        """The panel as HTML: what `make` returns in its template, or why there is nothing."""
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, self._made, name, title, make, context, template)
        try:
            return await asyncio.wait_for(work, self.seconds)
        except TimeoutError:
            late = Failure(
                f"There was no answer within {self.seconds:g} seconds.",
                "It is still being worked on; ask again, or begin the pages with more time: "
                "dualform explore TARGET --deadline SECONDS.",
                "late",
            )
            return self._failed(name, title, late, context)

    async def run(self, work: Callable[[], Any]) -> Any:
        """What is no panel, in the same threads. Raises TimeoutError."""
        return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(self._threads, work), self.seconds)

    def _made(self, name: str, title: str, make: Callable[[], Any], context: dict[str, Any], template: str) -> Markup:
        try:
            panel = make()
            return Markup(
                self._templates.get_template(f"panels/{template}.html").render(
                    {**context, "name": name, "title": title, "panel": panel}
                )
            )
        except DualformError as error:
            return self._failed(name, title, Failure(error.message, error.hint, error.code, error.field or ""), context)
        except Exception as error:
            log.exception("the panel %s failed", name)
            fault = Failure(
                f"{type(error).__name__}: {error}", "This is a fault of dualform; the log has more.", "internal"
            )
            return self._failed(name, title, fault, context)

    def _failed(self, name: str, title: str, failure: Failure, context: dict[str, Any]) -> Markup:
        found = self._templates.get_template("failed.html")
        return Markup(found.render({**context, "name": name, "title": title, "failure": failure}))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

"""The pages on a port of this machine, for as long as a test needs them, and what is read of their HTML."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from html import unescape
from typing import NamedTuple

from dualform.methods import Answers
from dualform_explorer.memories import Memories
from dualform_explorer.server import ExplorerConfig, application, listening_at, run


class Page(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str


class Served(NamedTuple):
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def get(self, path: str, **headers: str) -> Page:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return Page(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode())
        finally:
            connection.close()


@contextmanager
def served(opened: Mapping[str, Callable[[], Answers]], **config: object) -> Iterator[Served]:
    given = ExplorerConfig(**{"address": "127.0.0.1:0", **config})
    listening, over = listening_at(given.address), threading.Event()
    port = listening.getsockname()[1]
    guarded = application(Memories(opened), given)
    thread = threading.Thread(target=run, args=(guarded, listening, over.wait), name="explorer under test")
    thread.start()
    try:
        yield Served(port)
    finally:
        over.set()
        thread.join(30)
        assert not thread.is_alive()


class Troubled(Answers):
    """Answers as another one does; `trouble` is called first, with the question."""

    def __init__(self, answers: Answers, trouble: Callable[[object], object]) -> None:
        self.answers, self.trouble = answers, trouble

    def ask(self, question):
        self.trouble(question)
        return self.answers.ask(question)

    def close(self) -> None:
        self.answers.close()


def panels_of(text: str) -> dict[str, str]:
    """By name, each panel's HTML."""
    return {
        found[1]: found[0] for found in re.finditer(r'<section id="panel-([\w-]+)".*?</section>', text, flags=re.DOTALL)
    }


def failed(text: str) -> set[str]:
    return {name for name, html in panels_of(text).items() if "data-failure" in html}


def words_of(html: str) -> str:
    """Without tags and with single spaces."""
    return " ".join(unescape(re.sub("<[^>]*>", "", html)).split())

"""The pages on a port of this machine, for as long as a test needs them."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from dualform.methods import Answers
from dualform_explorer.memories import Memories
from dualform_explorer.server import ExplorerConfig, application, listening_at, run


class Intercepted(Answers):
    """Answers as another one does. `before` is called with each question first, and may wait or raise."""

    def __init__(self, answers: Answers, before: Callable[[Any], object]) -> None:
        self.answers, self.before = answers, before

    def ask(self, question: Any) -> Any:
        self.before(question)
        return self.answers.ask(question)

    def close(self) -> None:
        self.answers.close()


def troubled(answers: Answers, kind: type, trouble: Callable[[], object]) -> Answers:
    """`trouble` comes before questions of one kind."""
    return Intercepted(answers, lambda question: isinstance(question, kind) and trouble())


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

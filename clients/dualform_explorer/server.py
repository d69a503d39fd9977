"""The pages over memories, begun from Python: they are served by a thread of this process."""

from __future__ import annotations

import asyncio
import socket
import threading
import webbrowser
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

import dualform
from dualform.errors import BadInput
from dualform.methods import Answers
from dualform_explorer.application import DEADLINE, Pages
from dualform_explorer.guard import Guard
from dualform_explorer.memories import Memories, names_of
from dualform_explorer.preview_function import PreviewFunction, check_preview_function
from dualform_explorer.rendering import templates
from dualform_explorer.words import Words
from dualform_proto.address import LOOPBACK, parse_address

_GRACEFUL_SECONDS = 3
CONNECTIONS, SECONDS, _BACKLOG = 64, 10.0, 64
"""At once, of which the longest silent one gives way to one more, or that one is shut; for a request to come, and for
its answer to be taken; and that wait to be taken in."""


@dataclass(frozen=True)
class ExplorerConfig:
    address: str
    """host:port; port 0 is a free one."""
    hosts: Collection[str] = ()
    """Further names that requests may be addressed to, as those of a proxy in front."""
    token: str | None = None
    """That visitors must have; None asks for none, on addresses of this machine alone."""
    root_path: str = ""
    """Where a proxy in front has the pages, as /explorer."""
    deadline: float = DEADLINE
    """Seconds that a panel may take."""

    def __post_init__(self) -> None:
        if self.token is None and not parse_address(self.address).loopback:
            raise BadInput(
                f"{self.address} can be reached from other machines, and no token is asked for.",
                hint="Give --access FILE, whose first line is the token, or listen on 127.0.0.1.",
                field="address",
            )
        if not self.deadline > 0:
            raise BadInput(f"deadline is {self.deadline}.", hint="It is a number of seconds.", field="deadline")
        if self.root_path and not self.root_path.startswith("/"):
            raise BadInput(f"root_path is {self.root_path!r}.", hint="It begins with a slash.", field="root_path")


def application(memories: Memories, config: ExplorerConfig) -> Guard:
    """The pages behind their guard, as any ASGI server runs them."""
    host, _, _ = config.address.rpartition(":")
    names = {name.lower() for name in (host, *config.hosts)}
    if parse_address(config.address).loopback:
        names |= set(LOOPBACK)
    door = templates().get_template("door.html").render()
    return Guard(Pages(memories, config.deadline).application, names, door, config.token, config.root_path.rstrip("/"))


def serve(
    opened: Mapping[str, Callable[[], Answers]],
    config: ExplorerConfig,
    ready: Callable[[str], None],
    browse: bool = False,
    preview: PreviewFunction | None = None,
    words: Words | None = None,
    scores: Sequence[str] = (),
) -> None:
    """Until the process is interrupted. `ready` is told the address of the start page. `preview`: what training samples
    look like, in place of the preview sets of datasets. `words`: what labels and outputs without a name are called.
    `scores`: as `Memories` has them.

    Raises BadInput where the address cannot be had.
    """
    listening = listening_at(config.address)
    url = url_of(config, listening)
    memories = Memories(opened, preview, words, scores)
    for name in memories.names if scores else ():
        memories.one(name)  # what is wrong with them is told before anything is served
    guarded = application(memories, config)
    ready(url)
    if browse:
        webbrowser.open(url)
    run(guarded, listening)


def url_of(config: ExplorerConfig, listening: socket.socket) -> str:
    """Of the start page."""
    host, port = config.address.rpartition(":")[0], listening.getsockname()[1]
    return f"http://{host}:{port}{config.root_path.rstrip('/')}/"


def run(
    guarded: Guard,
    listening: socket.socket,
    wait: Callable[[], object] | None = None,
    pair: tuple[Path, Path] | None = None,
) -> None:
    """Until the process is interrupted, or `wait`, in a thread of its own, returns. `pair`: certificate and key of the
    TLS that is spoken.
    """
    server = uvicorn.Server(
        uvicorn.Config(
            guarded,
            http=_Bounded,
            ws="none",
            backlog=_BACKLOG,
            log_level="error",  # a warning for each request that is none would be the visitors' to write
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACEFUL_SECONDS,
            ssl_certfile=None if pair is None else pair[0],
            ssl_keyfile=None if pair is None else pair[1],
        )
    )
    if wait is not None:

        def end() -> None:
            wait()
            server.should_exit = True

        threading.Thread(target=end, name="dualform-explorer-end", daemon=True).start()
    with suppress(KeyboardInterrupt), listening, asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(server.serve(sockets=[listening]))


class _Loop(asyncio.SelectorEventLoop):
    async def create_server(self, *arguments: Any, ssl: Any = None, **rest: Any) -> asyncio.Server:
        """With bounded time for TLS to begin, for which uvicorn has no setting."""
        patience = None if ssl is None else SECONDS
        return await super().create_server(*arguments, ssl=ssl, ssl_handshake_timeout=patience, **rest)


class _Bounded(H11Protocol):
    """A connection; uvicorn's own timer runs only between an answer and the first byte of the next request."""

    _silent: asyncio.TimerHandle | None = None
    """Runs while no request is being answered."""
    _unread: asyncio.TimerHandle | None = None
    """Runs while nobody reads an answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            silent = [own for own in self.connections if isinstance(own, _Bounded) and own._silent]
            min(silent, key=lambda own: own._silent.when() if own._silent else 0.0, default=self)._end()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        answers = self.cycle is not None and not self.cycle.response_complete
        if self._silent is not None and answers:
            self._silent.cancel()
            self._silent = None
        elif self._silent is None and not answers:
            self._silent = self.loop.call_later(SECONDS, self._end)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(SECONDS, self._end)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._silent, self._unread):
            if timer is not None:
                timer.cancel()

    def _end(self) -> None:
        self.connections.discard(self)  # whom it gave way to finds room at once
        self.transport.abort()


def listening_at(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    name = host.strip("[]")
    inet6 = ":" in name
    family, both = (socket.AF_INET6, socket.has_dualstack_ipv6()) if inet6 else (socket.AF_INET, False)
    try:  # it listens at once, for whoever is told the address may ask at once
        return socket.create_server((name, int(port)), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except (OSError, OverflowError) as error:
        why = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise BadInput(
            f"Nothing can listen at {address}: {why}.", hint="Give another --address.", field="address"
        ) from None


Target: TypeAlias = str | PathLike[str]
_CLOSING_SECONDS = 10


class ServedPages(AbstractContextManager["ServedPages"]):
    """Pages that are there until they are closed, or this process ends. A context manager."""

    def __init__(self, memories: Memories, config: ExplorerConfig) -> None:
        """Raises BadInput where the address cannot be had."""
        listening = listening_at(config.address)
        self.url = url_of(config, listening)
        """Of the start page."""
        self._closed = threading.Event()
        guarded = application(memories, config)
        work = partial(run, guarded, listening, self._closed.wait)
        self._thread = threading.Thread(target=work, name="dualform-explorer-pages", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Returns when they are closed, by Ctrl-C or by `close` in another thread: what a script ends with."""
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self.close()

    def close(self) -> None:
        """Nobody is answered any more, and the memories are closed."""
        self._closed.set()
        self._thread.join(_CLOSING_SECONDS)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ServedPages at {self.url}"


def explore(
    targets: Target | Sequence[Target],
    preview: PreviewFunction | None = None,
    *,
    tokenizer: Any = None,
    scores: Sequence[str] = (),
    address: str = "127.0.0.1:0",
    token: str | None = None,
    deadline: float = DEADLINE,
    browse: bool = False,
    **connecting: Any,
) -> ServedPages:
    """Pages over memories, for a browser: `explore("runs/mine").url` is their address. They are served by a thread of
    this process until `close()`; a script ends with `.wait()`.

    `targets`: a memory's folder, a server's host:port, or several of them. `preview(dataset, sample)` says what a
    training sample looks like, in place of the preview sets of datasets: it returns an image (an array, a tensor or one
    of Pillow's, alone or with its label), a text, alone or with the offsets of its tokens, a mapping of columns, or
    None. It is called in this process alone. Numbers of 8 bits are shown as they are, floats from 0 to 1 as shares of
    full brightness, and others are scaled from the least to the greatest of the image. `tokenizer`: what names labels
    and outputs without a recorded name: a `tokenizers.Tokenizer` or its file, or a tokenizer of transformers. `scores`:
    files of other packages that are shown beside ours, each as PATH, or PATH;dataset=NAME;set=NAME;name=NAME.
    `address`: where the pages are; port 0 is a free one. `token`: that visitors must have. `deadline`: seconds that a
    part of a page may take. `browse`: open the start page in a browser. `connecting`: how servers are reached, as
    `dualform.connect` has it.

    Raises what opening the memories does, and BadInput where the address cannot be had, `preview` cannot be called so
    or `tokenizer` is none.
    """
    several = [targets] if isinstance(targets, str | PathLike) else list(targets)
    places = [fspath(target) for target in several]
    if not places or len(set(places)) < len(places):
        raise BadInput("No target is given, or one twice.", hint="Name each memory once.", field="targets")
    if preview is not None:
        check_preview_function(preview)
    config = ExplorerConfig(address, token=token, deadline=deadline)
    opened = {
        name: partial(dualform.connect, place, **connecting)
        for name, place in zip(names_of(places), places, strict=True)
    }
    memories = Memories(opened, preview, None if tokenizer is None else Words(tokenizer), scores)
    try:
        for name in memories.names:
            memories.one(name).info()
        pages = ServedPages(memories, config)
    except BaseException:
        memories.close()
        raise
    if browse:
        webbrowser.open(pages.url)
    return pages

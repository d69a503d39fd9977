"""Serves the pages over memories: until interrupted, in a thread of a Python process, or next to a server of memories,
whose tokens and TLS they use, and with which they end.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import webbrowser
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, TypeAlias

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

import dualform
from dualform.errors import BadInput, Damaged, DualformError, Forbidden, NotAMemory, NotFound, Unauthenticated
from dualform.methods import Answers
from dualform_explorer.application import DEADLINE, Pages
from dualform_explorer.guard import PUBLIC, Guard
from dualform_explorer.memories import Memories, names_of
from dualform_explorer.preview_function import PreviewFunction, check_preview_function
from dualform_explorer.rendering import Failure, templates
from dualform_explorer.words import Words
from dualform_proto.address import LOOPBACK, parse_address

_GRACEFUL_SECONDS = 3
CONNECTIONS, SECONDS, _BACKLOG = 64, 10.0, 64
"""The most connections; one more replaces the connection that has been idle longest, or is closed. The seconds to send
a request, and to take its answer. The number of connections that may wait to be accepted."""


@dataclass(frozen=True)
class ExplorerConfig:
    address: str
    """host:port; port 0 is a free one."""
    hosts: Collection[str] = ()
    """Further host names of the server, such as a proxy's."""
    token: str | None = None
    """The token that visitors need. None needs no token, and is allowed only on addresses of this machine."""
    root_path: str = ""
    """The path under which a proxy serves the pages, such as /explorer."""
    deadline: float = DEADLINE
    """The time limit for a panel, in seconds."""

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
    """The pages with their security checks, as an ASGI application."""
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
    """Serve until interrupted. `ready` is called with the address of the start page. `preview`: shows training samples
    in place of recorded previews. `words`: names labels and outputs that have no recorded name. `scores`: as in
    `Memories`.

    Raises BadInput if it cannot listen at the address.
    """
    listening = listening_at(config.address)
    url = url_of(config, listening)
    memories = Memories(opened, preview, words, scores)
    for name in memories.names if scores else ():
        memories.one(name)  # report errors before serving
    guarded = application(memories, config)
    ready(url)
    if browse:
        webbrowser.open(url)
    run(guarded, listening)


def url_of(config: ExplorerConfig, listening: socket.socket) -> str:
    """The address of the start page."""
    host, port = config.address.rpartition(":")[0], listening.getsockname()[1]
    return f"http://{host}:{port}{config.root_path.rstrip('/')}/"


def run(
    guarded: Guard,
    listening: socket.socket,
    wait: Callable[[], object] | None = None,
    pair: tuple[Path, Path] | None = None,
) -> None:
    """Serve until interrupted, or until `wait` returns, which runs in a separate thread. `pair`: certificate and key
    for TLS.
    """
    server = uvicorn.Server(
        uvicorn.Config(
            guarded,
            http=_Bounded,
            ws="none",
            backlog=_BACKLOG,
            log_level="error",  # a warning for each invalid request would let visitors fill the log
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
        """Adds a time limit for the TLS handshake, for which uvicorn has no setting."""
        patience = None if ssl is None else SECONDS
        return await super().create_server(*arguments, ssl=ssl, ssl_handshake_timeout=patience, **rest)


class _Bounded(H11Protocol):
    """A connection with time limits. uvicorn limits only the time between an answer and the first byte of the next
    request.
    """

    _silent: asyncio.TimerHandle | None = None
    """Runs while no request is being answered."""
    _unread: asyncio.TimerHandle | None = None
    """Runs while an answer is not read."""

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
        self.connections.discard(self)  # frees its place at once
        self.transport.abort()


def listening_at(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    name = host.strip("[]")
    inet6 = ":" in name
    family, both = (socket.AF_INET6, socket.has_dualstack_ipv6()) if inet6 else (socket.AF_INET, False)
    try:  # listens at once, so that a caller of `ready` can connect
        return socket.create_server((name, int(port)), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except (OSError, OverflowError) as error:
        why = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise BadInput(
            f"Nothing can listen at {address}: {why}.", hint="Give another --address.", field="address"
        ) from None


Target: TypeAlias = str | PathLike[str]
_CLOSING_SECONDS = 10


class ServedPages(AbstractContextManager["ServedPages"]):
    """Pages served by a thread until they are closed, or the process ends. A context manager."""

    def __init__(self, memories: Memories, config: ExplorerConfig) -> None:
        """Raises BadInput if it cannot listen at the address."""
        listening = listening_at(config.address)
        self.url = url_of(config, listening)
        """The address of the start page."""
        self._closed = threading.Event()
        guarded = application(memories, config)
        work = partial(run, guarded, listening, self._closed.wait)
        self._thread = threading.Thread(target=work, name="dualform-explorer-pages", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until Ctrl-C, or until another thread calls `close`. The last line of a script."""
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self.close()

    def close(self) -> None:
        """Stop serving and close the memories."""
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
    """Serve pages over memories to a browser: `explore("runs/mine").url` is their address. A thread of this process
    serves them until `close()`. A script ends with `.wait()`.

    `targets`: a memory's folder, a server's host:port, or several of these.
    `preview(dataset, sample)`: shows training samples in place of recorded previews. It returns an image (an array, a
    tensor or one of Pillow's, alone or with its label), a text, alone or with the offsets of its tokens, a mapping of
    columns, or None. It is called only in this process. 8-bit numbers are shown unchanged, floats from 0 to 1 as shares
    of full brightness, and others are scaled from the least to the greatest of the image.
    `tokenizer`: names labels and outputs that have no recorded name: a `tokenizers.Tokenizer` or its file, or a
    tokenizer of transformers.
    `scores`: files of other packages to show next to our scores, each as PATH, or PATH;dataset=NAME;set=NAME;name=NAME.
    `address`: where to listen; port 0 takes a free port.
    `token`: the token that visitors need.
    `deadline`: the time limit for a panel, in seconds.
    `browse`: open the start page in a browser.
    `connecting`: options for servers, as in `dualform.connect`.

    Raises the errors of opening the memories, and BadInput if it cannot listen at the address, `preview` cannot be
    called this way, or `tokenizer` is not a tokenizer.
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


Opened = Mapping[str, Callable[[], Answers]]
"""By name, a function that connects to a memory."""
_MOST_VISITORS = 64
"""The most visitors whose pages are kept. The one who asked longest ago is dropped first."""
_CHECK_SECONDS = 5.0
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
        if visit is not None and monotonic() - visit.checked < _CHECK_SECONDS:
            self._visits.move_to_end(token)
            return visit
        memories = Memories(self._connect(token)) if visit is None else visit.memories
        try:
            await asyncio.wait_for(asyncio.to_thread(_ask, memories), _CHECK_SECONDS)
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
        if len(self._visits) > _MOST_VISITORS:
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

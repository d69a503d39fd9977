"""The pages over memories, begun from Python: they are served by a thread of this process."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Sequence
from functools import partial
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Self, TypeAlias

import dualform
from dualform.errors import BadInput
from dualform_explorer.application import DEADLINE
from dualform_explorer.memories import Memories, names_of
from dualform_explorer.preview_function import PreviewFunction, check_preview_function
from dualform_explorer.server import ExplorerConfig, application, listening_at, run, url_of

Target: TypeAlias = str | PathLike[str]
_CLOSING_SECONDS = 10


class ServedPages:
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

    def __enter__(self) -> Self:
        return self

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
    full brightness, and others are scaled from the least to the greatest of the image. `address`: where the pages are;
    port 0 is a free one. `token`: that visitors must have. `deadline`: seconds that a part of a page may take.
    `browse`: open the start page in a browser. `connecting`: how servers are reached, as `dualform.connect` has it.

    Raises what opening the memories does, and BadInput where the address cannot be had or `preview` cannot be called
    so.
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
    memories = Memories(opened, preview)
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

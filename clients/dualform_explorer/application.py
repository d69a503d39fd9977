"""The pages: what stands at which address. All are read with GET, and each address is the whole state of its page.

    ./                  memories, probes, examples worth a look
    ./explore?item=…    one example: its output, and what in the training speaks for it
    ./static/…          stylesheet and scripts

Addresses within a page are relative, so that it works under any path.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from dualform.answers import MemoryInfo
from dualform.errors import DualformError
from dualform.methods import Answers
from dualform_explorer.asking import Desk, Failure
from dualform_explorer.memories import Memories
from dualform_explorer.panels import PANELS
from dualform_explorer.reading import Reading, layer_of, read_state
from dualform_explorer.rendering import templates
from dualform_explorer.start import probe_panel
from dualform_explorer.state import KS, SCORES, State, query_of

STATIC = Path(__file__).parent / "static"
_OF_PLACE = frozenset(("slot", "step", "row", "position", "call"))
"""Columns that say where a slot stands, and not what it is of."""
DEADLINE = 15.0
"""Seconds that a panel may take where nothing else is said."""


class Pages:
    def __init__(self, memories: Memories, deadline: float = DEADLINE) -> None:
        self._memories, self._desk = memories, Desk(deadline)
        self._templates = templates(asynchronous=True)

    def application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", self.start, methods=["GET"]),
                Route("/explore", self.explore, methods=["GET"]),
                Mount("/static", StaticFiles(directory=STATIC)),
            ],
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, _application: Starlette) -> AsyncIterator[None]:
        yield
        self._desk.close()
        self._memories.close()

    async def start(self, request: Request) -> Response:
        """Memories, and of each its probes."""
        opened = [(name, await self._opened(name)) for name in self._memories.names]
        several = len(opened) > 1
        jobs: dict[tuple[str, str], asyncio.Task[Markup]] = {}
        for name, found in opened:
            if isinstance(found, Failure):
                continue
            memory, info = found
            for probe in info.probes:
                context = {"memory": name if several else "", "link": partial(_item_link, name if several else "")}
                make = partial(probe_panel, memory, info, probe.name)
                jobs[name, probe.name] = self._begin("probe", probe.name, make, context)

        async def panel(name: str, probe: str) -> Markup:
            return await jobs[name, probe]

        return self._stream("start.html", {"memories": [(n, f) for n, f in opened], "panel": panel}, jobs.values())

    async def explore(self, request: Request) -> Response:
        """One example."""
        params = request.query_params.multi_items()
        names = self._memories.names
        name = next((value for own, value in params if own == "memory"), names[0] if len(names) == 1 else "")
        found = await self._opened(name)
        if isinstance(found, Failure):
            links = [(own, "explore?" + query_of({"memory": own})) for own in names]
            return self._stream("trouble.html", {"failure": found, "links": links}, (), 404 if not name else 502)
        memory, info = found
        reading = read_state(params, info, name if len(names) > 1 else "")
        if reading.state is None:
            return self._stream("faults.html", {"faults": reading.faults, "memory": name}, (), 400)
        state = reading.state
        if reading.forms:
            return RedirectResponse(f"explore?{state.query()}", 303)
        return self._page(memory, info, name, reading)

    def _page(self, memory: Answers, info: MemoryInfo, name: str, reading: Reading) -> Response:
        state = reading.state
        assert state is not None
        context = {
            "state": state,
            "info": info,
            "memory": name,
            "names": self._memories.names,
            "link": partial(_link, state),
            "to": _to,
            "scores": SCORES,
            "ks": KS,
            "groupings": _groupings(info, state),
        }
        jobs = {
            key: self._begin(key, panel.title, partial(panel.make, memory, info, state), context)
            for key, panel in PANELS.items()
        }

        async def panel(key: str) -> Markup:
            return await jobs[key]

        return self._stream("explore.html", {**context, "panel": panel}, jobs.values())

    async def _opened(self, name: str) -> tuple[Answers, MemoryInfo] | Failure:
        """A memory as it is now, and what it holds."""

        def opened() -> tuple[Answers, MemoryInfo]:
            memory = self._memories.newest(name)
            return memory, memory.info()

        try:
            found: tuple[Answers, MemoryInfo] = await self._desk.run(opened)
        except DualformError as error:
            return Failure(error.message, error.hint, error.code)
        except TimeoutError:
            return Failure(f"{name} did not answer within {self._desk.seconds:g} seconds.", code="late")
        return found

    def _begin(self, name: str, title: str, make: Callable[[], Any], context: dict[str, Any]) -> asyncio.Task[Markup]:
        return asyncio.create_task(self._desk.panel(name, title, make, context))

    def _stream(self, template: str, context: dict[str, Any], jobs: Any, status: int = 200) -> Response:
        """A page that is sent as its parts are ready."""
        found = self._templates.get_template(template)

        async def parts() -> AsyncIterator[str]:
            try:
                async for part in found.generate_async(context):
                    yield part
            finally:
                for job in jobs:
                    job.cancel()

        return StreamingResponse(parts(), status, media_type="text/html")


def _link(state: State, **changes: Any) -> str:
    return f"explore?{state.query(**changes)}"


def _to(state: State) -> str:
    return f"explore?{state.query()}"


def _item_link(memory: str, probe: str, row: int, layer: str, by: tuple[str, ...], among: str = "all") -> str:
    return f"explore?{State(memory, probe, row, layer, by, among=among).query()}"


def _groupings(info: MemoryInfo, state: State) -> list[tuple[str, ...]]:
    """What slots may be grouped by with a click: columns that say something of them, and the page's own."""
    layer = layer_of(info, state.layer)
    columns = [] if layer is None else info.columns[layer.space]
    found: list[tuple[str, ...]] = [(name,) for name in columns if name not in _OF_PLACE]
    if len(info.datasets) > 1:
        found.insert(0, ("dataset", "label"))
    return found if state.by in found else [*found, state.by]

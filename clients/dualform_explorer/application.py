"""The pages and their addresses. All are read with GET, and each address holds the whole state of its page.

    ./                  memories, query sets, examples worth a look
    ./explore?item=…    one example: its output, and the training data behind it
    ./paper?item=…      all of its layers, as the paper shows them
    ./compare?a.item=…  two pages side by side
    ./sample?sample=…   one training sample: when it was learned, and what it moved
    ./search?q=…        the samples whose texts or table rows have a phrase
    ./map?item=…        the slots of its layer as points; ./points and ./preview are its data
    ./panels?item=…     its panels, for scripts; ./news says how many steps are recorded
    ./panel?panel=…     one of its panels, for a frame or to print; ./csv has its answers
    ./static/…          stylesheet and scripts

Addresses within a page are relative, so that it works under any path.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from dualform.answers import MemoryInfo
from dualform.errors import BadInput, BadMask, DualformError, NotFound
from dualform_explorer import map as map_page, search
from dualform_explorer.compare import SIDES, compare_link, compare_panel, default_sides, params_of
from dualform_explorer.examples import NAMES
from dualform_explorer.export import Told, as_command, as_csv, as_python
from dualform_explorer.filter import enclosed
from dualform_explorer.groups import groupings_of
from dualform_explorer.memories import Memories, OneSnapshot
from dualform_explorer.panels import PANELS, panel_of, panels_in, panels_of, template_of
from dualform_explorer.panels.layers import paper_panel
from dualform_explorer.rendering import KEYS, Failure, layer_in_words, layer_name, templates
from dualform_explorer.sample import SampleAddress, moved_panel, neighbours_panel, read_sample, sample_panel
from dualform_explorer.start import corrections_panel, query_set_panel
from dualform_explorer.state import (
    ALL,
    CELL,
    KS,
    LONGEST,
    MISCLASSIFIED,
    SCORES,
    SECTIONS,
    Fault,
    Params,
    Reading,
    cell_link,
    item_link,
    layer_of,
    layers_of,
    link,
    query_string,
    read_state,
)
from dualform_explorer.view import Snapshot, View

_THREADS = 12
log = logging.getLogger("dualform_explorer")


class Invalid(Exception):
    """Raised for an address with faults; `page` is the page that it would have been."""

    def __init__(self, faults: Sequence[Fault], page: str, name: str, info: MemoryInfo) -> None:
        super().__init__()
        self.faults, self.page, self.name, self.info = faults, page, name, info


@dataclass
class Running:
    """A panel that is being computed."""

    work: Future[Any]
    waiting: int = 0
    """The number of requests waiting for it."""


class PanelThreads:
    """A small thread pool. Work that no request waits for any more is cancelled, so that it does not delay others."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: the time limit for a panel."""
        self.seconds = seconds
        self.pool = ThreadPoolExecutor(_THREADS, "dualform-explorer")
        self._templates = templates()
        self._running: dict[Hashable, Running] = {}

    async def panel(self, make: Callable[[], Any], context: dict[str, Any], template: str, same: Hashable) -> Markup:
        """Render a panel as HTML, or the reason why it failed. Requests for the `same` panel share one computation, so
        that a page can ask again for a panel that was late.
        """
        try:
            found: Markup = await self.shared(partial(self._made, make, context, template), same)
            return found
        except TimeoutError:
            hint = "It is still being worked on, and appears here once it is there."
            return self._failed(Failure(f"There was no answer within {self.seconds:g} seconds.", hint, "late"), context)

    async def shared(self, work: Callable[[], Any], same: Hashable = None) -> Any:
        """Run `work` once for all requests of the `same` thing at a time. Raises TimeoutError."""
        key = work if same is None else same
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = Running(self.pool.submit(work))
            running.work.add_done_callback(lambda _: self._running.pop(key, None))
        running.waiting += 1
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(running.work)), self.seconds)
        except asyncio.CancelledError:
            if running.waiting == 1:  # the visitor is gone
                running.work.cancel()
            raise
        finally:
            running.waiting -= 1

    def _made(self, make: Callable[[], Any], context: dict[str, Any], template: str) -> Markup:
        try:
            panel = make()
            shown = self._templates.get_template(template_of(template, panel))
            return Markup(shown.render({**context, "panel": panel}))
        except Exception as error:
            if not isinstance(error, DualformError):
                log.exception("the panel %s failed", context["name"])
            return self._failed(Failure.of(error), context)

    def _failed(self, failure: Failure, context: dict[str, Any]) -> Markup:
        return Markup(self._templates.get_template("failed.html").render({**context, "failure": failure}))


STATIC = Path(__file__).parent / "static"
_SEE_OTHER, _BAD_REQUEST, _NOT_FOUND, _FAULT, _BAD_GATEWAY = 303, 400, 404, 500, 502
_FOR_SCRIPTS = ("panels", "points", "preview", "news")
"""Pages that return JSON, also for errors."""
DEADLINE = 15.0
"""The default time limit for a panel, in seconds."""


class Pages:
    def __init__(self, memories: Memories, deadline: float = DEADLINE) -> None:
        self._memories, self._threads = memories, PanelThreads(deadline)
        self._templates = templates(asynchronous=True)

        pages = (
            *(self.explore, self.panels, self.paper, self.compare, self.sample, self.search),
            *(self.map, self.points, self.preview, self.csv, self.panel, self.news),
        )
        self.application = Starlette(
            routes=[
                Route("/", self.start, methods=["GET"]),
                *(Route(f"/{page.__name__}", page, methods=["GET"]) for page in pages),
                Mount("/static", StaticFiles(directory=STATIC)),
            ],
            middleware=[Middleware(GZipMiddleware, compresslevel=5)],  # each part is sent as soon as it is ready
            lifespan=self._lifespan,
            exception_handlers={
                _NOT_FOUND: _nowhere,
                DualformError: self._refused,
                TimeoutError: self._refused,
                Invalid: self._invalid,
            },
        )
        self.application.router.redirect_slashes = False  # a proxy may serve it under another name

    @asynccontextmanager
    async def _lifespan(self, _application: Starlette) -> AsyncIterator[None]:
        self.begin()
        yield
        self.close()

    def begin(self) -> None:
        """Compute the first answer of each memory in advance, so that the first visitor need not wait."""
        for name in self._memories.names:
            self._threads.pool.submit(_begin_sql, self._memories, name)
            self._threads.pool.submit(_warm, self._memories, name)

    def close(self) -> None:
        self._threads.pool.shutdown(wait=False, cancel_futures=True)
        self._memories.close()

    async def start(self, request: Request) -> Response:
        """The start page: memories and their query sets."""
        opened: dict[str, MemoryInfo | Failure] = {}
        jobs: dict[tuple[str, str, str], asyncio.Task[Markup]] = {}
        later: dict[tuple[str, str], Callable[[], asyncio.Task[Markup]]] = {}
        asked = [request.query_params.get(key, "") for key in ("memory", "set", "cell")]
        for name in self._memories.names:
            try:
                snapshot = await self._opened(name, newest=True)
            except (DualformError, TimeoutError) as error:
                opened[name] = self._failure(error, name)
                continue
            opened[name], shown = snapshot.info, self._written(name)
            for query_set in snapshot.info.query_sets:
                context = {"memory": shown, "link": partial(item_link, shown), "cell": partial(cell_link, shown)}
                chosen = CELL.fullmatch(asked[2]) or asked[2] in (ALL, MISCLASSIFIED)
                cell = asked[2] if asked[:2] == [shown, query_set.name] and chosen else ""
                same = ("start", name, snapshot.info.snapshot, query_set.name)
                make = partial(query_set_panel, snapshot, query_set.name, cell)
                jobs["query_set", name, query_set.name] = self._begin(
                    "query_set", query_set.name, make, context, (*same, cell)
                )
                more = partial(corrections_panel, snapshot, query_set.name)
                later[name, query_set.name] = partial(
                    self._begin, "corrections", query_set.name, more, context, (*same, "corrections")
                )

        async def corrections(name: str, query_set: str) -> Markup:
            """Started last, because it takes seconds."""
            job = jobs["corrections", name, query_set] = later[name, query_set]()
            return await job

        texts = [name for name, own in opened.items() if isinstance(own, MemoryInfo) and search.searchable(own)]
        context = {"memories": opened, "searchable": texts, "corrections": corrections}
        return self._filled("start.html", context, jobs)

    async def explore(self, request: Request) -> Response:
        """The page of one example."""
        snapshot, name = await self._asked(request, newest=True)
        reading = Reading(_params(request), snapshot.info)
        view = await self._read(reading, snapshot, name, "explore")
        if reading.forms or not reading.complete:
            return RedirectResponse(link(view.state), _SEE_OTHER)
        context = self._context(view)
        return self._filled("explore.html", context, self._jobs(view, context, panels_of(view.state)))

    async def paper(self, request: Request) -> Response:
        """One example in all of its layers."""
        view = await self._page(request)
        layers = {f"layer-{n}": own.name for n, own in enumerate(layers_of(view.info, view.state.query_set))}
        context = self._context(view)
        try:
            sql = view.where_before
        except BadMask:  # shown by each layer
            sql = view.state.where
        context |= {"layers": [*layers], "sql": sql}
        jobs = self._jobs(view, context, ("query",))
        for key, own in layers.items():
            jobs[key] = self._begin(key, own, partial(paper_panel, view, own), context, (*view.same, key), "paper")
        return self._filled("paper.html", context, jobs)

    async def search(self, request: Request) -> Response:
        """Search previews for a phrase. A memory without query sets can be searched too."""
        snapshot, name = await self._asked(request, newest=True)
        reading = Reading(_params(request), snapshot.info, search.PARAMETERS)
        phrase, start = reading.one("q").strip() and reading.one("q"), reading.number("from") or 0
        state = None
        if snapshot.info.query_sets or reading.faults:
            state = (await self._read(reading, snapshot, name, "search")).state
        here = partial(search.search_address, state, self._written(name), phrase)
        context = {
            "state": state,
            "memory": name,
            **self._searching(snapshot.info, name),
            "phrase": phrase,
            "to": link,
            "on": here,
            "link": lambda: here(start),
            "most": (search.MOST_SAMPLES, search.MOST_LINES),
        }
        seconds = min(search.SECONDS, self._threads.seconds / 2)
        make = partial(search.search_panel, snapshot, state, phrase, start, seconds)
        same = (name, snapshot.info.snapshot, state, "search", phrase, start)
        return self._filled("search.html", context, {"search": self._begin("search", "Search", make, context, same)})

    async def map(self, request: Request) -> Response:
        """The map of a layer's slots, drawn by a script."""
        view, colour, axes = await self._mapped(request)
        own = ""
        with suppress(BadMask):  # the script shows the error
            own = enclosed(view.state.where) if view.state.where else ""
        context = self._context(view)
        context |= {"colour": colour, "colours": map_page.COLOURS, "longest": LONGEST, "own": own}
        context |= {"axes": axes, "kinds": map_page.axes_known()}
        return self._filled("map.html", context)

    async def _mapped(self, request: Request) -> tuple[View, str, str]:
        """The page of a map, its colour and its axes."""
        snapshot, name = await self._asked(request, newest=True)
        reading = Reading(_params(request), snapshot.info, map_page.PARAMETERS)
        colour = reading.choice("colour", map_page.COLOURS[0], map_page.COLOURS)
        axes = reading.choice("axes", "pca", map_page.axes_known())
        return await self._read(reading, snapshot, name, "map"), colour, axes

    async def points(self, request: Request) -> Response:
        """The data of the map."""
        view, _, axes = await self._mapped(request)
        return await self._json(partial(map_page.map_points, view, axes), (*view.same, "points", axes))

    async def preview(self, request: Request) -> Response:
        """The preview of one training sample, for the map's tooltip."""
        snapshot, name = await self._asked(request)
        params = _params(request)
        make = partial(map_page.preview_of, snapshot, params)
        return await self._json(make, (name, snapshot.info.snapshot, *params))

    async def _json(self, make: Callable[[], str], same: Hashable) -> Response:
        """Run `make` in a thread and return its JSON text."""
        try:
            return Response(await self._threads.shared(make, same), media_type="application/json")
        except (DualformError, TimeoutError):
            raise
        except Exception as error:
            log.exception("the map failed")
            failure = Failure.of(error)
            return JSONResponse({"message": failure.message, "hint": failure.hint, "code": failure.code}, _FAULT)

    async def panels(self, request: Request) -> Response:
        """The panels of a page for scripts, one line of JSON each, in the order in which they are ready. The first line
        has the page's title and address. With `panel=NAME`, only that panel.
        """
        waited = request.query_params.get("panel")
        view = await self._page(request, newest=False)
        context = self._context(view)
        jobs = self._jobs(view, context, [name for name in panels_of(view.state) if waited in (None, name)])
        bar, sections = [
            await self._templates.get_template(own).render_async({**context, "panel": _empty})
            for own in ("bar.html", "sections.html")
        ]
        said = {"title": context["page_title"], "heading": context["heading"], "bar": bar, "sections": sections}

        async def lines() -> AsyncIterator[str]:
            async def named(key: str, job: asyncio.Task[Markup]) -> dict[str, str]:
                return {"panel": key, "html": str(await job)}

            try:
                yield json.dumps({"address": link(view.state), **said}) + "\n"
                for done in asyncio.as_completed([named(*both) for both in jobs.items()]):
                    yield json.dumps(await done) + "\n"
            finally:
                for job in jobs.values():
                    job.cancel()

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def compare(self, request: Request) -> Response:
        """Two pages side by side."""
        sides = [await self._page(request, side=key) for key in SIDES]
        searched = next((own.state for own in sides if search.searchable(own.info)), None)
        context = {"sides": sides, "names": self._memories.names, "to": link, "searched": searched}
        context["tokens"] = [own.layer.space != "sample" for own in sides]
        same = (*(own.same for own in sides), "compare")
        jobs = {"compare": self._begin("compare", "Side by side", partial(compare_panel, *sides), context, same)}
        return self._filled("compare.html", context, jobs)

    async def sample(self, request: Request) -> Response:
        """The page of one training sample."""
        snapshot, name = await self._asked(request, newest=True)
        info = snapshot.info
        address = read_sample(_params(request), info, self._written(name))
        if isinstance(address, list):
            raise Invalid(address, "sample", name, info)
        context = {"address": address, "info": info, "memory": name, "to": link, **self._searching(info, name)}
        context |= {"sample_at": address.at, "layer_names": [own.name for own in layers_of(info, address.query_set)]}
        makers = {
            "sample": ("Sample", sample_panel),
            "neighbours": ("Most similar samples", neighbours_panel),
            "moved": ("Predictions without it", moved_panel),
        }
        jobs = {
            key: self._begin(key, title, partial(make, snapshot, address), context, (name, info.snapshot, address, key))
            for key, (title, make) in makers.items()
        }
        return self._filled("sample.html", context, jobs)

    async def csv(self, request: Request) -> Response:
        """The answer to one question of a panel, by number, as a CSV file."""
        panel, number = (request.query_params.get(key, "") for key in ("panel", "question"))
        if panel not in PANELS or not (number.isascii() and number.isdecimal() and len(number) < 4):
            return await _nowhere(request, KeyError())
        view = await self._page(request, newest=False)

        def written() -> str:
            told = Told(view.memory)
            PANELS[panel].make(replace(view, memory=told))
            if int(number) >= len(told.questions):
                raise NotFound(f"The part {panel} asks {len(told.questions)} questions.", field="question")
            return as_csv(view.memory.ask(told.questions[int(number)]))

        saved = {"Content-Disposition": f'attachment; filename="{panel}.csv"'}
        return PlainTextResponse(await self._threads.shared(written), media_type="text/csv", headers=saved)

    async def panel(self, request: Request) -> Response:
        """One panel with its question, for an `<iframe>` or to print."""
        panel = request.query_params.get("panel")
        if panel not in PANELS:
            return await _nowhere(request, KeyError())
        view = await self._page(request, newest=False)
        context = {**self._context(view), "alone": panel}
        return self._filled("alone.html", context, self._jobs(view, context, (panel,)))

    async def news(self, request: Request) -> Response:
        """How many steps have been recorded, for pages of a running training."""
        info: MemoryInfo = await self._threads.shared(partial(self._memories.news, self._name(_params(request))))
        return JSONResponse({"snapshot": info.snapshot, "steps": info.steps, "recording": info.recording})

    def _name(self, params: Params) -> str:
        """The name of the memory in an address."""
        names = self._memories.names
        return next((value for own, value in params if own == "memory"), names[0] if len(names) == 1 else "")

    def _written(self, name: str) -> str:
        """The memory's name as links have it: empty if there is only one."""
        return name if len(self._memories.names) > 1 else ""

    async def _opened(self, name: str, newest: bool = False) -> Snapshot:
        """A memory: the newest, or as the reader last saw it."""

        def opened() -> Snapshot:
            memory = self._memories.newest(name) if newest else self._memories.one(name)
            info = memory.info()
            return Snapshot(OneSnapshot(memory, info.snapshot), info)

        found: Snapshot = await self._threads.shared(opened)
        return found

    async def _asked(self, request: Request, newest: bool = False) -> tuple[Snapshot, str]:
        """The memory that an address names, and its name."""
        name = self._name(_params(request))
        return await self._opened(name, newest), name

    async def _page(self, request: Request, newest: bool = True, side: str = "") -> View:
        """The example's page that an address names; `side` is "a" or "b" of a comparison."""
        params = params_of(_params(request), side) if side else _params(request)
        name = self._name(params)
        snapshot = await self._opened(name, newest)
        return await self._read(Reading(params, snapshot.info), snapshot, name, "explore")

    async def _read(self, reading: Reading, snapshot: Snapshot, name: str, page: str) -> View:
        """The page of an example. Raises Invalid if the address has faults, and any error of the memory."""
        reading.read(self._written(name))
        if reading.state is None:
            raise Invalid(reading.faults, page, name, reading.info)
        view = View(snapshot.memory, snapshot.info, reading.state, name)
        if reading.complete:
            return view
        return replace(view, state=await self._threads.shared(partial(view.completed, reading.move)))

    def _searching(self, info: MemoryInfo, name: str) -> dict[str, Any]:
        """The context that a page's search field needs."""
        return {"searchable": search.searchable(info), "written": [name] if self._written(name) else []}

    def _context(self, view: View) -> dict[str, Any]:
        info, name, state = view.info, view.name, view.state
        layers, layer = [own.name for own in layers_of(info, state.query_set)], layer_of(info, state.layer)
        item = state.item if state.token is None else f"{state.item}:{state.token}"
        sample = SampleAddress(state.memory, None, 0, state.query_set, False, layer.name if layer else None, item)
        return {
            "state": state,
            "info": info,
            "memory": name,
            "names": self._memories.names,
            "searchable": search.searchable(info),
            "link": partial(link, state),
            "to": link,
            "compare": compare_link(*default_sides(info, state)),
            "as_python": as_python,
            "as_command": as_command,
            "sample_at": sample.at,
            "scores": SCORES,
            "ks": KS,
            "groupings": groupings_of(info, state),
            "keys": KEYS,
            "panels_in": panels_in,
            "sections": SECTIONS,
            "layer_names": layers if state.layer in layers else [*layers, state.layer],
            "heading": f"{state.item} in {layer_in_words(state.layer)}",
            "page_title": " \N{MIDDLE DOT} ".join((state.item, layer_name(state.layer), name, "dualform")),
        }

    def _jobs(self, view: View, context: dict[str, Any], panels: Iterable[str]) -> dict[str, asyncio.Task[Markup]]:
        jobs = {}
        for key in panels:
            told = Told(view.memory)
            make = partial(panel_of, key, replace(view, memory=told))
            same = (*view.same, key, "alone" in context)
            jobs[key] = self._begin(key, PANELS[key].heading(view.state), make, {**context, "told": told}, same)
        return jobs

    def _begin(
        self,
        name: str,
        title: str,
        make: Callable[[], Any],
        context: dict[str, Any],
        same: Hashable,
        template: str = "",
    ) -> asyncio.Task[Markup]:
        context = {**context, "name": name, "title": title}
        return asyncio.create_task(self._threads.panel(make, context, template or name, same))

    def _filled(
        self, template: str, context: dict[str, Any], jobs: Mapping[Any, asyncio.Task[Markup]] = {}, status: int = 200
    ) -> Response:
        """Stream a page, each panel as soon as it is ready."""
        found = self._templates.get_template(template)

        async def panel(key: Any) -> Markup:
            return await jobs[key]

        async def parts() -> AsyncIterator[str]:
            try:
                async for part in found.generate_async({**context, "panel": panel}):
                    yield part
            finally:
                for job in jobs.values():
                    job.cancel()

        return StreamingResponse(parts(), status, media_type="text/html")

    def _failure(self, error: Exception, name: str) -> Failure:
        if isinstance(error, DualformError):
            return Failure.of(error)
        return Failure(f"{name} did not answer within {self._threads.seconds:g} seconds.", code="late")

    async def _refused(self, request: Request, error: Exception) -> Response:
        """A page or JSON with the error of a memory."""
        failure = self._failure(error, self._name(_params(request)))
        wrong = _BAD_REQUEST if isinstance(error, BadInput) else _BAD_GATEWAY
        status = _NOT_FOUND if isinstance(error, NotFound) else wrong
        if request.url.path.rpartition("/")[2] in _FOR_SCRIPTS:
            return JSONResponse({"message": failure.message, "hint": failure.hint, "code": failure.code}, status)
        links = [(own, "explore?" + query_string({"memory": own})) for own in self._memories.names]
        return self._filled("trouble.html", {"failure": failure, "links": links}, status=status)

    async def _invalid(self, request: Request, error: Exception) -> Response:
        """A page or JSON with the faults of an address."""
        assert isinstance(error, Invalid)
        if request.url.path.rpartition("/")[2] in _FOR_SCRIPTS:
            faults = [{"parameter": fault.parameter, "message": fault.message} for fault in error.faults]
            return JSONResponse({"message": faults[0]["message"], "hint": "", "faults": faults}, _BAD_REQUEST)
        context = {"faults": error.faults, "page": error.page, **self._searching(error.info, error.name)}
        return self._filled("faults.html", context, status=_BAD_REQUEST)


def _params(request: Request) -> Params:
    """The parameters of an address, without those that choose one part of its page."""
    own = {"panels": ("panel",), "panel": ("panel",), "csv": ("panel", "question")}.get(
        request.url.path.rpartition("/")[2], ()
    )
    return [pair for pair in request.query_params.multi_items() if pair[0] not in own]


def _begin_sql(memories: Memories, name: str) -> None:
    """Start the SQL process, which takes some tenths of a second. Every page needs it for the names of labels."""
    with suppress(DualformError):
        memories.one(name).sql(NAMES)


def _warm(memories: Memories, name: str) -> None:
    with suppress(DualformError):
        memory = memories.one(name)
        reading = read_state([], memory.info())
        if reading.state is not None:
            panel_of("answer", View(memory, reading.info, reading.state))


def _empty(key: str) -> Markup:
    """A placeholder for a panel that is filled later."""
    place = '<section id="panel-{0}" class="panel {0}" aria-label="{1}" data-waits></section>'
    return Markup(place).format(key, PANELS[key].title)


async def _nowhere(request: Request, _error: Exception) -> Response:
    there = "Pages are the start page (/), /explore?item=SET/EXAMPLE, /paper?item=SET/EXAMPLE, /sample?sample=N and "
    there += "/search?q=PHRASE."
    return PlainTextResponse(f"There is nothing at {request.url.path!r}. {there}\n", _NOT_FOUND)

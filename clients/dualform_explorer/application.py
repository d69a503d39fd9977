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
from dataclasses import dataclass
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
from dualform.methods import Answers
from dualform_explorer import map as map_page, search
from dualform_explorer.address import LONGEST, Fault, Params, Reading, completed, default_by
from dualform_explorer.compare import SIDES, Page, another, compare_link, compare_panel, params_of
from dualform_explorer.examples import NAMES, examples_of, layer_of, layers_of, output_layer
from dualform_explorer.filter import enclosed
from dualform_explorer.groups import groupings_of, where_before
from dualform_explorer.memories import Memories, OneSnapshot
from dualform_explorer.panels import PANELS, Waiting, panel_of, panels_in, panels_of
from dualform_explorer.panels.layers import paper_panel
from dualform_explorer.publish import Told, as_command, as_csv, as_python
from dualform_explorer.rendering import KEYS, layer_in_words, layer_name, templates
from dualform_explorer.sample import SampleAddress, moved_panel, neighbours_panel, read_sample, sample_panel
from dualform_explorer.start import corrections_panel, query_set_panel
from dualform_explorer.state import (
    ALL,
    CELL,
    KS,
    MISCLASSIFIED,
    SCORES,
    SECTIONS,
    State,
    cell_link,
    item_link,
    link,
    query_string,
)

_THREADS = 12
log = logging.getLogger("dualform_explorer")


@dataclass(frozen=True)
class Failure:
    """Shown in place of a panel."""

    message: str
    hint: str = ""
    code: str = ""
    field: str = ""
    """The argument of the question that caused the error."""

    @classmethod
    def of(cls, error: Exception) -> Failure:
        if isinstance(error, DualformError):
            return cls(error.message, error.hint, error.code, error.field or "")
        return cls(f"{type(error).__name__}: {error}", "This is a fault of dualform; the log has more.", "internal")


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
            shown = "waiting.html" if isinstance(panel, Waiting) else f"panels/{template}.html"
            return Markup(self._templates.get_template(shown).render({**context, "panel": panel}))
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
                memory, info = await self._opened(name, newest=True)
            except (DualformError, TimeoutError) as error:
                opened[name] = self._failure(error, name)
                continue
            opened[name], shown = info, self._written(name)
            for query_set in info.query_sets:
                context = {"memory": shown, "link": partial(item_link, shown), "cell": partial(cell_link, shown)}
                chosen = CELL.fullmatch(asked[2]) or asked[2] in (ALL, MISCLASSIFIED)
                cell = asked[2] if asked[:2] == [shown, query_set.name] and chosen else ""
                same = ("start", name, info.snapshot, query_set.name)
                make = partial(query_set_panel, memory, info, query_set.name, cell)
                jobs["query_set", name, query_set.name] = self._begin(
                    "query_set", query_set.name, make, context, (*same, cell)
                )
                more = partial(corrections_panel, memory, info, query_set.name)
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
        memory, info, name = await self._asked(request, newest=True)
        reading = Reading(_params(request), info)
        state = await self._read(reading, memory, name, "explore")
        if reading.forms or not reading.complete:
            return RedirectResponse(link(state), _SEE_OTHER)
        context = self._context(info, name, state)
        return self._filled("explore.html", context, self._jobs(memory, info, state, context, panels_of(state)))

    async def paper(self, request: Request) -> Response:
        """One example in all of its layers."""
        memory, info, name, state = await self._page(request)
        layers = {f"layer-{n}": own.name for n, own in enumerate(layers_of(info, state.query_set))}
        context = self._context(info, name, state)
        try:
            sql = where_before(info, state)
        except BadMask:  # shown by each layer
            sql = state.where
        context |= {"layers": [*layers], "sql": sql}
        jobs = self._jobs(memory, info, state, context, ("query",))
        for key, own in layers.items():
            make = partial(paper_panel, memory, info, state, own)
            jobs[key] = self._begin(key, own, make, context, (name, info.snapshot, state, key), "paper")
        return self._filled("paper.html", context, jobs)

    async def search(self, request: Request) -> Response:
        """Search previews for a phrase. A memory without query sets can be searched too."""
        memory, info, name = await self._asked(request, newest=True)
        reading = Reading(_params(request), info, search.PARAMETERS)
        phrase, start = reading.one("q").strip() and reading.one("q"), reading.number("from") or 0
        state = None
        if info.query_sets or reading.faults:
            state = await self._read(reading, memory, name, "search")
        here = partial(search.search_address, state, self._written(name), phrase)
        context = {
            "state": state,
            "memory": name,
            **self._searching(info, name),
            "phrase": phrase,
            "to": link,
            "on": here,
            "link": lambda: here(start),
            "most": (search.MOST_SAMPLES, search.MOST_LINES),
        }
        seconds = min(search.SECONDS, self._threads.seconds / 2)
        make = partial(search.search_panel, memory, info, state, phrase, start, seconds)
        same = (name, info.snapshot, state, "search", phrase, start)
        return self._filled("search.html", context, {"search": self._begin("search", "Search", make, context, same)})

    async def map(self, request: Request) -> Response:
        """The map of a layer's slots, drawn by a script."""
        memory, info, name = await self._asked(request, newest=True)
        reading = Reading(_params(request), info, map_page.PARAMETERS)
        colour = reading.choice("colour", map_page.COLOURS[0], map_page.COLOURS)
        axes = reading.choice("axes", "pca", map_page.axes_known())
        state = await self._read(reading, memory, name, "map")
        own = ""
        with suppress(BadMask):  # the script shows the error
            own = enclosed(state.where) if state.where else ""
        context = self._context(info, name, state)
        context |= {"colour": colour, "colours": map_page.COLOURS, "longest": LONGEST, "own": own}
        context |= {"axes": axes, "kinds": map_page.axes_known()}
        return self._filled("map.html", context)

    async def points(self, request: Request) -> Response:
        """The data of the map."""
        memory, info, name = await self._asked(request, newest=True)
        reading = Reading(_params(request), info, map_page.PARAMETERS)
        axes = reading.choice("axes", "pca", map_page.axes_known())
        state = await self._read(reading, memory, name, "map")
        make = partial(map_page.map_points, memory, info, state, axes)
        return await self._json(make, (name, info.snapshot, state, "points", axes))

    async def preview(self, request: Request) -> Response:
        """The preview of one training sample, for the map's tooltip."""
        memory, info, name = await self._asked(request)
        params = _params(request)
        return await self._json(partial(map_page.preview_of, memory, info, params), (name, info.snapshot, *params))

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
        memory, info, name, state = await self._page(request, newest=False)
        context = self._context(info, name, state)
        names = [name for name in panels_of(state) if waited in (None, name)]
        jobs = self._jobs(memory, info, state, context, names)
        bar, sections = [
            await self._templates.get_template(own).render_async({**context, "panel": _empty})
            for own in ("bar.html", "sections.html")
        ]
        said = {"title": context["page_title"], "heading": context["heading"], "bar": bar, "sections": sections}

        async def lines() -> AsyncIterator[str]:
            async def named(key: str, job: asyncio.Task[Markup]) -> dict[str, str]:
                return {"panel": key, "html": str(await job)}

            try:
                yield json.dumps({"address": link(state), **said}) + "\n"
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
        same = (*((own.name, own.info.snapshot, own.state) for own in sides), "compare")
        jobs = {"compare": self._begin("compare", "Side by side", partial(compare_panel, *sides), context, same)}
        return self._filled("compare.html", context, jobs)

    async def sample(self, request: Request) -> Response:
        """The page of one training sample."""
        memory, info, name = await self._asked(request, newest=True)
        address = read_sample(_params(request), info, self._written(name))
        if isinstance(address, list):
            raise Invalid(address, "sample", name, info)
        context = {"address": address, "info": info, "memory": name, "to": link, **self._searching(info, name)}
        context |= {"sample_at": address.at, "layer_names": [own.name for own in layers_of(info, address.query_set)]}
        jobs = {}
        makers = {
            "sample": ("Sample", sample_panel),
            "neighbours": ("Most similar samples", neighbours_panel),
            "moved": ("Predictions without it", moved_panel),
        }
        for key, (title, panel) in makers.items():
            make = partial(panel, memory, info, address)
            jobs[key] = self._begin(key, title, make, context, (name, info.snapshot, address, key))
        return self._filled("sample.html", context, jobs)

    async def csv(self, request: Request) -> Response:
        """The answer to one question of a panel, by number, as a CSV file."""
        panel, number = (request.query_params.get(key, "") for key in ("panel", "question"))
        if panel not in PANELS or not (number.isascii() and number.isdecimal() and len(number) < 4):
            return await _nowhere(request, KeyError())
        memory, info, _, state = await self._page(request, newest=False)

        def written() -> str:
            told = Told(memory)
            PANELS[panel].make(told, info, state)
            if int(number) >= len(told.questions):
                raise NotFound(f"The part {panel} asks {len(told.questions)} questions.", field="question")
            return as_csv(memory.ask(told.questions[int(number)]))

        saved = {"Content-Disposition": f'attachment; filename="{panel}.csv"'}
        return PlainTextResponse(await self._threads.shared(written), media_type="text/csv", headers=saved)

    async def panel(self, request: Request) -> Response:
        """One panel with its question, for an `<iframe>` or to print."""
        panel = request.query_params.get("panel")
        if panel not in PANELS:
            return await _nowhere(request, KeyError())
        memory, info, name, state = await self._page(request, newest=False)
        context = {**self._context(info, name, state), "alone": panel}
        return self._filled("alone.html", context, self._jobs(memory, info, state, context, (panel,)))

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

    async def _opened(self, name: str, newest: bool = False) -> tuple[Answers, MemoryInfo]:
        """A memory and its info: the newest, or as the reader last saw it."""

        def opened() -> tuple[Answers, MemoryInfo]:
            memory = self._memories.newest(name) if newest else self._memories.one(name)
            info = memory.info()
            return OneSnapshot(memory, info.snapshot), info

        found: tuple[Answers, MemoryInfo] = await self._threads.shared(opened)
        return found

    async def _asked(self, request: Request, newest: bool = False) -> tuple[Answers, MemoryInfo, str]:
        """The memory that an address names."""
        name = self._name(_params(request))
        return *await self._opened(name, newest), name

    async def _page(self, request: Request, newest: bool = True, side: str = "") -> Page:
        """The example's page that an address names; `side` is "a" or "b" of a comparison."""
        params = params_of(_params(request), side) if side else _params(request)
        name = self._name(params)
        memory, info = await self._opened(name, newest)
        state = await self._read(Reading(params, info), memory, name, "explore")
        return Page(memory, info, name, state)

    async def _read(self, reading: Reading, memory: Answers, name: str, page: str) -> State:
        """The state of a page. Raises Invalid if the address has faults, and any error of the memory."""
        reading.read(self._written(name))
        if reading.state is None:
            raise Invalid(reading.faults, page, name, reading.info)
        if reading.complete:
            return reading.state
        work = partial(completed, memory, reading.info, reading.state, reading.move)
        state: State = await self._threads.shared(work)
        return state

    def _searching(self, info: MemoryInfo, name: str) -> dict[str, Any]:
        """The context that a page's search field needs."""
        return {"searchable": search.searchable(info), "written": [name] if self._written(name) else []}

    def _context(self, info: MemoryInfo, name: str, state: State) -> dict[str, Any]:
        layers, layer = [own.name for own in layers_of(info, state.query_set)], layer_of(info, state.layer)
        return {
            "state": state,
            "info": info,
            "memory": name,
            "names": self._memories.names,
            "searchable": search.searchable(info),
            "link": partial(link, state),
            "to": link,
            "compare": compare_link(state, another(info, state)),
            "as_python": as_python,
            "as_command": as_command,
            "sample_at": SampleAddress(state.memory, None, 0, state.query_set, layer=layer.name if layer else None).at,
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

    def _jobs(
        self, memory: Answers, info: MemoryInfo, state: State, context: dict[str, Any], panels: Iterable[str]
    ) -> dict[str, asyncio.Task[Markup]]:
        jobs = {}
        for key in panels:
            told = Told(memory)
            make = partial(panel_of, key, told, info, state)
            same = (context["memory"], info.snapshot, state, key, "alone" in context)
            jobs[key] = self._begin(key, PANELS[key].title, make, {**context, "told": told}, same)
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
        info = memory.info()
        for query_set in info.query_sets[:1]:
            found = output_layer(memory, info, examples_of(memory, info, query_set.name))
            if found is not None:
                panel_of("answer", memory, info, State("", query_set.name, 0, found.name, default_by(info)))


def _empty(key: str) -> Markup:
    """A placeholder for a panel that is filled later."""
    place = '<section id="panel-{0}" class="panel {0}" aria-label="{1}" data-waits></section>'
    return Markup(place).format(key, PANELS[key].title)


async def _nowhere(request: Request, _error: Exception) -> Response:
    there = "Pages are the start page (/), /explore?item=SET/EXAMPLE, /paper?item=SET/EXAMPLE, /sample?sample=N and "
    there += "/search?q=PHRASE."
    return PlainTextResponse(f"There is nothing at {request.url.path!r}. {there}\n", _NOT_FOUND)

"""The pages: what stands at which address. All are read with GET, and each address is the whole state of its page.

    ./                  memories, query sets, examples worth a look
    ./explore?item=…    one example: its output, and what in the training it comes from
    ./paper?item=…      all of its layers, as the paper shows them
    ./compare?a.item=…  two pages side by side
    ./sample?sample=…   one training sample: when it was learned, and what it moved
    ./search?q=…        the samples whose texts or table rows have a phrase
    ./map?item=…        the slots of its layer as points; ./points and ./preview what a script draws there
    ./panels?item=…     its parts, for scripts; ./news how far a training has recorded
    ./static/…          stylesheet and scripts

Addresses within a page are relative, so that it works under any path.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Mapping, Sequence
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
from dualform_explorer.address import LONGEST, Fault, Params, Reading, completed, default_by, read_state
from dualform_explorer.compare import SIDES, Side, another, compare_link, compare_panel, params_of
from dualform_explorer.examples import NAMES, examples_of, layers_of, output_layer, query_set_of
from dualform_explorer.filter import enclosed
from dualform_explorer.groups import groupings_of, where_before
from dualform_explorer.map import read_colour
from dualform_explorer.memories import Memories, OneSnapshot
from dualform_explorer.panels import PANELS, Waiting, panel_of, panels_in, panels_of
from dualform_explorer.panels.layers import paper_panel
from dualform_explorer.publish import Told, as_command, as_csv, as_python
from dualform_explorer.rendering import KEYS, layer_in_words, layer_name, templates
from dualform_explorer.sample import SampleAddress, moved_panel, read_sample, sample_panel
from dualform_explorer.search import read_search, searchable
from dualform_explorer.start import corrections_panel, query_set_panel
from dualform_explorer.state import CELL, KS, SCORES, SECTIONS, State, cell_link, item_link, link, query_string

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


@dataclass
class Running:
    """What is being made."""

    work: Future[Any]
    waiting: int = 0
    """Pages that wait for it."""


class PanelThreads:
    """Few of them: a page that nobody waits for any more does not keep those who follow."""

    def __init__(self, seconds: float) -> None:
        """`seconds` that a panel may take."""
        self.seconds = seconds
        self._threads = ThreadPoolExecutor(_THREADS, "dualform-explorer")
        self._templates = templates()
        self._running: dict[Hashable, Running] = {}

    async def panel(
        self, name: str, title: str, make: Callable[[], Any], context: dict[str, Any], template: str, same: Hashable
    ) -> Markup:
        """The panel as HTML: what `make` returns in its template, or why there is nothing. While it is being made,
        whoever asks for the `same` waits for that one, so that a page may ask again for what was late.
        """
        try:
            found: Markup = await self.shared(partial(self._made, name, title, make, context, template), same)
            return found
        except TimeoutError:
            late = Failure(
                f"There was no answer within {self.seconds:g} seconds.",
                "It is still being worked on, and appears here once it is there.",
                "late",
            )
            return self._failed(name, title, late, context)

    async def shared(self, work: Callable[[], Any], same: Hashable) -> Any:
        """What `work` returns, for all who ask for the `same` while it is being made. Raises TimeoutError."""
        running = self._running.get(same)
        if running is None:
            running = self._running[same] = Running(self._threads.submit(work))
            running.work.add_done_callback(lambda _: self._running.pop(same, None))
        running.waiting += 1
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(running.work)), self.seconds)
        except asyncio.CancelledError:
            if running.waiting == 1:  # the visitor is gone: it need not begin any more
                running.work.cancel()
            raise
        finally:
            running.waiting -= 1

    def begin(self, work: Callable[[], Any]) -> None:
        """What nobody waits for."""
        self._threads.submit(work)

    async def run(self, work: Callable[[], Any]) -> Any:
        """What is no panel, in the same threads. Raises TimeoutError."""
        return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(self._threads, work), self.seconds)

    def _made(self, name: str, title: str, make: Callable[[], Any], context: dict[str, Any], template: str) -> Markup:
        try:
            panel = make()
            shown = "waiting.html" if isinstance(panel, Waiting) else f"panels/{template}.html"
            return Markup(
                self._templates.get_template(shown).render({**context, "name": name, "title": title, "panel": panel})
            )
        except DualformError as error:
            return self._failed(name, title, Failure(error.message, error.hint, error.code, error.field or ""), context)
        except Exception as error:
            log.exception("the panel %s failed", name)
            return self._failed(name, title, _internal(error), context)

    def _failed(self, name: str, title: str, failure: Failure, context: dict[str, Any]) -> Markup:
        found = self._templates.get_template("failed.html")
        return Markup(found.render({**context, "name": name, "title": title, "failure": failure}))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _internal(error: Exception) -> Failure:
    return Failure(f"{type(error).__name__}: {error}", "This is a fault of dualform; the log has more.", "internal")


STATIC = Path(__file__).parent / "static"
_SEE_OTHER, _BAD_REQUEST, _NOT_FOUND, _FAULT, _BAD_GATEWAY = 303, 400, 404, 500, 502
DEADLINE = 15.0
"""Seconds that a panel may take where nothing else is said."""


class Pages:
    def __init__(self, memories: Memories, deadline: float = DEADLINE) -> None:
        self._memories, self._threads = memories, PanelThreads(deadline)
        self._templates = templates(asynchronous=True)

    def application(self) -> Starlette:
        found = Starlette(
            routes=[
                Route("/", self.start, methods=["GET"]),
                Route("/explore", self.explore, methods=["GET"]),
                Route("/panels", self.panels, methods=["GET"]),
                Route("/paper", self.paper, methods=["GET"]),
                Route("/compare", self.compare, methods=["GET"]),
                Route("/sample", self.sample, methods=["GET"]),
                Route("/search", self.search, methods=["GET"]),
                Route("/map", self.map, methods=["GET"]),
                Route("/points", self.points, methods=["GET"]),
                Route("/preview", self.preview, methods=["GET"]),
                Route("/csv", self.csv, methods=["GET"]),
                Route("/news", self.news, methods=["GET"]),
                Mount("/static", StaticFiles(directory=STATIC)),
            ],
            middleware=[Middleware(GZipMiddleware, compresslevel=5)],  # each part is sent as it is ready
            lifespan=self._lifespan,
            exception_handlers={_NOT_FOUND: _nowhere},
        )
        found.router.redirect_slashes = False  # to an address that a proxy in front may know by another name
        return found

    @asynccontextmanager
    async def _lifespan(self, _application: Starlette) -> AsyncIterator[None]:
        for name in self._memories.names:
            self._threads.begin(partial(_begin_sql, self._memories, name))
            self._threads.begin(partial(_warm, self._memories, name))
        yield
        self._threads.close()
        self._memories.close()

    async def start(self, request: Request) -> Response:
        """Memories, and of each its query sets."""
        opened = [(name, await self._opened(name, newest=True)) for name in self._memories.names]
        several = len(opened) > 1
        jobs: dict[tuple[str, str, str], asyncio.Task[Markup]] = {}
        later: dict[tuple[str, str], Callable[[], asyncio.Task[Markup]]] = {}
        for name, found in opened:
            if isinstance(found, Failure):
                continue
            memory, info = found
            for query_set in info.query_sets:
                shown = name if several else ""
                context = {"memory": shown, "link": partial(item_link, shown), "cell": partial(cell_link, shown)}
                asked = (request.query_params.get("memory", ""), request.query_params.get("set"))
                cell = request.query_params.get("cell", "") if asked == (shown, query_set.name) else ""
                cell = cell if CELL.fullmatch(cell) else ""
                same = ("start", name, info.snapshot, query_set.name)
                make = partial(query_set_panel, memory, info, query_set.name, cell)
                jobs["query_set", name, query_set.name] = self._begin(
                    "query_set", query_set.name, make, context, (*same, cell)
                )
                more = partial(corrections_panel, memory, info, query_set.name)
                later[name, query_set.name] = partial(
                    self._begin, "corrections", query_set.name, more, context, (*same, "corrections")
                )

        async def panel(name: str, query_set: str) -> Markup:
            return await jobs["query_set", name, query_set]

        async def corrections(name: str, query_set: str) -> Markup:
            """Begun when all before it is sent, for it takes seconds."""
            job = jobs["corrections", name, query_set] = later[name, query_set]()
            return await job

        texts = [name for name, found in opened if not isinstance(found, Failure) and searchable(found[1])]
        context = {"memories": opened, "searchable": texts, "panel": panel, "corrections": corrections}
        return self._stream("start.html", context, jobs.values())

    async def explore(self, request: Request) -> Response:
        """One example."""
        found = await self._page_of(request.query_params.multi_items())
        if isinstance(found, Response):
            return found
        memory, info, name, reading, state = found
        if reading.forms or not reading.complete:
            return RedirectResponse(link(state), _SEE_OTHER)
        context = self._context(info, name, state)
        return self._filled("explore.html", context, self._jobs(memory, info, state, context, panels_of(state)))

    async def paper(self, request: Request) -> Response:
        """One example in all of its layers."""
        found = await self._page_of(request.query_params.multi_items())
        if isinstance(found, Response):
            return found
        memory, info, name, _, state = found
        query_set = query_set_of(info, state.query_set)
        layers = (
            {} if query_set is None else {f"layer-{n}": own.name for n, own in enumerate(layers_of(info, query_set))}
        )
        context = self._context(info, name, state)
        try:
            sql = where_before(info, state)
        except BadMask:  # which each layer says in its place
            sql = state.where
        context |= {"layers": [*layers], "sql": sql}
        jobs = {
            key: self._begin(
                key,
                own,
                partial(paper_panel, memory, info, state, own),
                context,
                (name, info.snapshot, state, key),
                "paper",
            )
            for key, own in layers.items()
        }
        jobs |= self._jobs(memory, info, state, context, ("query",))
        return self._filled("paper.html", context, jobs)

    async def search(self, request: Request) -> Response:
        """A phrase in previews."""
        params = request.query_params.multi_items()
        phrase, start, faults = read_search(params)
        found = await self._read_page(params, "search", search.OWN, faults)
        if isinstance(found, Response):
            return found
        memory, info, name, _, state = found
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
        """The slots of a layer as points, which a script draws."""
        params = request.query_params.multi_items()
        colour, faults = read_colour(params)
        found = await self._page_of(params, "map", map_page.OWN, faults)
        if isinstance(found, Response):
            return found
        _, info, name, _, state = found
        own = ""
        with suppress(BadMask):  # which the script says in the map's place
            own = enclosed(state.where) if state.where else ""
        context = self._context(info, name, state)
        context |= {"colour": colour, "colours": map_page.COLOURS, "longest": LONGEST, "own": own}
        return self._stream("map.html", context, ())

    async def points(self, request: Request) -> Response:
        """What the map draws."""
        found = await self._page_of(request.query_params.multi_items())
        if isinstance(found, Response):
            return JSONResponse({"message": "There is no such map.", "hint": ""}, found.status_code)
        memory, info, name, _, state = found
        return await self._json(
            name, partial(map_page.map_points, memory, info, state), (info.snapshot, state, "points")
        )

    async def preview(self, request: Request) -> Response:
        """One training sample, for the map's pointer."""
        params = request.query_params.multi_items()
        name = self._name(params)
        found = await self._opened(name)
        if isinstance(found, Failure):
            return JSONResponse({"message": found.message, "hint": found.hint}, _status(found))
        memory, info = found
        return await self._json(name, partial(map_page.preview_of, memory, info, params), (info.snapshot, *params))

    async def _json(self, name: str, make: Callable[[], str], same: Hashable) -> Response:
        """What is made in a thread, as text of JSON."""
        try:
            return Response(await self._threads.shared(make, (name, same)), media_type="application/json")
        except (DualformError, TimeoutError) as error:
            failure = self._failure(name, error)
            status = _BAD_REQUEST if isinstance(error, BadInput) else _status(failure)
        except Exception as error:
            log.exception("the map failed")
            failure, status = _internal(error), _FAULT
        return JSONResponse({"message": failure.message, "hint": failure.hint, "code": failure.code}, status)

    async def _page_of(
        self, params: Params, page: str = "explore", own: Collection[str] = (), faults: Sequence[Fault] = ()
    ) -> tuple[Answers, MemoryInfo, str, Reading, State] | Response:
        """What a page of one example is about, or a page that says why there is none; with the arguments of
        `_read_page`.
        """
        found = await self._read_page(params, page, own, faults)
        if isinstance(found, Response):
            return found
        memory, info, name, reading, state = found
        if state is None:
            return self._faults(info, name, reading.faults, page)
        return memory, info, name, reading, state

    async def _read_page(
        self, params: Params, page: str, own: Collection[str] = (), faults: Sequence[Fault] = ()
    ) -> tuple[Answers, MemoryInfo, str, Reading, State | None] | Response:
        """What a page is about that may have no example, in a memory without query sets, or a page that says what is
        wrong. `own`: parameters that only this page has; `faults`: of those.
        """
        params = [(key, value) for key, value in params if key not in own]
        name = self._name(params)
        found = await self._opened(name, newest=True)
        if isinstance(found, Failure):
            return self._trouble(found)
        memory, info = found
        try:
            reading, state = await self._read(memory, info, name, params)
        except (DualformError, TimeoutError) as error:
            return self._trouble(self._failure(name, error))
        if faults or (state is None and info.query_sets):
            return self._faults(info, name, [*faults, *reading.faults], page)
        return memory, info, name, reading, state

    def _faults(self, info: MemoryInfo, name: str, faults: Sequence[Fault], page: str = "explore") -> Response:
        """A page that says what is wrong with an address of such a page."""
        context = {"faults": faults, "page": page, **self._searching(info, name)}
        return self._stream("faults.html", context, (), _BAD_REQUEST)

    def _searching(self, info: MemoryInfo, name: str) -> dict[str, Any]:
        """What the search field of a page needs."""
        return {"searchable": searchable(info), "written": [name] if self._written(name) else []}

    async def panels(self, request: Request) -> Response:
        """The parts of such a page, for scripts: a line of JSON each, as they are ready. The first one says which page
        it is, and at which address it stands. With `panel=NAME` that one alone, for a page in which it was late.
        """
        waited = request.query_params.get("panel")
        params = [(key, value) for key, value in request.query_params.multi_items() if key != "panel"]
        name = self._name(params)
        found = await self._opened(name)
        if isinstance(found, Failure):
            return JSONResponse({"message": found.message, "hint": found.hint}, _status(found))
        memory, info = found
        try:
            reading, state = await self._read(memory, info, name, params)
        except (DualformError, TimeoutError) as error:
            failure = self._failure(name, error)
            return JSONResponse({"message": failure.message, "hint": failure.hint}, _status(failure))
        if state is None:
            faults = [{"parameter": fault.parameter, "message": fault.message} for fault in reading.faults]
            return JSONResponse({"faults": faults}, _BAD_REQUEST)
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
        params = request.query_params.multi_items()
        sides = list[Side]()
        for key in SIDES:
            own = params_of(params, key)
            found = await self._page_of(own)
            if isinstance(found, Response):
                return found
            memory, info, name, _, state = found
            sides.append(Side(memory, info, name, state))
        searched = next((own.state for own in sides if searchable(own.info)), None)
        context = {"sides": sides, "names": self._memories.names, "to": link, "searched": searched}
        same = (*((own.name, own.info.snapshot, own.state) for own in sides), "compare")
        jobs = {"compare": self._begin("compare", "Side by side", partial(compare_panel, *sides), context, same)}
        return self._filled("compare.html", context, jobs)

    async def sample(self, request: Request) -> Response:
        """One training sample."""
        params = request.query_params.multi_items()
        name = self._name(params)
        found = await self._opened(name, newest=True)
        if isinstance(found, Failure):
            return self._trouble(found)
        memory, info = found
        address = read_sample(params, info, self._written(name))
        if isinstance(address, list):
            return self._faults(info, name, address, "sample")
        context = {"address": address, "info": info, "memory": name, "to": link, **self._searching(info, name)}
        makers = {"sample": ("Sample", sample_panel), "moved": ("Predictions without it", moved_panel)}
        jobs = {
            key: self._begin(
                key, title, partial(make, memory, info, address), context, (name, info.snapshot, address, key)
            )
            for key, (title, make) in makers.items()
        }
        return self._filled("sample.html", context, jobs)

    async def csv(self, request: Request) -> Response:
        """The answer to one of a panel's questions, by its number, as a file."""
        panel, number = (request.query_params.get(key, "") for key in ("panel", "question"))
        if panel not in PANELS or not (number.isascii() and number.isdecimal() and len(number) < 4):
            return await _nowhere(request, KeyError())
        params = [pair for pair in request.query_params.multi_items() if pair[0] not in ("panel", "question")]
        name = self._name(params)
        found = await self._opened(name)
        if isinstance(found, Failure):
            return self._trouble(found)
        memory, info = found

        def written(state: State) -> str:
            told = Told(memory)
            PANELS[panel].make(told, info, state)
            if int(number) >= len(told.questions):
                raise NotFound(f"The part {panel} asks {len(told.questions)} questions.", field="question")
            return as_csv(memory.ask(told.questions[int(number)]))

        try:
            reading, state = await self._read(memory, info, name, params)
            if state is None:
                return self._faults(info, name, reading.faults)
            text = await self._threads.run(partial(written, state))
        except (DualformError, TimeoutError) as error:
            return self._trouble(self._failure(name, error))
        saved = {"Content-Disposition": f'attachment; filename="{panel}.csv"'}
        return PlainTextResponse(text, media_type="text/csv", headers=saved)

    async def news(self, request: Request) -> Response:
        """How far a training has recorded, which nothing on a page follows by itself."""
        name = self._name(request.query_params.multi_items())
        try:
            info: MemoryInfo = await self._threads.run(partial(self._memories.news, name))
        except (DualformError, TimeoutError) as error:
            return JSONResponse({"message": str(error)}, _BAD_GATEWAY)
        return JSONResponse({"snapshot": info.snapshot, "steps": info.steps, "recording": info.recording})

    def _name(self, params: Params) -> str:
        """Of the memory that is asked about."""
        names = self._memories.names
        return next((value for own, value in params if own == "memory"), names[0] if len(names) == 1 else "")

    async def _read(self, memory: Answers, info: MemoryInfo, name: str, params: Params) -> tuple[Reading, State | None]:
        """What stands in the address, and the page that is meant; None where there are faults. Raises what asking the
        memory does.
        """
        reading = read_state(params, info, self._written(name))
        if reading.state is None or reading.complete:
            return reading, reading.state
        return reading, await self._threads.run(partial(completed, memory, info, reading.state, reading.move))

    def _written(self, name: str) -> str:
        """The memory's name as a state has it."""
        return name if len(self._memories.names) > 1 else ""

    def _context(self, info: MemoryInfo, name: str, state: State) -> dict[str, Any]:
        return {
            "state": state,
            "info": info,
            "memory": name,
            "names": self._memories.names,
            "searchable": searchable(info),
            "link": partial(link, state),
            "to": link,
            "compare": compare_link(state, another(info, state)),
            "as_python": as_python,
            "as_command": as_command,
            "sample_at": lambda dataset, sample: SampleAddress(state.memory, dataset, sample, state.query_set).link(),
            "scores": SCORES,
            "ks": KS,
            "groupings": groupings_of(info, state),
            "keys": KEYS,
            "panels_in": panels_in,
            "sections": SECTIONS,
            "layer_names": _names_of(info, state),
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
            same = (context["memory"], info.snapshot, state, key)
            jobs[key] = self._begin(key, PANELS[key].title, make, {**context, "told": told}, same)
        return jobs

    async def _opened(self, name: str, newest: bool = False) -> tuple[Answers, MemoryInfo] | Failure:
        """A memory and what it holds: as it is now, or as the reader has seen it last."""

        def opened() -> tuple[Answers, MemoryInfo]:
            memory = self._memories.newest(name) if newest else self._memories.one(name)
            info = memory.info()
            return OneSnapshot(memory, info.snapshot), info

        try:
            found: tuple[Answers, MemoryInfo] = await self._threads.run(opened)
        except (DualformError, TimeoutError) as error:
            return self._failure(name, error)
        return found

    def _failure(self, name: str, error: DualformError | TimeoutError) -> Failure:
        if isinstance(error, DualformError):
            return Failure(error.message, error.hint, error.code)
        return Failure(f"{name} did not answer within {self._threads.seconds:g} seconds.", code="late")

    def _trouble(self, failure: Failure) -> Response:
        """A page in the place of one that a memory does not answer for."""
        links = [(own, "explore?" + query_string({"memory": own})) for own in self._memories.names]
        return self._stream("trouble.html", {"failure": failure, "links": links}, (), _status(failure))

    def _begin(
        self,
        name: str,
        title: str,
        make: Callable[[], Any],
        context: dict[str, Any],
        same: Hashable,
        template: str = "",
    ) -> asyncio.Task[Markup]:
        return asyncio.create_task(self._threads.panel(name, title, make, context, template or name, same))

    def _filled(self, template: str, context: dict[str, Any], jobs: Mapping[str, asyncio.Task[Markup]]) -> Response:
        """A page of panels."""

        async def panel(key: str) -> Markup:
            return await jobs[key]

        return self._stream(template, {**context, "panel": panel}, jobs.values())

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


def _begin_sql(memories: Memories, name: str) -> None:
    """Names of labels, which every page has, come from a process that takes some tenths of a second to begin."""
    with suppress(DualformError):
        memories.one(name).sql(NAMES)


def _warm(memories: Memories, name: str) -> None:
    """Opens a memory and answers for its first example, so that no visitor waits for what is made once."""
    with suppress(DualformError):
        memory = memories.one(name)
        info = memory.info()
        for query_set in info.query_sets[:1]:
            found = output_layer(memory, info, examples_of(memory, info, query_set.name))
            if found is not None:
                panel_of("answer", memory, info, State("", query_set.name, 0, found.name, default_by(info)))


def _names_of(info: MemoryInfo, state: State) -> list[str]:
    """Of the layers that the reader may choose among."""
    query_set = query_set_of(info, state.query_set)
    own = [] if query_set is None else [layer.name for layer in layers_of(info, query_set)]
    return own if state.layer in own else [*own, state.layer]


def _empty(key: str) -> Markup:
    """The place of a panel that comes later."""
    place = '<section id="panel-{0}" class="panel {0}" aria-label="{1}" data-waits></section>'
    return Markup(place).format(key, PANELS[key].title)


def _status(failure: Failure) -> int:
    """Of a page in whose place this is said."""
    return _NOT_FOUND if failure.code == NotFound.code else _BAD_GATEWAY


async def _nowhere(request: Request, _error: Exception) -> Response:
    there = "Pages are the start page (/), /explore?item=SET/EXAMPLE, /paper?item=SET/EXAMPLE, /sample?sample=N and "
    there += "/search?q=PHRASE."
    return PlainTextResponse(f"There is nothing at {request.url.path!r}. {there}\n", _NOT_FOUND)

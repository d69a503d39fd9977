"""Pages of the explorer over a million slots: until the query, its output and the sums of its groups stand, beside the
same answers asked of an engine.

A page's other parts are worked on meanwhile. Each page is of another example, so that none is remembered.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import dualform
from benchmarks.keys import LAYER, GeneratedKeys
from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section, Target
from benchmarks.written import write_memory
from dualform import Engine
from dualform_explorer.panels import PANELS

SLOTS, OUTPUTS, QUERY_SET = 1_000_000, 10, 200
BY = ("dataset", "label")
API = f"{OURS}, query set, output and group_sum"
FIRST_PARTS = frozenset({"query", "output", "sums"})
WARM = Target("at most", 1.0, "s")
_SUM = re.compile(r'class="right sum"><data [^>]*data-value="([^"]+)"')


def run(plan: Plan) -> Section:
    section = Section("explorer", "Pages for a browser")
    folder, slots = plan.folder / "explored", SLOTS // 8 if plan.quick else SLOTS
    write_memory(folder, GeneratedKeys(plan.width), slots, OUTPUTS, QUERY_SET)
    rows, said = count(), f"{slots:,} slots"
    with dualform.open(folder, backend=plan.backend) as engine:
        _ask(engine, next(rows))
        with explored(folder) as page:
            page.parts(next(rows))  # derives what is kept beside the keys
        cold = [_cold(folder, next(rows)) for _ in range(min(3, plan.repeats))]
        fresh = [_fresh(plan, folder, next(rows)) for _ in range(min(3, plan.repeats))]
        with explored(folder) as page:
            page.parts(next(rows))
            warm, whole, alone, wrong = list[float](), list[float](), list[float](), ""
            for _ in range(plan.repeats):
                row = next(rows)
                took = page.parts(row)
                warm.append(max(took[name] for name in FIRST_PARTS))
                whole.append(max(took.values()))
                wrong = wrong or _wrong(engine, row, page.last)
                began = time.perf_counter()
                _ask(engine, next(rows))
                alone.append(time.perf_counter() - began)
    section.rows += [
        _row(f"query, output and sums on a page, {said}, warm", warm, alone, WARM, wrong),
        _row(f"query, output and sums on the first page of a process, {said}", cold, fresh, None, ""),
        Row(f"all parts of a page, {said}, warm", {OURS: _cell(whole, "")}, short="all parts"),
    ]
    section.notes.append(
        f"One layer of {plan.width} + {OUTPUTS} numbers a slot, which are generated, and a query set of {QUERY_SET} "
        "queries. Beside stand the three answers alone, asked of an engine in process, and for the first page the "
        "opening and the first answers of an engine; files are in the page cache, and what is derived from keys lies "
        f"beside them. A page asks for {len(PANELS)} parts at once, on the same cores; what a browser draws is not in "
        "it."
    )
    return section


class Page:
    """Pages of one process, asked for as their scripts do."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        self.last: dict[str, str] = {}
        """The parts of the page that was asked for last, as HTML."""

    def parts(self, row: int, names: Collection[str] = tuple(PANELS)) -> dict[str, float]:
        """Seconds until each part stood. Raises RuntimeError for one that failed."""
        connection = http.client.HTTPConnection(self._host, timeout=600)
        took, self.last = dict[str, float](), {}
        began = time.perf_counter()
        connection.request("GET", f"/panels?item=test/{row}&layer={LAYER}&by={','.join(BY)}&inexact=yes")
        answer = connection.getresponse()
        for line in answer:
            part = json.loads(line)
            if "panel" in part:
                took[part["panel"]], self.last[part["panel"]] = time.perf_counter() - began, part["html"]
        connection.close()
        for name in names:
            if "data-failure" in self.last[name]:
                raise RuntimeError(f"the part {name} failed: {self.last[name]}")
        return took


@contextmanager
def explored(memory: Path) -> Iterator[Page]:
    command = [sys.executable, "-m", "dualform_client.cli", "explore", str(memory), "--address", "127.0.0.1:0"]
    options = ("--json", "--deadline", "600")
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            if not said:
                raise RuntimeError(f"dualform explore ended with code {process.wait()}")
            yield Page(json.loads(said)["url"])
        finally:
            process.terminate()


def _ask(engine: Engine, row: int) -> None:
    query = f"test/{row}"
    engine.query_set("test")
    engine.output(LAYER, query, allow_inexact=True)
    engine.group_sum(LAYER, query, by=BY)


def _cold(folder: Path, row: int) -> float:
    """Of the first page of a process, which opens the memory for it."""
    with explored(folder) as page:
        took = page.parts(row)
        return max(took[name] for name in FIRST_PARTS)


def _fresh(plan: Plan, folder: Path, row: int) -> float:
    began = time.perf_counter()
    with dualform.open(folder, backend=plan.backend) as engine:
        _ask(engine, row)
        return time.perf_counter() - began


def _wrong(engine: Engine, row: int, parts: dict[str, str]) -> str:
    shown = list(map(float, _SUM.findall(parts["sums"])))
    right: list[Any] = engine.group_sum(LAYER, f"test/{row}", by=BY).sums[0].tolist()
    return "" if shown == right else f"the page of row {row} shows other sums than group_sum gives"


def _row(question: str, ours: list[float], beside: list[float], target: Target | None, wrong: str) -> Row:
    cells = {OURS: _cell(ours, wrong), API: _cell(beside, "")}
    return Row(question, cells, API, median(beside), median(ours) / median(beside), target, question)


def _cell(seconds: list[float], wrong: str) -> Cell:
    return Cell(median(seconds), min(seconds), len(seconds), wrong=wrong)

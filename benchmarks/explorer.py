"""Pages of the explorer over a million slots: until the example, the answer and the outputs are shown, beside the same
answers asked of an engine; then an ablation that is new, its placebo, and a page with all sections open.

Each page is of another example, so that none is remembered.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import torch
from torch import nn

import dualform
from benchmarks.harness import OURS, Cell, Plan, Section, Target, seconds_of
from benchmarks.recording import update
from benchmarks.serving import CLI
from dualform import Engine

SLOTS, SAMPLES, BATCH, QUERY_SET = 1_000_000, 50_000, 512, 200
INPUTS, HIDDEN, OUTPUTS = 100, 256, 10
LAYER = "2"
BY = ("dataset", "label")
API = f"{OURS}, query set, output and contributions"
ALL = "&open=data,layers,training,record"
ANSWER, PLACEBO = Target("at most", 0.5, "s"), Target("at most", 2.0, "s")
_PART = re.compile(r'data-part="group">.*?data-value="([^"]+)"', re.DOTALL)


def explorer(plan: Plan, section: Section) -> None:
    folder, slots = plan.folder / "explored", SLOTS // 8 if plan.quick else SLOTS
    _record(folder, slots)
    rows, said = count(), f"{slots:,} slots"

    def first_page() -> float:
        """Of a process, which opens the memory for it."""
        with explored(folder) as page:
            return page.answer(next(rows))

    def first_answers() -> None:
        with dualform.open(folder, backend=plan.backend) as engine:
            _ask(engine, next(rows))

    with dualform.open(folder, backend=plan.backend) as engine:
        _ask(engine, next(rows))
        with explored(folder) as page:
            page.parts(next(rows), ALL)  # derives the files that are kept with the keys
        cold = [first_page() for _ in range(plan.few)]
        fresh = [seconds_of(first_answers) for _ in range(plan.few)]
        with explored(folder) as page:
            page.parts(next(rows), f"{ALL}&without=label:0")
            warm, whole, alone, wrong = list[float](), list[float](), list[float](), ""
            ablated, placebo = list[float](), list[float]()
            for number in range(plan.repeats):
                row = next(rows)
                warm.append(page.answer(row))
                wrong = wrong or _wrong(engine, row, page.last)
                alone.append(seconds_of(lambda: _ask(engine, next(rows))))
                ablated.append(page.answer(next(rows), f"&without=step:{number}"))
                placebo.append(page.took["placebo"])
                whole.append(max(page.parts(next(rows), ALL).values()))
    for question, ours, beside, target, bad in (
        (f"the answer on a page, {said}, warm", warm, alone, ANSWER, wrong),
        (f"the answer on the first page of a process, {said}", cold, fresh, None, ""),
    ):
        section.compare(question, {OURS: Cell.of(ours, wrong=bad), API: Cell.of(beside)}, API, target)
    section.alone(f"the answer under a new ablation, {said}", Cell.of(ablated), ANSWER)
    section.alone(f"its placebo, {said}", Cell.of(placebo), PLACEBO)
    section.alone(f"a page with all sections open, {said}, warm", Cell.of(whole))
    section.notes.append(
        f"A perceptron of {INPUTS}, {HIDDEN} and {OUTPUTS} units, trained by SGD on {SAMPLES:,} made-up samples of two "
        f"datasets; a query set of {QUERY_SET} examples. The other figure is for the same answers from an engine in "
        "process, and for the first page the opening and the first answers of an engine; files are in the page cache, "
        "and what is derived from keys is kept beside them. What a browser draws is not in it."
    )


def _record(folder: Path, slots: int) -> None:
    """A training of so many slots, at least."""
    drawn = torch.Generator().manual_seed(0)
    means = 0.6 * torch.randn(OUTPUTS, INPUTS, generator=drawn)
    labels = torch.randint(OUTPUTS, (SAMPLES + QUERY_SET,), generator=drawn)
    inputs = means[labels] + torch.randn(len(labels), INPUTS, generator=drawn)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with dualform.Recorder(model, optimizer, folder, quiet=True) as recorder:
        for step in range(-(-slots // BATCH)):
            rows = torch.randint(SAMPLES, (BATCH,), generator=drawn)
            with recorder.step(dataset=f"part-{step % 2}", label=labels[rows], sample=rows):
                update(model, optimizer, inputs[rows], labels[rows])
        recorder.query_set("test", inputs[SAMPLES:], label=labels[SAMPLES:])


class Page:
    """Pages of one process, asked for as their scripts do."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        self.last: dict[str, str] = {}
        """The parts of the page that was asked for last, as HTML."""
        self.took: dict[str, float] = {}
        """Seconds until each of them was there."""

    def parts(self, row: int, more: str = "") -> dict[str, float]:
        """Seconds until each part was there. `more`: of the address. Raises RuntimeError for a part that failed."""
        connection = http.client.HTTPConnection(self._host, timeout=600)
        self.took, self.last = {}, {}
        began = time.perf_counter()
        connection.request("GET", f"/panels?item=test/{row}&layer={LAYER}&by={','.join(BY)}{more}")
        for line in connection.getresponse():
            part = json.loads(line)
            if "panel" in part:
                self.took[part["panel"]], self.last[part["panel"]] = time.perf_counter() - began, part["html"]
        connection.close()
        for name, html in self.last.items():
            if "data-failure" in html:
                raise RuntimeError(f"the part {name} failed: {html}")
        return self.took

    def answer(self, row: int, more: str = "") -> float:
        """Seconds until the example, the answer and the outputs were there."""
        took = self.parts(row, more)
        return max(took[name] for name in ("query", "answer", "output"))


@contextmanager
def explored(memory: Path) -> Iterator[Page]:
    command = [sys.executable, *CLI, "explore", str(memory), "--address", "127.0.0.1:0", "--json", "--deadline", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
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
    engine.output(LAYER, query)
    engine.contributions(LAYER, query, BY[:1])


def _wrong(engine: Engine, row: int, parts: dict[str, str]) -> str:
    shown = list(map(float, _PART.findall(parts["answer"])))
    output = np.asarray(engine.output(LAYER, f"test/{row}"))[0]
    answer = engine.contributions(LAYER, f"test/{row}", BY[:1])
    labels = engine.query_set("test").labels
    assert labels is not None, "they are recorded"
    top, label = int(output.argmax()), int(labels[row])
    other = int(np.argsort(-output, kind="stable")[1]) if label == top else label
    right = [float(own[top] - own[other]) for own in answer.sums[0]]
    return "" if shown == right else f"the page of row {row} shows other parts than contributions gives"

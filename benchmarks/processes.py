"""Processes that a person waits for: first answers from the shell and in Python, beside plain FAISS and NumPy over the
same files; and pages of the explorer over a million slots, beside the same answers asked of an engine.

Another process asked the same before, so that what is derived from keys is kept beside them. Each page is of another
example, so that none is remembered.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import dualform
from benchmarks import oracle
from benchmarks.data import LAYER, load, network, read_memory
from benchmarks.harness import OURS, Cell, K, Plan, Section, Target, race, seconds_of, turns, unchecked
from benchmarks.recording import update
from dualform import Engine
from dualform.store.files.durable_files import CODES, SUM
from dualform.store.layer import Layer

CLI = ("-m", "dualform_client.cli")


@contextmanager
def started(command: str, memory: Path, *options: str) -> Iterator[tuple[dict[str, Any], int]]:
    """What a command that serves a memory tells when it takes questions, and its process."""
    words = [sys.executable, *CLI, command, str(memory), "--address", "127.0.0.1:0", "--json", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            if not said:
                raise RuntimeError(f"dualform {command} {memory.name} ended with code {process.wait()}")
            yield json.loads(said), process.pid
        finally:
            process.terminate()


@contextmanager
def served(memory: Path, *options: str) -> Iterator[tuple[str, int]]:
    """The address and the process of `dualform serve`."""
    with started("serve", memory, *options) as (said, process):
        yield said["address"], process


# ---- First answers

FAISS, PASS, BARE = "FAISS, read_index and search", "one pass over the keys", "one pass over its keys and values"
READ = """
import sys, time
room, began = bytearray(1 << 20), time.perf_counter()
for part in sys.argv[1:]:
    name, first, last = part.rsplit(":", 2)
    with open(name, "rb", buffering=0) as file:
        left = int(last) - file.seek(int(first))
        while left > 0:
            left -= file.readinto(memoryview(room)[:left])
print(time.perf_counter() - began)
"""
ASKED = """
import sys, time
import numpy as np
from dualform.query.engine import open_memory
query = np.load(sys.argv[2])
began = time.perf_counter()
memory = open_memory(sys.argv[1])
opened = time.perf_counter()
{}
print(time.perf_counter() - began)
"""
OPENED = ASKED.format("")
TOPK = ASKED.format(f'memory.topk("{LAYER}", query, {K})')
SUMS = ASKED.format(f'memory.group_sum("{LAYER}", query, ("dataset", "label"))')
SUMS_OF_OPEN = SUMS.replace("- began", "- opened")
OUTPUT = ASKED.format(f'memory.output("{LAYER}", query, sys.argv[3], allow_inexact=True)')
SEARCH = f"""
import json, sys
import faiss
import numpy as np
query, before, scores, slots = np.load(sys.argv[1]), 0, [], []
for name in sys.argv[2:]:
    index = faiss.read_index(name)
    own, numbers = index.search(query, min({K}, index.ntotal))
    scores.append(own[0])
    slots.append(numbers[0] + before)
    before += index.ntotal
order = np.argsort(-np.concatenate(scores), kind="stable")[:{K}]
print(json.dumps(np.concatenate(slots)[order].tolist()))
"""


def cold(plan: Plan, section: Section) -> None:
    data, query, path = load(plan), plan.folder / "cold.npy", plan.memory
    np.save(query, data.queries[:1])
    (right,) = oracle.best(data.keys, data.queries[:1], K)
    folder, said = _folder(path), f"{len(data.keys):,} slots"
    keys = sorted(map(str, folder.glob("keys-*.faiss")))
    read = partial(_python, "-c", READ, *(f"{file}:0:{Path(file).stat().st_size}" for file in keys))
    sums = f"sums by dataset and label, {said}"

    def shell(command: str, *options: str) -> str:
        return _python(*CLI, command, str(path), "--layer", LAYER, "--query", str(query), "--json", *options)

    def tell(code: str) -> float:
        return float(_python("-c", code, str(path), str(query)))

    def topk() -> str:
        return shell("topk", "-k", str(K))

    def group_sum() -> str:
        return shell("group-sum", "--by", "dataset,label")

    def dropped(ask: Callable[[], str]) -> str:
        drop_files(path)
        return ask()

    def check(name: str, answer: str) -> tuple[str, str]:
        if name == PASS:
            return "", ""
        found = json.loads(answer)
        if name == FAISS:
            return oracle.wrong_nearly(right, [np.array(found)], data.keys, data.queries)
        slots, scores = ([hit[field] for hit in found["hits"]] for field in ("slot", "score"))
        return oracle.wrong_exactly(right, [np.array(slots)], [np.array(scores, np.float32)]), ""

    def whole(question: str, asks: dict[str, Callable[[], str]], target: Target | None, check: Any = check) -> None:
        cells = race(asks, plan.repeats, 10 * plan.patience, check)
        section.compare(f"{question}: the whole process", cells, list(asks)[1], target)

    def inside(question: str, code: str, target: Target | None = None, derived: str = "") -> None:
        """Seconds that a process tells. `derived`: files of the kind are removed before each."""

        def ours() -> float:
            for file in folder.glob(f"*{derived}") if derived else ():
                file.unlink()
            return tell(code)

        section.compare(question, _told(plan, {OURS: ours, PASS: lambda: float(read())}), PASS, target)

    asked = f"topk, 1 query, {said}"
    faiss = partial(_python, "-c", SEARCH, str(query), *keys)
    whole(asked, {OURS: topk, FAISS: faiss}, Target("at most", 0.6))
    from_disk: dict[str, Callable[[], str]] = {OURS: partial(dropped, topk), PASS: partial(dropped, read)}
    whole(f"{asked}, files dropped from the page cache", from_disk, Target("at most", 0.35))
    inside("topk, 1 query, the first question of all", TOPK, derived=CODES)
    inside("sums by dataset and label, the first question of all", SUMS, derived=SUM)
    # By groups that were asked for before; the opening has its own target.
    inside(f"{sums}, from opening to the answer", SUMS)
    inside(f"{sums}, the first question of an open memory", SUMS_OF_OPEN, Target("at most", 0.5))
    whole("sums by dataset and label", {OURS: group_sum, PASS: read}, None, unchecked)
    for question, ask, most in (
        ("dualform.open, in Python", partial(tell, OPENED), 0.3),
        ("dualform serve, until it takes questions", partial(_ready, path), 1.0),
    ):
        section.alone(question, Cell.of([ask() for _ in range(plan.repeats)]), Target("at most", most, "s"))
    _ablated(plan, section)
    section.notes.append(
        "Whole processes, from the start of the interpreter to its end, but where it says from opening to the answer: "
        "libraries are loaded before that. Files are in the page cache, but where they were dropped from it. What is "
        "derived from keys is kept beside them; the first question of all derives it, from opening to the answer: topk "
        "codes, scales, bounds and norms of the keys, a quarter of their size, and sums the groups and the sums of "
        "their keys. Byte code is kept, as of installed packages. The ablated output is of one query, under a filter "
        f"that nobody asked for before; {BARE} reads those of the slots that stay into one MiB of memory, again and "
        "again, and multiplies nothing."
    )


def _ablated(plan: Plan, section: Section) -> None:
    """A layer's output without one dataset, of a memory that has values."""
    path, query = network(plan), plan.folder / "ablated.npy"
    memory = read_memory(path)
    np.save(query, memory.query_set("test").queries(LAYER)[:1])
    stays = np.asarray(memory.column("sample", "dataset") == "first", dtype=bool)
    parts = parts_that_stay(_folder(path), memory.layer(LAYER), stays)
    # Each time another slot goes, too.
    masks = (f"dataset = 'first' AND slot <> {slot}" for slot in count())
    measures: dict[str, Callable[[], float]] = {
        OURS: lambda: float(_python("-c", OUTPUT, str(path), str(query), next(masks))),
        BARE: lambda: float(_python("-c", READ, *parts)),
    }
    question = "ablated output, 1 query, from opening to the answer"
    section.compare(question, _told(plan, measures), BARE, Target("at most", 1.2))


def _told(plan: Plan, measures: dict[str, Callable[[], float]]) -> dict[str, Cell]:
    """Of processes that tell what they took, after one of each that does not count."""
    turns(measures, 1)
    return {name: Cell.of(seconds) for name, seconds in turns(measures, min(5, plan.repeats)).items()}


def _ready(memory: Path) -> float:
    began = time.perf_counter()
    with served(memory):
        return time.perf_counter() - began


def _python(*arguments: str) -> str:
    # Byte code is kept, as that of an installed package is: our sources are not compiled again for every process.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout


def drop_files(path: Path) -> None:
    """Has the page cache let go of a memory's files."""
    for file in filter(Path.is_file, path.rglob("*")):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _folder(memory: Path) -> Path:
    """Of the layer that is asked."""
    (folder,) = memory.glob(f"shard-*/layers/{LAYER}")
    return folder


def parts_that_stay(folder: Path, layer: Layer, stays: NDArray[np.bool_]) -> list[str]:
    """FILE:START:END, in bytes, of a layer's keys and values: from the first row that stays to the last, of each
    segment.

    `stays`: bool[T]. Both kinds of file end with their rows.
    """
    found, first = list[str](), 0
    for values in sorted(folder.glob("values-*.npy")):
        rows = len(np.load(values, mmap_mode="r"))
        own = np.flatnonzero(stays[first : first + rows])
        first += rows
        keys = folder / values.name.replace("values", "keys").replace(".npy", ".faiss")
        for file, width in ((values, layer.d_out), (keys, layer.d_in)) if len(own) else ():
            begin = file.stat().st_size - 4 * width * rows
            found.append(f"{file}:{begin + 4 * width * own[0]}:{begin + 4 * width * (own[-1] + 1)}")
    return found


# ---- Pages

SLOTS, SAMPLES, BATCH, QUERY_SET = 1_000_000, 50_000, 512, 200
INPUTS, HIDDEN, OUTPUTS = 100, 256, 10
ASKED_LAYER = "2"
BY = ("dataset", "label")
API = f"{OURS}, query set, output and contributions"
ALL = "&open=data,layers,training,record"
ANSWER, PLACEBO = Target("at most", 0.5, "s"), Target("at most", 2.0, "s")
_PART = re.compile(r'data-part="group">.*?data-value="([^"]+)"', re.DOTALL)
Page: TypeAlias = dict[str, tuple[float, str]]
"""By part, the seconds until it was there, and its HTML."""


def explorer(plan: Plan, section: Section) -> None:
    """Until the example, the answer and the outputs are shown; then an ablation that is new, its placebo, and a page
    with all sections open.
    """
    folder, slots = plan.folder / "explored", SLOTS // 8 if plan.quick else SLOTS
    _record(folder, slots)
    rows, steps, said = count(), count(), f"{slots:,} slots"

    def first_page() -> float:
        """Of a process, which opens the memory for it."""
        with explored(folder) as page:
            return _answered(page(next(rows)))

    def first_answers() -> None:
        with dualform.open(folder, backend=plan.backend) as engine:
            _ask(engine, next(rows))

    with dualform.open(folder, backend=plan.backend) as engine:
        _ask(engine, next(rows))
        with explored(folder) as page:
            page(next(rows), ALL)  # derives the files that are kept with the keys
        first = turns({OURS: first_page, API: lambda: seconds_of(first_answers)}, plan.few)
        with explored(folder) as page:

            def warm_page() -> tuple[float, str]:
                shown = page(row := next(rows))
                return _answered(shown), _wrong(engine, row, shown["answer"][1])

            page(next(rows), f"{ALL}&without=label:0")
            measures: dict[str, Callable[[], Any]] = {
                "warm": warm_page,
                API: lambda: seconds_of(lambda: _ask(engine, next(rows))),
                "ablated": lambda: page(next(rows), f"&without=step:{next(steps)}"),
                "whole": lambda: page(next(rows), ALL),
            }
            found = turns(measures, plan.repeats)
    seconds, wrong = zip(*found["warm"], strict=True)
    warm = {OURS: Cell.of(seconds, wrong=max(wrong)), API: Cell.of(found[API])}
    section.compare(f"the answer on a page, {said}, warm", warm, API, ANSWER)
    cold = {name: Cell.of(own) for name, own in first.items()}
    section.compare(f"the answer on the first page of a process, {said}", cold, API)
    for question, took, target in (
        ("the answer under a new ablation", map(_answered, found["ablated"]), ANSWER),
        ("its placebo", (shown["placebo"][0] for shown in found["ablated"]), PLACEBO),
        ("a page with all sections open", (max(shown.values())[0] for shown in found["whole"]), None),
    ):
        section.alone(f"{question}, {said}{'' if target else ', warm'}", Cell.of(list(took)), target)
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


@contextmanager
def explored(memory: Path) -> Iterator[Callable[..., Page]]:
    """Pages of a process, by row of the query set and what else its address has, asked for as their scripts do."""
    with started("explore", memory, "--deadline", "600") as (said, _):
        yield partial(_page, urlsplit(said["url"]).netloc)


def _page(host: str, row: int, more: str = "") -> Page:
    """Raises RuntimeError for a part that failed."""
    connection, shown = http.client.HTTPConnection(host, timeout=600), Page()
    began = time.perf_counter()
    connection.request("GET", f"/panels?item=test/{row}&layer={ASKED_LAYER}&by={','.join(BY)}{more}")
    for part in map(json.loads, connection.getresponse()):
        if "panel" in part:
            shown[part["panel"]] = time.perf_counter() - began, part["html"]
            if "data-failure" in part["html"]:
                raise RuntimeError(f"the part {part['panel']} failed: {part['html']}")
    connection.close()
    return shown


def _answered(page: Page) -> float:
    """Seconds until the example, the answer and the outputs were there."""
    return max(page[name][0] for name in ("query", "answer", "output"))


def _ask(engine: Engine, row: int) -> None:
    query = f"test/{row}"
    engine.query_set("test")
    engine.output(ASKED_LAYER, query)
    engine.contributions(ASKED_LAYER, query, BY[:1])


def _wrong(engine: Engine, row: int, html: str) -> str:
    output = np.asarray(engine.output(ASKED_LAYER, f"test/{row}"))[0]
    answer = engine.contributions(ASKED_LAYER, f"test/{row}", BY[:1])
    labels = engine.query_set("test").labels
    assert labels is not None, "they are recorded"
    top, label = int(output.argmax()), int(labels[row])
    other = int(np.argsort(-output, kind="stable")[1]) if label == top else label
    right = [float(own[top] - own[other]) for own in answer.sums[0]]
    shown = list(map(float, _PART.findall(html)))
    return "" if shown == right else f"the page of row {row} shows other parts than contributions gives"

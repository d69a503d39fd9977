"""First answers: whole processes from the shell, and the first answers of a process in Python, beside plain FAISS and
NumPy over the same files.

Another process asked the same before, so that what is derived from keys is kept beside them.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import oracle
from benchmarks.data import LAYER, Floats, load, network, read_memory
from benchmarks.harness import OURS, Cell, Check, K, Plan, Section, Target, apart, race, unchecked
from benchmarks.serving import CLI, served
from dualform.store.files.durable_files import CODES, SUM

FAISS, PASS, BARE = "FAISS, read_index and search", "one pass over the keys", "one pass over its keys and values"
ABLATED = "ablated output, 1 query, from opening to the answer"
OPENED = """
import sys, time
from dualform.query.engine import open_memory
began = time.perf_counter()
open_memory(sys.argv[1])
print(time.perf_counter() - began)
"""
READ = """
import sys, time
room, began = bytearray(1 << 20), time.perf_counter()
for name in sys.argv[1:]:
    with open(name, "rb", buffering=0) as file:
        while file.readinto(room):
            pass
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
    data, query = load(plan), plan.folder / "cold.npy"
    np.save(query, data.queries[:1])
    memory = _Memory(plan, section, plan.memory, query, data.keys)
    memory.topk()
    memory.topk_dropped()
    memory.inside("topk, 1 query, the first question of all", TOPK, derived=CODES)
    memory.inside("sums by dataset and label, the first question of all", SUMS, derived=SUM)
    memory.sums()
    contestants = {
        OURS: lambda: _dualform("group-sum", memory.path, *memory.asked, "--by", "dataset,label"),
        PASS: lambda: _python("-c", READ, *memory.keys),
    }
    memory.whole("sums by dataset and label", contestants, unchecked, None)
    asks: tuple[tuple[str, Callable[[], float], float], ...] = (
        ("dualform.open, in Python", lambda: _seconds("-c", OPENED, str(plan.memory)), 0.3),
        ("dualform serve, until it takes questions", lambda: _ready(plan.memory), 1.0),
    )
    for question, ask, most in asks:
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
    (folder,) = path.glob(f"shard-*/layers/{LAYER}")
    # Each time another sample goes, too.
    masks = (f"dataset = 'first' AND sample <> {sample}" for sample in count())
    contestants = {
        OURS: lambda: _seconds("-c", OUTPUT, str(path), str(query), next(masks)),
        BARE: lambda: apart(read_seconds, folder, stays),
    }
    section.compare(ABLATED, _turns(plan, contestants), BARE, Target("at most", 1.2))


class _Memory:
    """A memory on disk and a query of its layer."""

    def __init__(self, plan: Plan, section: Section, path: Path, query: Path, keys: Floats) -> None:
        self.path, self._plan, self._section, self._query = path, plan, section, query
        self._slots = f"{len(keys):,} slots"
        self.folder = next(iter(sorted(path.glob(f"shard-*/layers/{LAYER}"))))
        self.keys = sorted(map(str, self.folder.glob("keys-*.faiss")))
        self.asked = ("--layer", LAYER, "--query", str(query), "--json")
        self._matrix, self._queries = keys, np.load(query)
        (self._right,) = oracle.best(keys, self._queries, K)

    def topk(self) -> None:
        """The k best slots, by the shell."""
        faiss = partial(_python, "-c", SEARCH, str(self._query), *self.keys)
        self.whole(f"topk, 1 query, {self._slots}", {OURS: self._topk, FAISS: faiss}, self._check, 0.6)

    def topk_dropped(self) -> None:
        """The same of files that the page cache does not hold."""

        def after_drop(ask: Callable[[], str]) -> Callable[[], str]:
            return lambda: drop_files(self.path) or ask()

        contestants = {OURS: after_drop(self._topk), PASS: after_drop(partial(_python, "-c", READ, *self.keys))}
        question = f"topk, 1 query, {self._slots}, files dropped from the page cache"
        self.whole(question, contestants, self._check, 0.35)

    def _topk(self) -> str:
        return _dualform("topk", self.path, *self.asked, "-k", str(K))

    def _check(self, name: str, answer: str) -> tuple[str, str]:
        if name == PASS:
            return "", ""
        found = json.loads(answer)
        if name == FAISS:
            return oracle.wrong_nearly(self._right, [np.array(found)], self._matrix, self._queries)
        slots, scores = ([hit[field] for hit in found["hits"]] for field in ("slot", "score"))
        return oracle.wrong_exactly(self._right, [np.array(slots)], [np.array(scores, np.float32)]), ""

    def sums(self) -> None:
        """In Python, by groups that were asked for before: with the opening, and without it."""
        question = f"sums by dataset and label, {self._slots}"
        self.inside(f"{question}, from opening to the answer", SUMS)
        # The opening has its own target.
        self.inside(f"{question}, the first question of an open memory", SUMS_OF_OPEN, Target("at most", 0.5))

    def inside(self, question: str, code: str, target: Target | None = None, derived: str | None = None) -> None:
        """Seconds that a process tells. `derived`: files of the kind are removed before each."""

        def ours() -> float:
            for file in self.folder.glob(f"*{derived}") if derived else ():
                file.unlink()
            return _seconds("-c", code, str(self.path), str(self._query))

        cells = _turns(self._plan, {OURS: ours, PASS: lambda: _seconds("-c", READ, *self.keys)})
        self._section.compare(question, cells, PASS, target)

    def whole(self, question: str, asks: dict[str, Callable[[], str]], check: Check, most: float | None) -> None:
        """Whole processes, ours beside the other."""
        cells = race(asks, self._plan.repeats, 10 * self._plan.patience, check)
        target = None if most is None else Target("at most", most)
        self._section.compare(f"{question}: the whole process", cells, list(asks)[1], target)


def _turns(plan: Plan, contestants: dict[str, Callable[[], float]]) -> dict[str, Cell]:
    """Of processes that tell what they took, in turns."""
    for ask in contestants.values():
        ask()
    measured = [{name: ask() for name, ask in contestants.items()} for _ in range(min(5, plan.repeats))]
    return {name: Cell.of([one[name] for one in measured]) for name in contestants}


def drop_files(path: Path) -> str:
    """Has the page cache let go of a memory's files."""
    for file in path.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
    return ""


def _dualform(command: str, memory: Path, *rest: str) -> str:
    return _python(*CLI, command, str(memory), *rest)


def _seconds(*arguments: str) -> float:
    return float(_python(*arguments))


def _python(*arguments: str) -> str:
    # Byte code is kept, as that of an installed package is: our sources are not compiled again for every process.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout


def _ready(memory: Path) -> float:
    began = time.perf_counter()
    with served(memory):
        return time.perf_counter() - began


def read_seconds(folder: Path, stays: NDArray[np.bool_]) -> float:
    """Seconds to read a layer's keys and values once, from the first row that stays to the last of each segment.

    `stays`: bool[T].
    """
    room, began, first = bytearray(1 << 20), time.perf_counter(), 0
    for values in sorted(folder.glob("values-*.npy")):
        rows = len(np.load(values, mmap_mode="r"))
        own = np.flatnonzero(stays[first : first + rows])
        first += rows
        if not len(own):
            continue
        for file in (values, values.with_name(values.name.replace("values", "keys")).with_suffix(".faiss")):
            _read(file, rows, int(own[0]), int(own[-1]) + 1, room)
    return time.perf_counter() - began


def _read(file: Path, rows: int, first: int, last: int, room: bytearray) -> None:
    """Reads some rows of a file that ends with float32[rows, width], into one piece of memory again and again."""
    width = int(np.fromfile(file, np.int32, 1, offset=4)[0]) if file.suffix == ".faiss" else 0
    size = 4 * (width or np.load(file, mmap_mode="r").shape[1])
    with io.FileIO(file) as stream:
        stream.seek(file.stat().st_size - (rows - first) * size)
        left = (last - first) * size
        while left > 0 and (got := stream.readinto(memoryview(room)[:left])):
            left -= got

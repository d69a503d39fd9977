"""First answers: whole processes from the shell, and the first answers of a process in Python, beside plain FAISS and
NumPy over the same files.

Another process asked the same before, so that what is derived from keys lies beside them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import contest, oracle
from benchmarks.data import load
from benchmarks.keys import LAYER, StudyKeys, read_study
from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section, Target
from benchmarks.timing import race
from dualform.store.derived_file import CODES, SUM

K = 10
FAISS = "FAISS, read_index and search"
PASS = "one pass over the keys"
BARE = "one pass over its keys and values"
ONE, PRODUCT, WIDE = "NumPy, float32, the output", "NumPy, float32, the weights", "NumPy, float64, the weights"
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
"""
TOPK = f"""{ASKED}
memory.topk("{LAYER}", query, {K})
print(time.perf_counter() - began)
"""
SUMS = f"""{ASKED}
memory.group_sum("{LAYER}", query, ("dataset", "label"))
print(time.perf_counter() - began)
"""
SUMS_OF_OPEN = SUMS.replace("- began", "- opened")
OUTPUT = f"""{ASKED}
memory.output("{LAYER}", query, sys.argv[3])
print(time.perf_counter() - began)
"""


def run(plan: Plan) -> Section:
    section = Section("cold", "First answers")
    data, query = load(plan), plan.folder / "cold.npy"
    np.save(query, data.queries[:1])
    memory = _Memory(plan.memory, query, data.keys)
    section.rows += [
        memory.topk(plan, 0.6),
        memory.topk(plan, 0.35, dropped=True),
        memory.first_of_all(plan, "topk, 1 query", TOPK, CODES),
        memory.first_of_all(plan, "sums by dataset and label", SUMS, SUM),
        *memory.sums(plan),
        _beside(
            plan,
            "sums by dataset and label",
            {
                OURS: lambda: _dualform("group-sum", memory.path, *memory.asked, "--by", "dataset,label"),
                PASS: lambda: _python("-c", READ, *memory.keys),
            },
            lambda name, answer: ("", ""),
        ),
        _within(
            "dualform.open, in Python",
            [_seconds("-c", OPENED, str(plan.memory)) for _ in range(plan.repeats)],
            0.3,
        ),
        _within("dualform serve, until it takes questions", [_ready(plan.memory) for _ in range(plan.repeats)], 1.0),
    ]
    section.rows += _of_study(plan)
    section.notes.append(
        "Whole processes, from the start of the interpreter to its end, but where it says from opening to the answer: "
        "libraries are loaded before that. Files are in the page cache, but where they were dropped from it. What is "
        "derived from keys lies beside them; the first question of all derives it, from opening to the answer: topk "
        "codes, scales, bounds and norms of the keys, a quarter of their size, and sums the groups and the sums of "
        "their keys. Byte code is kept, as of installed packages. The ablated output is of one query, under a filter "
        "that nobody asked for before. NumPy reads keys and values of the slots that stay, and multiplies them, with "
        f"the query or to the weights that answer further ones; {BARE} reads them into one MiB of memory, again and "
        "again, and multiplies nothing."
    )
    return section


def _of_study(plan: Plan) -> list[Row]:
    """Of a whole study, which has values."""
    question, target = "ablated output, 1 query, from opening to the answer", Target("at most", 1.2)
    if plan.study is None or plan.quick:
        why = "needs a whole recorded continual study" if plan.study is None else "not in a quick run"
        return [Row(question, {OURS: Cell(why_not=why)}, target=target)]
    study, path = read_study(plan.study), plan.study
    query, stays = plan.folder / "study.npy", plan.folder / "stays.npy"
    source = study.keys(LAYER)
    np.save(query, StudyKeys(study).queries(1))
    datasets = study.column(study.layer(LAYER).space, "dataset")
    np.save(stays, datasets != datasets[-1])
    memory = _Memory(path, query, source.entry_block(0, source.entries))
    # Each time another sample goes, too.
    masks = (f"dataset <> '{datasets[-1]}' AND sample <> {sample}" for sample in count())
    folder = memory.folder
    cells = _inside(
        plan,
        question,
        {
            OURS: lambda: _seconds("-c", OUTPUT, str(path), str(query), next(masks)),
            BARE: lambda: _product(folder, stays, "none"),
            ONE: lambda: _product(folder, stays, "float32", query),
            PRODUCT: lambda: _product(folder, stays, "float32"),
            WIDE: lambda: _product(folder, stays, "float64"),
        },
        target,
    )
    return [memory.topk(plan, 0.6), memory.topk(plan, 0.35, dropped=True), *memory.sums(plan), cells]


class _Memory:
    """A memory on disk and a query of its layer."""

    def __init__(self, path: Path, query: Path, keys: NDArray[np.float32]) -> None:
        self.path, self.query, self._keys = path, query, keys
        self.folder = next(iter(sorted(path.glob(f"shard-*/layers/{LAYER}"))))
        self.keys = sorted(map(str, self.folder.glob("keys-*.faiss")))
        self.asked = ("--layer", LAYER, "--query", str(query), "--json")

    def topk(self, plan: Plan, most: float, *, dropped: bool = False) -> Row:
        """The k best slots, by the shell; `dropped`: of files that the page cache does not hold."""
        queries = np.load(self.query)
        right = oracle.best(self._keys, queries, K)[0]

        def check(name: str, answer: Any) -> tuple[str, str]:
            if contest.ours(name):
                hits = json.loads(answer)["hits"]
                slots = [np.array([hit["slot"] for hit in hits])]
                return oracle.wrong_exactly(right, slots, [np.array([hit["score"] for hit in hits], np.float32)]), ""
            return oracle.wrong_nearly(right, [np.array(json.loads(answer))], self._keys, queries)

        def ours() -> str:
            return _dualform("topk", self.path, *self.asked, "-k", str(K))

        question = f"topk, 1 query, {len(self._keys):,} slots"
        if not dropped:
            faiss = "-m", "benchmarks.faiss_process", str(self.folder), str(self.query), str(K)
            return _beside(plan, question, {OURS: ours, FAISS: lambda: _python(*faiss)}, check, Target("at most", most))

        def after_drop(ask: Callable[[], str]) -> Callable[[], str]:
            return lambda: drop_files(self.path) or ask()

        contestants = {OURS: after_drop(ours), PASS: after_drop(lambda: _python("-c", READ, *self.keys))}
        return _beside(
            plan,
            f"{question}, files dropped from the page cache",
            contestants,
            lambda name, answer: check(name, answer) if contest.ours(name) else ("", ""),
            Target("at most", most),
        )

    def sums(self, plan: Plan) -> list[Row]:
        """In Python, by groups that were asked for before: with the opening, and without it."""
        question = f"sums by dataset and label, {len(self._keys):,} slots"

        def asked(code: str) -> dict[str, Callable[[], float]]:
            return {
                OURS: lambda: _seconds("-c", code, str(self.path), str(self.query)),
                PASS: lambda: _seconds("-c", READ, *self.keys),
            }

        return [
            _inside(plan, f"{question}, from opening to the answer", asked(SUMS)),
            # The opening has a target of its own.
            _inside(
                plan, f"{question}, the first question of an open memory", asked(SUMS_OF_OPEN), Target("at most", 0.5)
            ),
        ]

    def first_of_all(self, plan: Plan, question: str, code: str, derived: str) -> Row:
        """In Python, from opening to the answer, where nothing of the kind was derived yet."""

        def ours() -> float:
            for file in self.folder.glob(f"*{derived}"):
                file.unlink()
            return _seconds("-c", code, str(self.path), str(self.query))

        contestants = {OURS: ours, PASS: lambda: _seconds("-c", READ, *self.keys)}
        return _inside(plan, f"{question}, the first question of all", contestants)


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


def _beside(
    plan: Plan,
    question: str,
    contestants: dict[str, Callable[[], str]],
    check: contest.Check,
    target: Target | None = None,
) -> Row:
    ran = race(contestants, plan.repeats, 10 * plan.patience)
    cells = {name: contest.cell(name, one, check) for name, one in ran.items()}
    return _compared(f"{question}: the whole process", cells, target, question)


def _inside(
    plan: Plan, question: str, contestants: dict[str, Callable[[], float]], target: Target | None = None
) -> Row:
    """Of processes that say what they took, in turns."""
    for ask in contestants.values():
        ask()
    measured = [{name: ask() for name, ask in contestants.items()} for _ in range(min(5, plan.repeats))]
    cells = {name: _cell([one[name] for one in measured]) for name in contestants}
    return _compared(question, cells, target, question)


def _compared(question: str, cells: dict[str, Cell], target: Target | None, short: str) -> Row:
    """Beside the first of the others."""
    (_, ours), (name, other), *_ = cells.items()
    ratio = None if ours.seconds is None or other.seconds is None else ours.seconds / other.seconds
    return Row(question, cells, name, other.seconds, ratio, target, short)


def _cell(seconds: list[float]) -> Cell:
    return Cell(float(np.median(seconds)), min(seconds), len(seconds))


def _within(question: str, seconds: list[float], most: float) -> Row:
    cell = _cell(seconds)
    return Row(question, {OURS: cell}, target=Target("at most", most, "s"), short=question)


def _product(folder: Path, stays: Path, kind: str, *query: Path) -> float:
    return _seconds("-m", "benchmarks.product_process", str(folder), str(stays), kind, *map(str, query))


def _seconds(*arguments: str) -> float:
    return float(_python(*arguments))


def _dualform(command: str, memory: Path, *rest: str) -> str:
    return _python("-m", "dualform_client.cli", command, str(memory), *rest)


def _python(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, check=True, env=environment()
    )
    return done.stdout


def environment() -> dict[str, str]:
    """Byte code is kept, as that of an installed package is: our sources are not compiled anew for every process."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _ready(memory: Path) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "dualform_client.cli", "serve", str(memory), "--address", "127.0.0.1:0", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment()
    ) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        took = time.perf_counter() - began
        server.terminate()
    if not said:
        raise RuntimeError("the server ended before it listened")
    return took

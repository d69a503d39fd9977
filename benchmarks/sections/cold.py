"""First answers: whole processes from the shell, with files in the page cache, beside plain FAISS over the same files.

Another process asked the same before, so that what is derived from keys lies beside them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import contest, oracle
from benchmarks.data import load
from benchmarks.keys import LAYER
from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section, Target
from benchmarks.timing import race

K = 10
FAISS = "FAISS, read_index and search"
PASS = "one pass over the keys"
OPENED = """
import sys, time
from dualform.query.engine import open_memory
began = time.perf_counter()
open_memory(sys.argv[1])
print(time.perf_counter() - began)
"""
READ = """
import sys
room = bytearray(1 << 20)
for name in sys.argv[1:]:
    with open(name, "rb", buffering=0) as file:
        while file.readinto(room):
            pass
"""


def run(plan: Plan) -> Section:
    section = Section("cold", "First answers")
    data, query = load(plan), plan.folder / "cold.npy"
    np.save(query, data.queries[:1])
    folder = next(iter(sorted(plan.memory.glob(f"shard-*/layers/{LAYER}"))))
    right = oracle.best(data.keys, data.queries[:1], K)[0]
    asked = ("--layer", LAYER, "--query", str(query), "--json")

    def check(name: str, answer: Any) -> tuple[str, str]:
        if contest.ours(name):
            hits = json.loads(answer)["hits"]
            slots = [np.array([hit["slot"] for hit in hits])]
            return oracle.wrong_exactly(right, slots, [np.array([hit["score"] for hit in hits], np.float32)]), ""
        return oracle.wrong_nearly(right, [np.array(json.loads(answer))], data.keys, data.queries[:1])

    keys = sorted(map(str, folder.glob("keys-*.faiss")))
    section.rows += [
        _beside(
            plan,
            "topk, 1 query",
            {
                OURS: lambda: _dualform("topk", plan.memory, *asked, "-k", str(K)),
                FAISS: lambda: _python("-m", "benchmarks.faiss_process", str(folder), str(query), str(K)),
            },
            check,
            Target("at most", 0.6),
        ),
        _beside(
            plan,
            "sums by dataset and label, 1 query",
            {
                OURS: lambda: _dualform("sums", plan.memory, *asked, "--by", "dataset,label"),
                PASS: lambda: _python("-c", READ, *keys),
            },
            lambda name, answer: ("", ""),
            Target("at most", 0.5),
        ),
        _within(
            "dualform.open, in Python",
            [float(_python("-c", OPENED, str(plan.memory))) for _ in range(plan.repeats)],
            0.3,
        ),
        _within("dualform serve, until it takes questions", [_ready(plan.memory) for _ in range(plan.repeats)], 1.0),
    ]
    section.notes.append(
        "Whole processes, from the start of the interpreter to its end; files are in the page cache. The first "
        "question of all, which derives what is kept, is not timed here."
    )
    return section


def _beside(
    plan: Plan, question: str, contestants: dict[str, Callable[[], str]], check: contest.Check, target: Target
) -> Row:
    ran = race(contestants, plan.repeats, 10 * plan.patience)
    cells = {name: contest.cell(name, one, check) for name, one in ran.items()}
    (_, ours), (name, other) = cells.items()
    ratio = None if ours.seconds is None or other.seconds is None else ours.seconds / other.seconds
    return Row(f"{question}: the whole process", cells, name, other.seconds, ratio, target, question)


def _within(question: str, seconds: list[float], most: float) -> Row:
    middle = float(np.median(seconds))
    cell = Cell(middle, min(seconds), len(seconds))
    return Row(question, {OURS: cell}, "one second", 1.0, middle, Target("at most", most), question)


def _dualform(command: str, memory: Path, *rest: str) -> str:
    return _python("-m", "dualform_client.cli", command, str(memory), *rest)


def _python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def _ready(memory: Path) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "dualform_client.cli", "serve", str(memory), "--address", "127.0.0.1:0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        took = time.perf_counter() - began
        server.terminate()
    if not said:
        raise RuntimeError("the server ended before it listened")
    return took

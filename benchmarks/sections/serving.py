"""Questions over gRPC on loopback: many clients at once, and one call beside the engine's own time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import dualform
from benchmarks import contest, oracle
from benchmarks.data import load
from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section, Target
from benchmarks.sections.topk import K, asked, first
from benchmarks.timing import race
from dualform_client import Client

CLIENTS = 64
IN_PROCESS = f"{OURS}, in process"


def run(plan: Plan) -> Section:
    section = Section("serving", "Serving")
    data = load(plan)
    right = oracle.best(data.keys, data.queries[:CLIENTS], K)[0]
    with served(plan) as address:
        _crowd(section, plan, address, right)
        _calls(section, plan, address, right, data)
    section.notes.append("Server, clients and the engine in process share the same cores.")
    return section


@contextmanager
def served(plan: Plan) -> Iterator[str]:
    """The address of a server of the run's memory."""
    command = [sys.executable, "-m", "benchmarks.server_process", str(plan.memory)]
    command += [] if plan.backend is None else [plan.backend]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"the server ended with code {process.wait()}")
        yield address
    finally:
        process.stdin.close()
        process.wait()


def _crowd(section: Section, plan: Plan, address: str, right: oracle.Best) -> None:
    rounds, seconds = (3, 2.0) if plan.quick else (5, 5.0)
    arguments = [address, str(plan.folder), str(CLIENTS), str(rounds), str(seconds)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.clients_process", *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    rates = json.loads(done.stdout)
    alone, together = median(rates["alone"]), median(rates["together"])
    answers = np.load(plan.folder / "crowd.npz")
    wrong = oracle.wrong_exactly(right, list(answers["slots"]), list(answers["scores"]))
    section.rows.append(
        Row(
            f"{CLIENTS} concurrent clients asking one query each: seconds a question",
            {OURS: Cell(1 / together, 1 / max(rates["together"]), rounds, wrong=wrong)},
            "one client asking one after the other",
            1 / alone,
            together / alone,
            Target("at least", 8),
            f"{CLIENTS} clients",
        )
    )
    section.facts["questions a second"] = f"{alone:,.1f} by one client, {together:,.1f} by {CLIENTS} at once"


def _calls(section: Section, plan: Plan, address: str, right: oracle.Best, data: Any) -> None:
    with dualform.open(plan.memory, backend=plan.backend) as engine, Client(address) as client:
        for count, target in ((1, None), (CLIENTS, Target("at most", 1.1))):
            queries = data.queries[:count]

            def check(name: str, answer: Any, count: int = count) -> tuple[str, str]:
                return oracle.wrong_exactly(first(right, count), answer.slots, answer.scores), ""

            contestants = {
                OURS: partial(client.topk, data.layer, queries, K),
                IN_PROCESS: partial(engine.topk, data.layer, queries, K),
            }
            ran = race(contestants, 3 * plan.repeats, plan.patience)
            cells = {name: contest.cell(name, one, check) for name, one in ran.items()}
            ours, beside = cells[OURS].seconds, cells[IN_PROCESS].seconds
            assert ours is not None
            assert beside is not None
            question = f"gRPC, {asked(count)} a call"
            section.rows.append(Row(question, cells, "in process", beside, ours / beside, target, f"{count} a call"))

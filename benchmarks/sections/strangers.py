"""Light questions of one client, alone and beside callers that a server must live with: times that 99 of 100 keep."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from statistics import median

import numpy as np

from benchmarks import server_memory
from benchmarks.keys import LAYER
from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section, Target
from dualform.questions import QuerySetExamples
from dualform.store.byte_counts import readable
from dualform_client import Client

FLOODS = ("ablated outputs", "passing deadlines", "stalled calls", "oversize messages", "idle connections")
"""Those of flood_process."""
MEMORY = "8 GB"
"""Of the server: so that it can keep the codes of all layers."""
BEGINNING = 2.0
"""Seconds that a flood has before anything is measured."""
PAUSE = 0.01
"""Seconds between questions of the light client."""


def run(plan: Plan) -> Section:
    section = Section("strangers", "Light questions beside others' floods")
    path = plan.study
    if path is None:
        row = Row("light questions beside floods", {OURS: Cell(why_not="needs a recorded continual study")})
        section.rows.append(row)
        return section
    rounds, seconds = (1, 3.0) if plan.quick else (3, 10.0)
    with server_memory.served(path, "--ram", MEMORY) as (address, process), Client(address, timeout=120) as client:
        info = client.info()
        width = next(layer.d_in for layer in info.layers if layer.name == LAYER)
        query = QuerySetExamples(info.query_sets[0].name, (0,))
        asks: dict[str, Callable[[], object]] = {
            "ten best slots": lambda: client.topk(LAYER, query, 10),
            "sums by label": lambda: client.group_sum(LAYER, query, "label"),
            "info": client.info,
        }
        p99(asks, seconds)  # what is kept from here on is no part of what is measured
        with server_memory.watched(process) as held:
            for flood in FLOODS:
                _beside(section, asks, partial(flooded, address, flood, LAYER, width), flood, rounds, seconds)
    section.facts[f"most resident memory of the server, of {MEMORY}"] = readable(held.resident)
    section.notes.append(
        "One client asks in turns for the ten best slots, sums by label and info, with a hundredth of a second "
        "between. Server, client and flood share the same cores. A figure is the median, over the rounds, of the time "
        "that 99 of 100 questions keep."
    )
    return section


def _beside(
    section: Section,
    asks: dict[str, Callable[[], object]],
    under: Callable[[dict[str, int]], AbstractContextManager[None]],
    flood: str,
    rounds: int,
    seconds: float,
) -> None:
    alone, beside = [], []
    became = dict[str, int]()
    for _ in range(rounds):
        alone.append(p99(asks, seconds))
        with under(became):
            beside.append(p99(asks, seconds))
    for name in asks:
        ours, own = median(one[name] for one in beside), median(one[name] for one in alone)
        cell = Cell(ours, min(one[name] for one in beside), rounds)
        section.rows.append(
            Row(f"{name}, during {flood}", {OURS: cell}, "alone", own, ours / own, Target("at most", 3))
        )
    section.facts[f"{flood}: became of them"] = ", ".join(f"{count:,} {what}" for what, count in sorted(became.items()))


def p99(asks: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Seconds that 99 of 100 of each question keep, asked in turns for so long."""
    took: dict[str, list[float]] = {name: [] for name in asks}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, ask in asks.items():
            began = time.perf_counter()
            ask()
            took[name].append(time.perf_counter() - began)
            time.sleep(PAUSE)
    return {name: float(np.quantile(one, 0.99)) for name, one in took.items()}


@contextmanager
def flooded(address: str, flood: str, layer: str, width: int, became: dict[str, int]) -> Iterator[None]:
    """One of FLOODS goes on inside; `became`: what became of its calls, added when it ends."""
    command = [sys.executable, "-m", "benchmarks.flood_process", address, flood, layer, str(width)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"the flood ended with code {process.wait()}")
        time.sleep(BEGINNING)
        try:
            yield
        finally:
            process.stdin.close()
            said = process.stdout.readline()
            for what, count in (json.loads(said) if said else {}).items():
                became[what] = became.get(what, 0) + count
            process.terminate()

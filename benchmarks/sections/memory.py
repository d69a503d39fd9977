"""Memory that processes hold: whole studies, a server that nobody asks, and one of bounded memory under a mix of
questions from several clients, each answer compared with that of an engine without a bound.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dualform
from benchmarks import server_memory
from benchmarks.keys import LAYER
from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section, Target
from dualform.answers import Hits
from dualform.errors import BadInput, Overloaded
from dualform.methods import Answers
from dualform.store.byte_counts import bytes_of, readable
from dualform_client import Client
from dualform_studies.pages.folder import report_folder

IDLE, WHOLE_RUN = Target("at most", 400e6, "bytes"), Target("at most", 6e9, "bytes")
BOUND, STUDY_BOUND = "1 GB", "2 GB"
"""Of a server of the run's memory, and of one of the whole study."""
CLIENTS = 8
AGAIN = 0.05
"""Seconds after which a client asks again that was turned away."""

Ask = Callable[[Answers], list[NDArray[Any]]]
"""What a memory answers, in arrays that compare bit by bit."""


def run(plan: Plan) -> Section:
    section = Section("memory", "Memory")
    queries = np.load(plan.folder / "queries.npy")[:64]
    _server(section, plan, plan.memory, BOUND, _of_keys(queries))
    if plan.study is None or plan.quick:
        why = "needs a whole recorded continual study" if plan.study is None else "not in a quick run"
        section.rows.append(Row("dualform serve of a whole study, idle", {OURS: Cell(why_not=why)}, target=IDLE))
    else:
        _server(section, plan, plan.study, STUDY_BOUND, _of_keys(queries) | _of_values(queries))
        section.rows += [_whole_run(plan.study.parent / name) for name in ("continual", "single")]
    section.notes.append(
        "Bytes that are resident, files that the system keeps for the process included; a server that is idle has "
        "opened, warmed and answered nothing. --ram of a server bounds all of it. "
        f"{CLIENTS} clients ask for {_seconds(plan):.0f} seconds, each in an order of its own: "
        "the best slots, alone, under filters, of groups and by three scores, sums by few and by many groups, dot and "
        "absolute; of the whole study also ablated outputs and weights. A whole run's memory is what its report "
        "says."
    )
    return section


def _server(section: Section, plan: Plan, path: Path, bound: str, questions: Mapping[str, Ask]) -> None:
    """Two rows and their facts, of one memory."""
    with dualform.open(path, backend=plan.backend) as engine:
        name = f"{next(layer.slots for layer in engine.info().layers if layer.name == LAYER):,} slots"
        right = {question: ask(engine) for question, ask in questions.items()}
    with server_memory.served(path) as (_, process):
        held = server_memory.idle(process)
    section.rows.append(_row(f"dualform serve, {name}, idle: resident memory", held.resident, IDLE))
    section.facts[f"dualform serve, {name}, idle: of which no file backs"] = readable(held.anonymous)
    with (
        server_memory.served(path, "--ram", bound) as (address, process),
        server_memory.watched(process) as held,
    ):
        answered, refused, wrong = _mix(address, questions, right, _seconds(plan))
    mixed = f'dualform serve --ram "{bound}", {name}, {CLIENTS} clients'
    most = Target("at most", bytes_of(bound), "bytes")
    section.rows.append(_row(f"{mixed}: most resident memory", held.resident, most, wrong))
    section.facts[f"{mixed}: of which no file backs"] = readable(held.anonymous)
    section.facts[f"{mixed}: answered"] = f"{answered:,} questions in {_seconds(plan):.0f} s"
    if refused:
        section.facts[f"{mixed}: refused, for they need more"] = ", ".join(sorted(refused))


def _seconds(plan: Plan) -> float:
    return 5.0 if plan.quick else 30.0


def _row(question: str, held: float, most: Target, wrong: str = "") -> Row:
    cell = Cell(bytes=held, wrong=wrong)
    return Row(question, {OURS: cell}, target=most)


def _whole_run(run: Path) -> Row:
    question = f"dualform study {run.name}, the whole run: most resident memory"
    path = report_folder(run) / "report.json"
    held = json.loads(path.read_text()).get("peak_bytes") if path.is_file() else None
    if held is None:
        why = f"no report beside the study says it: dualform study {run.name} --out {run.name}"
        return Row(question, {OURS: Cell(why_not=why)}, target=WHOLE_RUN)
    return _row(question, float(held), WHOLE_RUN)


def _of_keys(queries: NDArray[np.float32]) -> dict[str, Ask]:
    one, some, all_ = queries[:1], queries[:8], queries
    return {
        "best": lambda memory: _best(memory.topk(LAYER, one, k=10)),
        "best, many queries": lambda memory: _best(memory.topk(LAYER, all_, k=10)),
        "best, filtered": lambda memory: _best(memory.topk(LAYER, some, k=10, where="sample % 3 = 0")),
        "best of groups": lambda memory: _best(memory.topk(LAYER, one, k=50, by=("dataset", "label"))),
        "best, cosine": lambda memory: _best(memory.topk(LAYER, some, k=10, score="cosine")),
        "best, absolute": lambda memory: _best(memory.topk(LAYER, some, k=10, score="abs")),
        "sums": lambda memory: [memory.group_sum(LAYER, some, by=("dataset", "label")).sums],
        "sums, absolute": lambda memory: [memory.group_sum(LAYER, some, by="label", score="abs").sums],
        "sums by sample": lambda memory: [memory.group_sum(LAYER, one, by="sample", where="label <> 3").sums],
    }


def _of_values(queries: NDArray[np.float32]) -> dict[str, Ask]:
    return {
        "output": lambda memory: [memory.output(LAYER, queries[:1], where="label <> 3").values],
        "weights": lambda memory: list(memory.weights(where="label <> 3").arrays.values()),
    }


def _best(hits: Hits) -> list[NDArray[Any]]:
    return [hits.ids, hits.flat_scores, hits.counts]


def same(one: list[NDArray[Any]], other: list[NDArray[Any]]) -> bool:
    return [(a.shape, a.dtype, a.tobytes()) for a in one] == [(a.shape, a.dtype, a.tobytes()) for a in other]


def _mix(
    address: str, questions: Mapping[str, Ask], right: Mapping[str, list[NDArray[Any]]], seconds: float
) -> tuple[int, set[str], str]:
    """How many questions were answered, which are refused as too large, and what was wrong with one."""
    end, counted, refused, lock = time.monotonic() + seconds, [0], set[str](), threading.Lock()

    def ask_on(number: int) -> str:
        order = np.random.default_rng(number)
        with Client(address, timeout=600.0) as client:
            while time.monotonic() < end:
                name = str(order.choice(list(questions)))
                try:
                    answer = questions[name](client)
                except Overloaded:
                    # Large questions are answered a few at once: a client asks again, as the server says.
                    time.sleep(AGAIN)
                    continue
                except BadInput as error:
                    if "of RAM; the limit is" not in str(error):
                        raise
                    refused.add(name)
                    continue
                if not same(answer, right[name]):
                    return f"{name} is not what an engine without a bound answers"
                with lock:
                    counted[0] += 1
        return ""

    with ThreadPoolExecutor(CLIENTS) as pool:
        wrong = "; ".join(sorted(set(filter(None, pool.map(ask_on, range(CLIENTS))))))
    return counted[0], refused, wrong

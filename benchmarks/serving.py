"""Questions over gRPC on loopback: many clients at once, clients beside floods, and the memory that servers hold."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, takewhile
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import grpc
import numpy as np
from numpy.typing import NDArray

import dualform
from benchmarks import oracle
from benchmarks.data import LAYER, Floats, load, network
from benchmarks.harness import OURS, Cell, K, Plan, Section, Target, apart, asked, race, resident, turns
from benchmarks.processes import served
from dualform.answers import Hits
from dualform.errors import BadInput, DualformError, Overloaded
from dualform.methods import Answers
from dualform.questions import QuerySetExamples
from dualform.store.files.ram_budget import bytes_of, readable
from dualform_client import Client
from dualform_proto.address import parse_address

CLIENTS, MIXED = 64, 8
"""Clients of a crowd, and of a mix of questions."""
IN_PROCESS = f"{OURS}, in process"
_LOOK = 0.01
"""Seconds between looks at what a process holds."""
_STILL = 3.0
"""Seconds in which a process that is idle takes no more memory."""


# ---- Many clients


def serving(plan: Plan, section: Section) -> None:
    """Many clients at once, and one call beside the engine's own time."""
    data = load(plan)
    (right,) = oracle.best(data.keys, data.queries[:CLIENTS], K)
    rounds, seconds = (3, 2.0) if plan.quick else (5, 5.0)
    with served(plan.memory) as (address, _):
        alone, together, hits = apart(_crowd, address, data.queries, rounds, seconds)
        slots, scores = [hit.slots[0] for hit in hits], [hit.scores[0] for hit in hits]
        wrong = oracle.wrong_exactly(right, slots, scores)
        section.compare(
            f"{CLIENTS} concurrent clients asking one query each: seconds a question",
            {OURS: Cell(1 / median(together), 1 / max(together), rounds, wrong=wrong)},
            "one client asking one after the other",
            Target("at least", 8),
            seconds=1 / median(alone),
            times=True,
        )
        with dualform.open(plan.memory, backend=plan.backend) as engine, Client(address) as client:
            for count, target in ((1, None), (CLIENTS, Target("at most", 1.1))):
                queries = data.queries[:count]
                contestants: dict[str, Callable[[], Any]] = {
                    OURS: partial(client.topk, LAYER, queries, K),
                    IN_PROCESS: partial(engine.topk, LAYER, queries, K),
                }
                expected = dict.fromkeys(contestants, right.first(count))
                check = oracle.check_best(expected, data.keys, queries)
                cells = race(contestants, 3 * plan.repeats, plan.patience, check)
                question, beside = f"gRPC, {asked(count)} a call", cells[IN_PROCESS].seconds
                section.compare(question, cells, "in process", target, seconds=beside)
    section.notes.append("Server, clients and the engine in process share the same cores.")


def _crowd(address: str, queries: Floats, rounds: int, seconds: float) -> tuple[list[float], list[float], list[Hits]]:
    """Questions a second by one client alone and by all at once, round by round; and the answer that each got.

    Each client asks its own query again and again. Raises AssertionError for an answer that changes.
    """
    asks = [partial(Client(address).topk, LAYER, queries[number % len(queries)][None], K) for number in range(CLIENTS)]
    first = [ask() for ask in asks]

    def ask_until(number: int, end: float) -> int:
        answered = 0
        while time.perf_counter() < end:
            assert same(_best(asks[number]()), _best(first[number])), "the same question got two answers"
            answered += 1
        return answered

    def rate(clients: int) -> float:
        began = time.perf_counter()
        answered = sum(pool.map(ask_until, range(clients), [began + seconds] * clients))
        return answered / (time.perf_counter() - began)

    with ThreadPoolExecutor(CLIENTS) as pool:
        rates = turns({"alone": lambda: rate(1), "together": lambda: rate(CLIENTS)}, rounds)
    return rates["alone"], rates["together"], first


# ---- Floods


def strangers(plan: Plan, section: Section) -> None:
    """Light questions of one client, without and with callers that a server must live with."""
    rounds, seconds, ram = 1 if plan.quick else 3, 3.0 if plan.quick else 10.0, "8 GB"  # keeps the codes of all layers
    with served(network(plan), "--ram", ram) as (address, process), Client(address, timeout=120) as client:
        info = client.info()
        width = next(layer.d_in for layer in info.layers if layer.name == LAYER)
        query = QuerySetExamples(info.query_sets[0].name, (0,))
        asks: dict[str, Callable[[], object]] = {
            "ten best slots": lambda: client.topk(LAYER, query, 10),
            "sums by label": lambda: client.group_sum(LAYER, query, "label"),
            "info": client.info,
        }
        p99(asks, seconds)  # sums and codes that are kept are derived here, before anything is measured
        with watched(process) as held:
            for flood in FLOODS:
                became = Counter[str]()

                def beside(flood: str = flood, became: Counter[str] = became) -> dict[str, float]:
                    with flooded(address, flood, LAYER, width, became):
                        return p99(asks, seconds)

                found = turns({"alone": lambda: p99(asks, seconds), OURS: beside}, rounds)
                for name in asks:
                    alone, ours = ([one[name] for one in own] for own in found.values())
                    question, cells, target = f"{name}, during {flood}", {OURS: Cell.of(ours)}, Target("at most", 3)
                    section.compare(question, cells, "alone", target, seconds=median(alone))
                fates = ", ".join(f"{count:,} {what}" for what, count in sorted(became.items()))
                section.facts[f"{flood}: became of them"] = fates
    section.facts[f"most resident memory of the server, of {ram}"] = readable(held.resident)
    section.notes.append(
        "One client asks in turns for the ten best slots, sums by label and info, with a hundredth of a second "
        "between. Server, client and flood share the same cores. A figure is the median, over the rounds, of the time "
        "that 99 of 100 questions keep."
    )


def p99(asks: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Seconds that 99 of 100 of each question keep, asked in turns for so long."""
    took: dict[str, list[float]] = {name: [] for name in asks}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, ask in asks.items():
            began = time.perf_counter()
            ask()
            took[name].append(time.perf_counter() - began)
            time.sleep(0.01)
    return {name: float(np.quantile(one, 0.99)) for name, one in took.items()}


@contextmanager
def flooded(
    address: str, flood: str, layer: str, width: int, became: Counter[str], before: float = 2.0
) -> Iterator[None]:
    """One of FLOODS goes on inside, in a process of its own, `before` seconds of it already past.

    `became`: what became of its calls, added at the end.
    """
    spawn = get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_flood, args=(flood, address, layer, width, there), daemon=True)
    process.start()
    if not here.poll(60):
        raise RuntimeError(f"the flood has not begun; its process ended with code {process.exitcode}")
    here.recv()
    time.sleep(before)
    try:
        yield
    finally:
        here.send(None)
        became.update(here.recv())
        process.terminate()


HASTE, OVERSIZE = 0.2, 5 * 2**20
"""Seconds of a deadline that passes, and bytes of a message of which the server takes 4 MiB at most."""
METHOD = "/dualform.v1.Memory/TopK"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
"""What begins a connection of HTTP/2, and an empty frame of settings."""


def _flood(kind: str, address: str, layer: str, width: int, pipe: Any) -> None:
    """Callers on threads, told by `pipe` to end; it then gets what became of their calls."""
    work, callers = FLOODS[kind]
    flood = _Flood(address, layer, width)
    for number in range(callers):
        threading.Thread(target=work, args=(flood, number), daemon=True).start()
    pipe.send(None)
    pipe.recv()
    flood.over.set()
    pipe.send(flood.became)


class _Flood:
    """Callers that a server must live with; each ends when the flood is over."""

    def __init__(self, address: str, layer: str, width: int) -> None:
        self.address, self.layer, self.over = address, layer, threading.Event()
        self.query = np.random.default_rng(0).normal(size=(1, width)).astype(np.float32)
        self.became = Counter[str]()

    def masked(self, number: int, timeout: float | None = None) -> None:
        """Outputs under a new mask every time."""
        with Client(self.address, timeout=timeout) as client:
            for turn in takewhile(lambda _: not self.over.is_set(), count()):
                # Of this process alone: a mask that a flood before had asked for is known, and takes little.
                where = f"slot % 9973 <> {8 * turn + number} AND slot <> -{os.getpid()}"
                try:
                    client.output(self.layer, self.query, where, allow_inexact=True)
                    self.became["answered"] += 1
                except DualformError as error:
                    self.became[error.code] += 1
                    time.sleep(0.05)

    def calls(self, call: Callable[[Any], object]) -> None:
        with grpc.insecure_channel(self.address) as channel:
            while not self.over.is_set():
                try:
                    call(channel)
                except grpc.RpcError as error:
                    self.became[error.code().name] += 1

    def stalled(self, number: int) -> None:
        """Calls that send no message."""

        def nothing() -> Iterator[bytes]:
            self.over.wait()
            yield from ()

        def call(channel: Any) -> None:
            self.became["begun"] += 1
            channel.stream_unary(METHOD)(nothing(), timeout=60)

        self.calls(call)

    def oversize(self, number: int) -> None:
        message = bytes(OVERSIZE)
        self.calls(lambda channel: channel.unary_unary(METHOD)(message, timeout=60))

    def idle(self, number: int) -> None:
        """Connections that say they speak HTTP/2, and nothing else: a thousand of all callers."""
        place = parse_address(self.address)
        with ExitStack() as held:
            for _ in range(125):
                with suppress(OSError):
                    connection = held.enter_context(socket.create_connection((place.host, place.port)))
                    connection.sendall(PREFACE)
                    self.became["connected"] += 1
            self.over.wait()


FLOODS: dict[str, tuple[Callable[[_Flood, int], None], int]] = {
    "ablated outputs": (_Flood.masked, 8),
    "passing deadlines": (partial(_Flood.masked, timeout=HASTE), 8),
    "stalled calls": (_Flood.stalled, 50),
    "oversize messages": (_Flood.oversize, 8),
    "idle connections": (_Flood.idle, 8),
}
"""By name, what a caller does, and how many callers there are."""

# ---- The memory of servers


@dataclass
class Held:
    resident: float = 0.0
    """The most bytes of a process since it began; what files back is included."""


@contextmanager
def watched(process: int) -> Iterator[Held]:
    """What a process holds, looked at again and again until the block ends."""
    held, done = Held(), threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK):
            held.resident = max(held.resident, resident(process)["VmHWM"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield held
    finally:
        done.set()
        watcher.join()


def idle(process: int, patience: float = 30.0) -> Held:
    """What a process holds at most until it takes no more, as a server that has warmed and that nobody asks."""
    with watched(process) as held:
        began = still = time.monotonic()
        most = 0.0
        while time.monotonic() - still < _STILL and time.monotonic() - began < patience:
            time.sleep(_LOOK)
            if held.resident > 1.001 * most:
                most, still = held.resident, time.monotonic()
    return held


IDLE = Target("at most", 400e6, "bytes")
Ask: TypeAlias = Callable[[Answers], list[NDArray[Any]]]
"""What a memory answers, in arrays that compare bit by bit."""


def memory(plan: Plan, section: Section) -> None:
    """A server that nobody asks, and one of bounded memory under a mix of questions from clients, each answer compared
    with that of an engine without a bound.
    """
    queries, seconds = np.load(plan.folder / "queries.npy")[:64], 5.0 if plan.quick else 30.0
    _server(section, plan, plan.memory, "1 GB", _of_keys(queries), seconds)
    _server(section, plan, network(plan), "2 GB", _of_keys(queries) | _of_values(queries), seconds)
    section.notes.append(
        "Bytes that are resident, files that the system keeps for the process included; a server that is idle has "
        "opened, warmed and answered nothing. --ram of a server bounds all of it. "
        f"{MIXED} clients ask for {seconds:.0f} seconds, each in an order of its own: "
        "the best slots, alone, under filters, of groups and by three scores, sums by few and by many groups, dot and "
        "absolute; of the memory with values also ablated outputs and weights."
    )


def _server(section: Section, plan: Plan, path: Path, bound: str, questions: Mapping[str, Ask], seconds: float) -> None:
    """Two rows and their facts, of one memory."""
    with dualform.open(path, backend=plan.backend) as engine:
        name = f"{next(layer.slots for layer in engine.info().layers if layer.name == LAYER):,} slots"
        right = {question: ask(engine) for question, ask in questions.items()}
    with served(path) as (_, process):
        held = idle(process)
    section.alone(f"dualform serve, {name}, idle: resident memory", Cell(bytes=held.resident), IDLE)
    with served(path, "--ram", bound) as (address, process), watched(process) as held:
        answered, refused, wrong = mix(address, questions, right, seconds)
    mixed, most = (
        f'dualform serve --ram "{bound}", {name}, {MIXED} clients',
        Target("at most", bytes_of(bound), "bytes"),
    )
    section.alone(f"{mixed}: most resident memory", Cell(bytes=held.resident, wrong=wrong), most)
    section.facts[f"{mixed}: answered"] = f"{answered:,} questions in {seconds:.0f} s"
    if refused:
        section.facts[f"{mixed}: refused, for they need more"] = ", ".join(sorted(refused))


def _of_keys(queries: Floats) -> dict[str, Ask]:
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


def _of_values(queries: Floats) -> dict[str, Ask]:
    return {
        "output": lambda memory: [memory.output(LAYER, queries[:1], "label <> 3", allow_inexact=True).values],
        "weights": lambda memory: list(memory.weights(where="label <> 3", allow_inexact=True).arrays.values()),
    }


def _best(hits: Hits) -> list[NDArray[Any]]:
    return [hits.ids, hits.flat_scores, hits.counts]


def same(one: list[NDArray[Any]], other: list[NDArray[Any]]) -> bool:
    return [(a.shape, a.dtype, a.tobytes()) for a in one] == [(a.shape, a.dtype, a.tobytes()) for a in other]


def mix(
    address: str, questions: Mapping[str, Ask], right: Mapping[str, list[NDArray[Any]]], seconds: float
) -> tuple[int, set[str], str]:
    """How many questions were answered, which are refused as too large, and what was wrong with one."""
    end, answered, refused = time.monotonic() + seconds, list[tuple[str, bool]](), set[str]()

    def ask_on(number: int) -> None:
        order = np.random.default_rng(number)
        with Client(address, timeout=600.0) as client:
            while time.monotonic() < end:
                name = str(order.choice(list(questions)))
                try:
                    answered.append((name, same(questions[name](client), right[name])))
                except Overloaded:
                    time.sleep(0.05)  # large questions are answered a few at once: a client asks again
                except BadInput as error:
                    if "of RAM; the limit is" not in str(error):
                        raise
                    refused.add(name)

    with ThreadPoolExecutor(MIXED) as pool:
        deque(pool.map(ask_on, range(MIXED)), maxlen=0)
    wrong = sorted({name for name, is_right in answered if not is_right})
    return len(answered), refused, "; ".join(f"{name} is not what an engine without a bound answers" for name in wrong)

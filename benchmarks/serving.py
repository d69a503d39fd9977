"""What a server makes of many clients: `python -m benchmarks.serving MEMORY LAYER PROBE [CLIENTS [SECONDS]]`.

Server, clients and whoever measures are three processes on one machine; the clients are threads with a connection each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dualform
from benchmarks.timing import race
from dualform_client import Client

K = 10
PLACES = 4
"""The server's own default."""
QUERIES = 64
"""Of the one call that is compared with the engine in process."""
ROUNDS = 3


def measure(memory: Path, layer: str, probe: str, clients: int, seconds: float) -> dict[str, float]:
    """Questions a second and seconds a question, medians over rounds of `seconds` in which the contestants take turns.

    `sequential`: questions a second by one client asking one after the other; `concurrent`: by all at once, one query
    each; `ratio` of the two. `call`: seconds of one gRPC call with 64 queries, `in_process` of the engine's own answer
    to them, `call_over_in_process`; `call_1` and its like for one query. Raises AssertionError where an answer over
    gRPC is not the engine's, bit by bit.
    """
    with dualform.open(memory) as engine, served(memory) as address:
        queries = stored_queries(engine, layer, probe, max(clients, QUERIES))
        command = [sys.executable, "-m", "benchmarks.serving", "crowd", address, str(memory), layer, probe]
        done = subprocess.run([*command, str(clients), str(seconds)], stdout=subprocess.PIPE, text=True, check=True)
        rates: dict[str, list[float]] = json.loads(done.stdout)
        found = {name: median(rounds) for name, rounds in rates.items()}
        found["ratio"] = found["concurrent"] / found["sequential"]
        with Client(address) as client:
            for suffix, count in (("", QUERIES), ("_1", 1)):
                asked = queries[:count]
                contestants = {
                    "call": partial(client.topk, layer, asked, K),
                    "in_process": partial(engine.topk, layer, asked, K),
                }
                ran = race(contestants, repeats=25, patience=60.0)
                _same(ran["call"].answer, ran["in_process"].answer)
                times = {name: one.timing.seconds for name, one in ran.items() if one.timing is not None}
                found |= {name + suffix: value for name, value in times.items()}
                found[f"call{suffix}_over_in_process"] = times["call"] / times["in_process"]
    return found


@contextmanager
def served(memory: Path) -> Iterator[str]:
    """The address of a server of a memory, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.served", str(memory), str(PLACES)]
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


def stored_queries(memory: dualform.Answers, layer: str, probe: str, count: int) -> NDArray[np.float32]:
    """float32[count, d]: the first of a probe's, again from its first where it has fewer."""
    rows = memory.probe(probe, layer).queries
    assert rows is not None
    return rows[np.arange(count) % len(rows)]


def _same(answer: Any, right: Any) -> None:
    if not (np.array_equal(answer.ids, right.ids) and np.array_equal(answer.weights, right.weights)):
        raise AssertionError("an answer over gRPC differs from the engine's")


class _Asker:
    """A client with a query of its own, asked again and again."""

    def __init__(self, address: str, layer: str, query: NDArray[np.float32], right: Any) -> None:
        self._ask = partial(Client(address).topk, layer, query, K)
        self._right = right
        _same(self._ask(), right)

    def ask_until(self, end: float) -> int:
        """How many questions were answered by then."""
        asked = 0
        while time.perf_counter() < end:
            _same(self._ask(), self._right)
            asked += 1
        return asked


def _crowd(address: str, memory: Path, layer: str, probe: str, clients: int, seconds: float) -> dict[str, list[float]]:
    """Questions a second, round by round, by one client alone and by all at once."""
    with dualform.open(memory) as engine:
        queries = stored_queries(engine, layer, probe, clients)[:, None]
        rights = [engine.topk(layer, query, K) for query in queries]
    askers = [_Asker(address, layer, query, right) for query, right in zip(queries, rights, strict=True)]
    rates: dict[str, list[float]] = {"sequential": [], "concurrent": []}
    with ThreadPoolExecutor(clients) as pool:
        for _ in range(ROUNDS):
            for name, some in (("sequential", askers[:1]), ("concurrent", askers)):
                began = time.perf_counter()
                asked = sum(pool.map(_Asker.ask_until, some, [began + seconds] * len(some)))
                rates[name].append(asked / (time.perf_counter() - began))
    return rates


def main(arguments: list[str]) -> None:
    if arguments[0] == "crowd":
        address, memory, layer, probe, clients, seconds = arguments[1:]
        found: Any = _crowd(address, Path(memory), layer, probe, int(clients), float(seconds))
    else:
        memory, layer, probe, clients, seconds = [*arguments, *("64", "5")[len(arguments) - 3 :]]
        found = measure(Path(memory), layer, probe, int(clients), float(seconds))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

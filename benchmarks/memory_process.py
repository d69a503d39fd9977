"""One memory in a process of its own, measured one round at a time.

    python -m benchmarks.memory_process MEMORY FOLDER [BACKEND]

Reads "round" lines from its input and answers each with a line of JSON, so that memories of several sizes take turns.
The answers themselves go to FOLDER/answers.npz.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dualform
from benchmarks.keys import LAYER

BY = ("dataset", "label")
FEW = 64
WARM, WARM_UP = 0.001, 50
"""Seconds and times: what takes less than so long is asked so often before it is measured."""


def main(memory: Path, folder: Path, backend: str | None) -> None:
    queries = np.load(folder.parent / "queries.npy")[:FEW]
    with dualform.open(memory, backend=backend) as engine:
        questions: dict[str, Callable[[], Any]] = {
            "one": lambda: engine.topk(LAYER, queries[:1], 10),
            "few": lambda: engine.topk(LAYER, queries, 10),
            "sums": lambda: engine.group_sum(LAYER, queries[:1], BY),
        }
        answers = {name: ask() for name, ask in questions.items()}
        few, sums = answers["few"], answers["sums"]
        np.savez(folder / "answers.npz", slots=np.stack(few.slots), scores=np.stack(few.scores), sums=sums.sums)
        print("ready", flush=True)
        for _ in sys.stdin:
            print(json.dumps({name: seconds(ask) for name, ask in questions.items()} | resident()), flush=True)


def seconds(ask: Callable[[], Any]) -> float:
    """Of one question; the fastest ones are asked a thousand times.

    They are asked untimed first, for the scans before them emptied the processor's caches, a larger memory's more so.
    """
    once = _mean(ask, 1)
    if once < WARM:
        _mean(ask, WARM_UP)
        once = _mean(ask, 1)
    return _mean(ask, max(1, min(1000, int(0.05 / once))))


def _mean(ask: Callable[[], Any], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        ask()
    return (time.perf_counter() - began) / times


def resident(process: int | str = "self") -> dict[str, float]:
    """Bytes of a process in memory: now, at most, and now of what no file backs."""
    status = Path(f"/proc/{process}/status").read_text()
    return {
        name: 1024.0 * int(found.group(1)) if (found := re.search(rf"{name}:\s+(\d+) kB", status)) else 0.0
        for name in ("VmRSS", "VmHWM", "RssAnon")
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)

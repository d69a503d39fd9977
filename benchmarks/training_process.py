"""Trainings on a number of threads, each recorded and not, in a process of its own.

    OMP_NUM_THREADS=2 python -m benchmarks.training_process FOLDER STEPS SHARE ORDER [DATA]

ORDER is `forwards` or `backwards`. Prints one line of JSON: by training and kind, its seconds from the recorder's
opening until the record is durable, its steps, and the record's bytes. Records lie in FOLDER, and are removed.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.trainings import in_turns, trainings

_WARM_UP = 6
"""Steps: torch's first ones allocate, and the first recorder of a process loads what it needs."""


def main(folder: Path, steps: int, share: float, order: str, data: Path | None) -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    found = trainings(data, steps, share)
    measured: dict[str, dict[str, dict[str, float]]] = {}
    warm: set[str] = set()
    memory = folder / "memory"
    for name, training, kind in in_turns(found, order == "backwards"):
        torch.manual_seed(0)
        if name not in warm:
            for warming in (None, memory):
                training.run(warming, True, _WARM_UP)
            shutil.rmtree(memory)
            warm.add(name)
        gc.collect()  # of what was imported, which takes longer than many steps and comes once
        began = perf_counter()
        training.run(None if kind == "unrecorded" else memory, kind == "values", training.steps)
        figures = {"seconds": perf_counter() - began, "steps": float(training.steps), "bytes": 0.0}
        if kind != "unrecorded":
            figures["bytes"] = float(sum(file.stat().st_size for file in memory.rglob("*") if file.is_file()))
            shutil.rmtree(memory)
        measured.setdefault(name, {})[kind] = figures
    print(json.dumps(measured))


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        int(sys.argv[2]),
        float(sys.argv[3]),
        sys.argv[4],
        Path(sys.argv[5]) if sys.argv[5:] else None,
    )

"""A memory of very many token slots without keys, and what it takes to open it and to evaluate a mask on it.

    python -m benchmarks.token_memory build/tokens --slots 100000000

writes the memory where there is none, and then measures it in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.memory_process import resident
from dualform.store.batch import Batch, Extent, LayerRows
from dualform.store.header import Header
from dualform.store.layer import Layer, affine
from dualform.store.writer import Writer

ROWS, LENGTH, LABELS, WORDS = 32, 100, 10, 50_000


def write(path: Path, slots: int) -> None:
    """`slots` tokens, LENGTH to a sample: dataset, label and sample of each sample, and a number of each token."""
    layer = Layer("tokens", "token", 0, 1, affine(0, "tokens.weight", None), source="none", values=False)
    header = Header(
        path,
        layers=[layer],
        optimizer="none",
        rule="",
        reason="a benchmark's memory",
        initial={"tokens.weight": np.zeros((1, 0), dtype=np.float32)},
    )
    writer = Writer(header)
    rng = np.random.default_rng(0)
    datasets = np.array(["first", "second", "third"], dtype=object)
    for step in range(slots // (ROWS * LENGTH)):
        sample = np.arange(step * ROWS, (step + 1) * ROWS)
        said = {"dataset": datasets[sample % 3], "label": rng.integers(0, LABELS, ROWS), "sample": sample}
        token = rng.integers(0, WORDS, ROWS * LENGTH)
        keys = np.empty((ROWS * LENGTH, 0), dtype=np.float32)
        extent = Extent("token", 0, ROWS, LENGTH, columns={"token": token})
        writer.append(Batch(step, said, [extent], {layer.name: [LayerRows(0, keys, None)]}))
    writer.close()


def measure(path: Path) -> None:
    """Print seconds and megabytes."""
    from dualform.query.groups import group_entries
    from dualform.query.score.backends import choose
    from dualform.query.view import View
    from dualform.query.where import mask
    from dualform.store.snapshot import Snapshot

    backend = choose("numpy")
    began, before = time.perf_counter(), _resident()
    memory = Snapshot.open(path)
    _print("open", began, before)
    space = memory.space("token")
    print(f"{space.count:,} slots of {space.samples.count:,} samples, {memory.commits} commits")
    view, layer = View(memory, backend, 1 << 30), memory.layer("tokens")
    ids = np.random.default_rng(1).integers(0, space.count, 10)
    questions: dict[str, Callable[[], int]] = {
        "label = 3": lambda: mask.selection(view, layer, "label = 3").count,
        "ten slots": lambda: space.at(ids, list(space.columns)).num_rows,
        "dataset = 'first' AND label < 5": lambda: mask.selection(view, layer, "dataset = 'first' AND label < 5").count,
        "position < 50": lambda: mask.selection(view, layer, "position < 50").count,
        "token = 7": lambda: mask.selection(view, layer, "token = 7").count,
        "by dataset, label where label = 3": lambda: len(
            group_entries(view, layer, mask.selection(view, layer, "label = 3"), ("dataset", "label")).keys
        ),
    }
    for name, ask in questions.items():
        began = time.perf_counter()
        found = ask()
        _print(f"{name}: {found:,}", began, before)


def _print(what: str, began: float, before: float) -> None:
    print(f"{what:44} {time.perf_counter() - began:8.3f} s   {_resident():8.0f} MB at most, {before:.0f} before")


def _resident() -> float:
    """Megabytes of memory that this process held at most."""
    return resident()["VmHWM"] / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--slots", type=int, default=100_000_000)
    parser.add_argument("--measure", action="store_true", help="only measure, in this process")
    given = parser.parse_args()
    if given.measure:
        measure(given.path)
        return
    if not given.path.exists():
        write(given.path, given.slots)
    subprocess.run([sys.executable, "-m", "benchmarks.token_memory", str(given.path), "--measure"], check=True)


if __name__ == "__main__":
    main()

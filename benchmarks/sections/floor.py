"""What the machine can do: the keys read once, plain matrix products, writes to disk, and the same of a GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import contest
from benchmarks.data import Data, load
from benchmarks.plan import Plan
from benchmarks.result import Row, Section
from benchmarks.timing import Timing, race

PRODUCT_ROWS = 32_768
GIB = 1 << 30


def run(plan: Plan) -> Section:
    section = Section("floor", "The floor")
    data = load(plan)
    _reading(section, plan, data)
    _products(section, plan, data)
    _disk(section, plan)
    if torch.cuda.is_available():
        _gpu(section, plan)
    else:
        section.notes.append("No GPU was at hand.")
    return section


def _reading(section: Section, plan: Plan, data: Data) -> None:
    """The keys once, by whatever reads them fastest."""
    keys, query = torch.from_numpy(data.keys), torch.from_numpy(data.queries[0])
    readers: dict[str, Callable[[], Any]] = {
        "NumPy sum": data.keys.sum,
        "torch sum": keys.sum,
        "torch matrix-vector": lambda: keys @ query,
        "NumPy matrix-vector": lambda: data.keys @ data.queries[0],
    }
    ran = race(readers, plan.repeats, plan.patience)
    cells = {name: contest.cell(name, one, lambda name, answer: ("", "")) for name, one in ran.items()}
    seconds = min(cell.seconds for cell in cells.values() if cell.seconds is not None)
    section.rows.append(Row("the keys read once", cells, short="the keys, once"))
    section.numbers["read seconds"] = seconds
    section.facts["reading the keys once"] = (
        f"{1e3 * seconds:.1f} ms for {data.keys.nbytes / 1e9:.2f} GB: {data.keys.nbytes / seconds / 1e9:.1f} GB/s"
    )


def _products(section: Section, plan: Plan, data: Data) -> None:
    rows = min(PRODUCT_ROWS, len(data.keys))
    for kind in (torch.float32, torch.float64, torch.bfloat16):
        keys = torch.from_numpy(data.keys[:rows]).to(kind)
        queries = torch.from_numpy(data.queries).to(kind)
        _rate(section, f"{_name(kind)} matrix product", keys, queries, plan, lambda: None)


def _rate(
    section: Section, title: str, keys: torch.Tensor, queries: torch.Tensor, plan: Plan, wait: Callable[[], None]
) -> None:
    def product() -> None:
        queries @ keys.T
        wait()

    timing = race({"": product}, plan.repeats, plan.patience)[""].timing
    assert timing is not None
    rate = 2 * len(keys) * len(queries) * keys.shape[1] / timing.seconds
    section.facts[title] = f"{rate / 1e9:,.0f} GFLOP/s ({len(queries):,} x {keys.shape[1]} x {len(keys):,})"
    section.numbers[f"{title}, FLOP/s"] = rate


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _disk(section: Section, plan: Plan) -> None:
    """Plain writes, synced at the end."""
    size = GIB // 4 if plan.quick else GIB
    block = np.random.default_rng(0).bytes(16 << 20)
    timing = Timing.of([_write(plan.folder / "floor.bin", block, size) for _ in range(3)])
    section.facts["writing to disk, synced"] = f"{size / timing.seconds / 1e9:.2f} GB/s"
    section.numbers["disk write, byte/s"] = size / timing.seconds


def _write(path: Path, block: bytes, size: int) -> float:
    began = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(size // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    took = time.perf_counter() - began
    path.unlink()
    return took


def _gpu(section: Section, plan: Plan) -> None:
    section.facts["GPU"] = torch.cuda.get_device_name()
    source = torch.zeros(2 * GIB, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    timing = race({"": copy}, plan.repeats, plan.patience)[""].timing
    assert timing is not None
    # A copy reads and writes each byte.
    section.numbers["GPU copy, byte/s"] = rate = 2 * source.nbytes / timing.seconds
    section.facts["GPU copy bandwidth"] = f"{rate / 1e9:,.0f} GB/s"
    for kind in (torch.float32, torch.bfloat16):
        square = torch.randn((8192, 8192), device="cuda", dtype=kind)
        _rate(section, f"GPU {_name(kind)} matrix product", square, square, plan, torch.cuda.synchronize)

"""The benchmark's memory, written through the store's own writer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.keys import LAYER, Source
from dualform.store.batch import Batch, Extent, LayerRows
from dualform.store.header import Header
from dualform.store.layer import Layer, affine
from dualform.store.writer import Writer


def write_memory(path: Path, source: Source, slots: int) -> None:
    """A memory of one layer, without values. Two slots in a row share a `position`; `coin` is a fair one."""
    coin = np.random.default_rng(7).random(slots) < 0.5
    writer: Writer | None = None
    start = 0
    for step, block in enumerate(source.blocks(slots)):
        count, width = block.keys.shape
        writer = writer or _open(path, width)
        slot = np.arange(start, start + count)
        samples = {**block.columns, "coin": coin[slot]}
        extent = Extent("sample", 0, count, None, position=slot // 2)
        writer.append(Batch(step, samples, [extent], {LAYER: [LayerRows(0, block.keys, None)]}))
        start += count
    if writer is not None:
        writer.close()


def _open(path: Path, width: int) -> Writer:
    weight = f"{LAYER}.weight"
    header = Header(
        path,
        layers=[Layer(LAYER, "sample", width, 1, affine(width, weight, None), values=False)],
        optimizer="none",
        rule="",
        reason="a benchmark's memory",
        initial={weight: np.zeros((1, width), dtype=np.float32)},
    )
    return Writer(header)

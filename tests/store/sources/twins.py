"""Memories in which each layer with a key source of its own has a twin with the same keys as float32 rows. The values
of some, too, are stored in half precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dualform.store.batch import Batch, Extent, Header, LayerRows, WatchLog
from dualform.store.layer import Layer, affine
from dualform.store.writing.writer import Writer
from tests.store.small_memory import log, samples

ROWS, LENGTH, TOKENS = 4, 3, 7
"""Samples of a step, tokens of each, and the size of the vocabulary."""
MAP, KERNEL = (2, 5, 4), (3, 2)
GEOMETRY = {"shape": MAP, "kernel": KERNEL, "stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
PLACES = (3, 2)
"""The output's: ((5 + 2 - 3) // 2 + 1, (4 - 3) // 1 + 1)."""
D_OUT = 3


@dataclass(frozen=True)
class Pair:
    """A layer, and its twin."""

    layer: Layer

    @property
    def twin(self) -> Layer:
        name = f"{self.layer.name}-rows"
        parameters = affine(self.layer.d_in, f"{name}.weight", f"{name}.bias")
        return replace(self.layer, name=name, source="rows", value_source="rows", geometry={}, parameters=parameters)


def layer(name: str, space: str, d_in: int, source: str, **more: Any) -> Layer:
    return Layer(name, space, d_in, D_OUT, affine(d_in, f"{name}.weight", f"{name}.bias"), source=source, **more)


PAIRS = [
    Pair(layer("half", "sample", 5, "bfloat16")),
    Pair(layer("half-repeats", "sample", 5, "bfloat16", repeats=True, value_source="bfloat16")),
    Pair(layer("mixed", "sample", 5, "bfloat16", value_source="bfloat16")),
    Pair(layer("half16", "sample", 5, "float16", value_source="float16")),
    Pair(layer("mixed16", "sample", 5, "float16", value_source="float16")),
    Pair(layer("numbers", "token", TOKENS, "row numbers")),
    Pair(layer("numbers-repeat", "token", TOKENS, "row numbers", repeats=True)),
    Pair(layer("counts", "sample", TOKENS, "row counts")),
    Pair(layer("conv", "patch", 12, "patches", geometry=GEOMETRY)),
    Pair(layer("conv-repeats", "patch", 12, "patches", geometry=GEOMETRY, repeats=True)),
]
LAYERS = [each for pair in PAIRS for each in (pair.layer, pair.twin)]
WEIGHTS = {
    parameter.name: np.full((D_OUT, each.d_in) if parameter.start < each.d_in else (D_OUT,), 0.5, np.float32)
    for each in LAYERS
    for parameter in each.parameters
}


def unfolded(maps: np.ndarray) -> np.ndarray:
    """float32[n * P, d_in] of float32[n, *MAP], as torch unfolds them."""
    options = {name: numbers for name, numbers in GEOMETRY.items() if name not in ("shape", "kernel")}
    found = torch.nn.functional.unfold(torch.from_numpy(maps), KERNEL, **options)
    return found.transpose(1, 2).reshape(-1, found.shape[1]).contiguous().numpy()


def bags(rng: np.random.Generator, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Members of bags, of which one is empty and one has a member twice; and the weights of each row, added up."""
    numbers = rng.integers(0, TOKENS + 1, (ROWS, longest))
    numbers[0], numbers[1] = TOKENS, numbers[1, 0]
    weights = rng.normal(size=numbers.shape).astype(np.float32)
    members = weights.view("<u4").astype("<u8") << np.uint64(32) | numbers.astype("<u8")
    rows = np.zeros((ROWS, TOKENS), np.float32)
    for row, number, weight in zip(np.arange(ROWS).repeat(longest), numbers.flat, weights.flat, strict=True):
        if number < TOKENS:
            rows[row, number] += weight
    return members, rows


def halved(rng: np.random.Generator, dtype: torch.dtype, *shape: int) -> np.ndarray:
    return torch.from_numpy(rng.normal(size=shape).astype(np.float32)).to(dtype).float().numpy()


def is_whole(name: str, step: int) -> bool:
    """Whether a layer is computed in float32 at a step, and in half precision at others."""
    return name.startswith("mixed") and step % 4 in (1, 2)


def handed_over(rng: np.random.Generator, name: str, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The keys of a batch as a layer's source takes them, and as float32 rows."""
    if name.startswith("numbers"):
        numbers = rng.integers(0, TOKENS, ROWS * LENGTH)
        return numbers, np.eye(TOKENS, dtype=np.float32)[numbers]
    if name == "counts":
        return bags(rng, 1 + 4 * (step % 3))
    if name.startswith("conv"):
        maps = rng.normal(size=(ROWS, *MAP)).astype(np.float32)
        if name == "conv-repeats":
            maps[2] = maps[0]
        return maps, unfolded(maps)
    keys = halved(rng, torch.float16 if name.endswith("16") else torch.bfloat16, ROWS, 5)
    if name == "half-repeats":
        keys[1:3] = [0.0] * 5, [-0.0] * 5
    if is_whole(name, step):
        keys = rng.normal(size=(ROWS, 5)).astype(np.float32)
    return keys, keys


def batch(step: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(1000 * seed + step)
    layers = {}
    for pair in PAIRS:
        keys, rows = handed_over(rng, pair.layer.name, step)
        values = rng.normal(size=(len(rows), D_OUT)).astype(np.float32)
        if pair.layer.value_source != "rows" and not is_whole(pair.layer.name, step):
            values = halved(rng, getattr(torch, pair.layer.value_source), len(rows), D_OUT)
        layers[pair.layer.name] = [LayerRows(0, keys, values)]
        layers[pair.twin.name] = [LayerRows(0, rows, values)]
    extents = [
        Extent("patch", 0, ROWS, PLACES[0] * PLACES[1]),
        Extent("sample", 0, ROWS, None),
        Extent("token", 0, ROWS, LENGTH),
    ]
    watch = [WatchLog(step, name, 1e-9, 2e-9, 0.5, 1e-8, 3e-9) for name in WEIGHTS]
    return Batch(
        step, samples(rng, rng.integers(0, 30, ROWS)), extents, layers, logs=[log(step, *WEIGHTS)], watch=watch
    )


def writer(path: Path, layers: Sequence[Layer] = LAYERS, **options: Any) -> Writer:
    header = Header(path, layers, optimizer="SGD", rule="sgd", reason="", initial=WEIGHTS)
    return Writer(header, journal_seconds=0.0, **options)

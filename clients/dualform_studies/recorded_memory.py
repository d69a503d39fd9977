"""Taking a study's updates, opening its memory, and the reconstruction error in its report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform import Recorder
from dualform.answers import LayerInfo
from dualform.methods import Answers
from dualform.query.engine import Engine, open_memory
from dualform_studies.report import Report

RAM = "4 GB"
"""That answering may take: with it stay the keys of any one layer that the studies of images record, and its codes."""
HELD_BYTES = 3 << 30
"""Of keys and values held between questions, where answers by token position are as large as what is kept."""


def step_of(recorder: Recorder | None, **columns: Any) -> AbstractContextManager[object]:
    """The recorder's step with the columns of its slots, and nothing without a recorder."""
    step: AbstractContextManager[object] = nullcontext() if recorder is None else recorder.step(**columns)
    return step


def descend(network: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, clip: float) -> None:
    """Take one update; `clip` bounds the norm of the gradient of all parameters together."""
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(network.parameters(), clip)
    optimizer.step()


def open_recorded(path: Path, backend: str | None = None, ram: str | None = RAM) -> Engine:
    """As `open_memory`, with so much RAM for all it does; None bounds the keys and values that are held alone."""
    return open_memory(path, backend, ram=ram, held_bytes=HELD_BYTES)


def stored_queries(memory: Answers, query_set: str, layer: str) -> NDArray[np.float32]:
    """float32[n, d_in]: the queries of a stored query set at a layer."""
    queries = memory.query_set(query_set, layer).queries
    assert queries is not None, "the layer was named"
    return queries


def layer_info(memory: Answers, layer: str) -> LayerInfo:
    """What a memory says of a layer that it has."""
    return next(one for one in memory.info().layers if one.name == layer)


def distinct_slots(memory: Engine, layer: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """int64[D]: a slot of each distinct stored key, and int64[T]: which of these keys each slot has."""
    slots = np.arange(layer_info(memory, layer).slots)
    _, first, keys = np.unique(memory.key_rows(layer, slots), return_index=True, return_inverse=True)
    return first, keys


def key_blocks(
    memory: Engine, layer: str, slots: NDArray[np.int64], size: int = 4096
) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """float32[b, d_in]: the keys of some slots, at most `size` at once, each block with its place among the slots."""
    for start in range(0, len(slots), size):
        block = slice(start, start + size)
        yield block, memory.keys(layer, slots[block])


def verify_report(memory: Answers) -> Report:
    """The reconstruction error of each layer in plain values."""
    return {
        layer: {"reconstruction_error": found.reconstruction_error, "exact": found.exact, "reason": found.reason}
        for layer, found in memory.verify().items()
    }

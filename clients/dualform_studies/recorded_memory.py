"""Opening a study's memory, and the reconstruction error in its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dualform.answers import LayerInfo
from dualform.methods import Answers
from dualform.query.engine import Engine, open_memory
from dualform_studies.report import Report

RAM = "4 GB"
"""That answering may take: with it stay the keys of any one layer that the studies of images record, and its codes."""
HELD_BYTES = 3 << 30
"""Of keys and values held between questions, where answers by token position are as large as what is kept."""


def open_recorded(path: Path, backend: str | None = None, ram: str | None = RAM) -> Engine:
    """As `open_memory`, with so much RAM for all it does; None bounds the keys and values that are held alone."""
    return open_memory(path, backend, ram=ram, held_bytes=HELD_BYTES)


def layer_info(memory: Answers, layer: str) -> LayerInfo:
    """What a memory says of a layer that it has."""
    return next(one for one in memory.info().layers if one.name == layer)


def verify_report(memory: Answers) -> Report:
    """The reconstruction error of each layer in plain values."""
    return {
        layer: {"reconstruction_error": found.reconstruction_error, "exact": found.exact, "reason": found.reason}
        for layer, found in memory.verify().items()
    }


def reconstruction_errors(
    truth: Mapping[str, Tensor], rebuilt: Mapping[str, Tensor], initial: Mapping[str, Tensor], layers: Sequence[str]
) -> dict[str, float]:
    """By layer: ||W - rebuilt|| / ||W - W_0||, weight and bias together, in float64."""

    def norm(layer: str, left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
        parts = [name for name in truth if name.startswith(f"{layer}.")]
        return float(torch.cat([(left[name].double() - right[name].double()).ravel() for name in parts]).norm())

    return {layer: norm(layer, truth, rebuilt) / norm(layer, truth, initial) for layer in layers}

"""Opening a study's memory, and the reconstruction error in its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dualform.answers import LayerInfo, Reconstruction
from dualform.methods import Answers
from dualform.query.engine import Engine, open_memory
from dualform_studies.report import Cell, Report, Table

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


def reconstruction_report(reconstruction: Reconstruction) -> Report:
    return {
        "reconstruction_error": reconstruction.reconstruction_error,
        "exact": reconstruction.exact,
        "reason": reconstruction.reason,
    }


def reconstruction_table(
    verify: Mapping[str, Report], cancellation: Mapping[str, float | None] | None = None, of_what: str = ""
) -> Table:
    """How far each layer's rebuilt weights are from those trained, and how much the terms of `of_what` cancel."""
    caption = "The reconstruction error: ‖W - rebuilt‖ / ‖W - W₀‖ of each layer"
    rows: list[list[Cell]] = [
        [layer, f"{found['reconstruction_error']:.2g}", "yes" if found["exact"] else found["reason"]]
        for layer, found in verify.items()
    ]
    if cancellation is None:
        return Table("reconstruction", f"{caption}.", ("layer", "relative error", "exact"), rows)
    for row, cancelled in zip(rows, cancellation.values(), strict=True):
        row.append("-" if cancelled is None else f"{cancelled:.0f}")
    caption += f"; and the cancellation of {of_what}, the sum of their norms over the norm of their sum."
    return Table("reconstruction", caption, ("layer", "relative error", "exact", "cancellation"), rows)


def reconstruction_errors(
    truth: Mapping[str, Tensor], rebuilt: Mapping[str, Tensor], initial: Mapping[str, Tensor], layers: Sequence[str]
) -> dict[str, float]:
    """By layer: ||W - rebuilt|| / ||W - W_0||, weight and bias together, in float64."""

    def norm(layer: str, left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
        parts = [name for name in truth if name.startswith(f"{layer}.")]
        return float(torch.cat([(left[name].double() - right[name].double()).ravel() for name in parts]).norm())

    return {layer: norm(layer, truth, rebuilt) / norm(layer, truth, initial) for layer in layers}

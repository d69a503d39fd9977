"""One row of the coverage table, measured: a training recorded, the same one unrecorded, and the memory asked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import dualform
from dualform.errors import DualformError

from .rows import Row
from .trainers import TRAINERS
from .training import STEPS, Record, Training


@dataclass(frozen=True)
class Measured:
    """What a row of the table says. Shares are of the numbers that the optimizer moved."""

    recorded: float
    """Share that layers of the memory hold, each with its slots."""
    kept: float
    """Share that is kept by step, without slots."""
    status: str
    """The least of all layers."""
    reconstruction: float | None
    """The greatest of all layers; None where there is none."""
    rounding: float | None
    """What rounding of float32 weights alone may make the reconstruction error, the greatest of all layers."""
    seconds: float
    """Of the processor, for an unrecorded step: the median."""
    recorded_seconds: float
    bytes_a_step: int
    layers: int
    """Of the memory."""
    skipped: dict[str, str]
    """By module or parameter, why it is not recorded."""
    refused: str = ""
    """What the recorder said instead of recording."""


def train(row: Row, folder: Path | None) -> Training:
    """The training of a row from seed 0; recorded into `folder`, if there is one."""
    training = Training(row.network, row.precision)
    training.start(row.optimizer)
    options = {**(row.network.options or {}), **row.options}
    TRAINERS[row.trainer](training, None if folder is None else Record(folder, options))
    return training


def measure(row: Row, folder: Path, repeats: int = 0) -> Measured:
    """Train both ways and ask; then train both ways so many times again, by turns, for the clocks.

    Raises AssertionError where recording changed a bit, or an answer is not the network's.
    """
    unrecorded = train(row, None)
    try:
        recorded = train(row, folder)
    except DualformError as error:
        return Measured(0.0, 0.0, "", None, None, 0.0, 0.0, 0, 0, {}, str(error))
    seconds, recorded_seconds = list(unrecorded.seconds), list(recorded.seconds)
    for number in range(repeats):
        seconds += train(row, None).seconds
        recorded_seconds += train(row, folder.with_name(f"{folder.name}-{number}")).seconds
    same_bits(unrecorded.model, recorded.model)
    with dualform.open(folder) as memory:
        reconstructions = memory.verify()
        errors = [c.reconstruction_error for c in reconstructions.values()]
        info = memory.info()
        ask_every_layer(memory)
        explained, kept, trained = parts(memory, recorded)
        left = {name: why for name, why in info.skipped.items() if unkept(name, recorded, {*explained, *kept})}
        if not any(e is None for e in errors) and not left:
            whole_network(memory, recorded)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and "shard" in str(file))
    return Measured(
        recorded=sum(explained.values()) / trained,
        kept=sum(kept.values()) / trained,
        status=max((reconstruction.status.name for reconstruction in reconstructions.values()), key=STATUSES.index),
        reconstruction=None if any(e is None for e in errors) else max(e for e in errors if e is not None),
        rounding=max((layer.status.rounding or 0.0 for layer in info.layers), default=None),
        seconds=median(seconds),
        recorded_seconds=median(recorded_seconds),
        bytes_a_step=size // STEPS,
        layers=len(info.layers),
        skipped=left,
    )


STATUSES = ("exact", "exact to bfloat16", "approximate", "scores only")


def same_bits(unrecorded: nn.Module, recorded: nn.Module) -> None:
    for (name, a), b in zip(unrecorded.state_dict().items(), recorded.state_dict().values(), strict=True):
        assert torch.equal(a, b), f"recording changed {name}"


def parts(memory: Any, training: Training) -> tuple[dict[str, int], dict[str, int], int]:
    """Numbers that layers explain, and that are kept by step, by trained parameter; and how many are trained."""
    trained = {training.prefix + name: p for name, p in training.model.named_parameters() if p.requires_grad}
    manifest = memory._view.snapshot.manifest
    held = {name: torch.zeros(p.shape, dtype=torch.bool) for name, p in trained.items()}
    under = {manifest.aliases.get(name, name): name for name in held}
    for block in (block for layer in manifest.layers for block in layer.parameters if block.name in under):
        block.stored_block_of(held[under[block.name]])[...] = True
    explained = {name: int(own.sum()) for name, own in held.items() if own.any()}
    others = manifest.others
    names = frozenset() if others is None or others.every > 1 else others.names
    kept = {name: p.numel() - explained.get(name, 0) for name, p in trained.items() if name in names}
    return explained, kept, sum(p.numel() for p in trained.values())


def unkept(name: str, training: Training, known: Collection[str]) -> bool:
    """Whether something trained of a module or parameter is neither explained nor kept."""
    trained = [training.prefix + own for own, p in training.model.named_parameters() if p.requires_grad]
    return any(own not in known for own in trained if own == name or own.startswith(f"{name}.") or not name)


def ask_every_layer(memory: Any) -> None:
    """Every question of every layer; where weights can be rebuilt, the shares of two datasets add up to the whole."""
    for layer in memory.info().layers:
        for name in {*layer.views[:1], *layer.views[-1:]} or {layer.name}:
            ask_one(memory, name, layer.slots, rebuilt=layer.status.name != "scores only")


def ask_one(memory: Any, name: str, slots: int, rebuilt: bool) -> None:
    query = memory.keys(name)[-1:]
    assert len(memory.topk(name, query, k=3).slots[0]) == min(3, slots)
    assert memory.group_sum(name, query, by="dataset").counts.sum() == slots
    if rebuilt:
        halves = [f"step < {STEPS // 2}", f"step >= {STEPS // 2}", "step % 2 = 0", "step % 2 = 1"]
        a, b, c, d = (
            np.asarray(memory.output(name, query, where=mask, allow_inexact=True), np.float64) for mask in halves
        )
        # Two ways to part the same slots: the shares of each add up to the same, beside one W_0 too many.
        assert np.abs((a + b) - (c + d)).max() <= 1e-5 * max(1.0, np.abs([a, b, c, d]).max()), name


def whole_network(memory: Any, training: Training) -> None:
    """The rebuilt weights make the network's own outputs."""
    rebuilt = Training(training.network, training.precision)
    rebuilt.start("SGD")
    weights = memory.weights(allow_inexact=True)
    rebuilt.model.load_state_dict({name.removeprefix(training.prefix): value for name, value in weights.items()})
    batch = training.cast(next(training.batches())[0])
    losses: list[Tensor] = []
    for model in (training.model, rebuilt.model):
        model.eval()
        with torch.no_grad(), training.autocast():
            losses.append(training.network.loss(model, batch).float())
    assert torch.allclose(*losses, rtol=1e-3), losses

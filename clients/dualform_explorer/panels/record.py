"""How exact all of it is, and what answering took."""

from __future__ import annotations

from dataclasses import dataclass

from dualform.answers import MemoryInfo, Status
from dualform.errors import NotFound
from dualform.methods import Answers
from dualform_explorer.questions import scored
from dualform_explorer.reading import layer_of
from dualform_explorer.state import State


@dataclass(frozen=True)
class RecordPanel:
    layer: str
    status: Status
    reconstruction: float | None
    """||W_T - rebuilt|| / ||W_T - W_0||; None where it was not asked for, or cannot be had."""
    verified: bool
    snapshot: int
    cut_off: str
    """Where the recording stands, if it has not come to its end."""
    sampling: str
    steps: int
    optimizer: str
    space: str
    slots: int
    distinct_keys: int
    scanned: int
    matching: int
    seconds: float
    backend: str
    answered_by: str


def record_panel(memory: Answers, info: MemoryInfo, state: State) -> RecordPanel:
    layer = layer_of(info, state.layer)
    if layer is None:
        raise NotFound(f"There is no layer {state.layer!r}.", field="layer")
    reconstruction = memory.verify()[layer.name].reconstruction_error if state.verify else None
    scan = memory.topk(**scored(memory, info, state), k=state.k + 1).scan
    return RecordPanel(
        layer=layer.name,
        status=layer.status,
        reconstruction=reconstruction,
        verified=state.verify,
        snapshot=scan.snapshot,
        cut_off=info.cut_off,
        sampling=info.sampling,
        steps=info.steps,
        optimizer=info.optimizer,
        space=layer.space,
        slots=layer.slots,
        distinct_keys=layer.distinct_keys,
        scanned=scan.slots_scanned,
        matching=scan.slots_matching,
        seconds=scan.seconds,
        backend=scan.backend,
        answered_by=info.answered_by,
    )

"""What leaving slots out means, with how much of what is left out cancels itself."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

from dualform.answers import Concentration, MemoryInfo
from dualform.errors import Inexact
from dualform.methods import Answers
from dualform_explorer.questions import where
from dualform_explorer.reading import layer_of
from dualform_explorer.state import State


@dataclass(frozen=True)
class RemovalPanel:
    layer: str
    masked: bool
    cancellation: float | None
    """The norms of the terms that are left out, summed, over the norm of their sum. None without a mask of slots, where
    they move nothing, and where slots have no terms of their own."""
    concentration: Concentration | None
    """In its place under rules that scale gradients."""
    unmeasured: str
    """Why there is neither; empty where nothing is masked."""


def removal_panel(memory: Answers, info: MemoryInfo, state: State) -> RemovalPanel:
    mask, layer = where(info, state), layer_of(info, state.layer)
    if mask is None or layer is None:
        return RemovalPanel(state.layer, state.masked, None, None, "")
    try:
        removed = memory.cancellation(mask, state.at, layer.name, state.inexact)
    except Inexact as error:
        return RemovalPanel(layer.name, True, None, None, error.message)
    concentration = removed.concentrations.get(layer.name)
    figure = removed.get(layer.name)
    if concentration is None and (figure is None or isnan(figure)):
        return RemovalPanel(layer.name, True, None, None, "What is left out moves nothing.")
    return RemovalPanel(layer.name, True, None if concentration else figure, concentration, "")

"""How exact the answers are, what they cost, and what an ablation means."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

from dualform.answers import Concentration, LayerInfo, MemoryInfo, Scan
from dualform.errors import Inexact, NotFound
from dualform.methods import Answers
from dualform_explorer.examples import layer_of
from dualform_explorer.groups import scored, where
from dualform_explorer.state import State


@dataclass(frozen=True)
class RecordPanel:
    layer: LayerInfo
    reconstruction: float | None
    """||W_T - rebuilt|| / ||W_T - W_0||; None if it was not asked for, or cannot be computed."""
    scan: Scan
    """The scan for the best slots."""


def record_panel(view: View) -> RecordPanel:
    layer = layer_of(view.info, view.state.layer)
    if layer is None:
        raise NotFound(f"There is no layer {view.state.layer!r}.", field="layer")
    reconstruction = view.memory.verify()[layer.name].reconstruction_error if view.state.verify else None
    scan = view.memory.topk(**scored(view), k=view.state.k + 1).scan
    return RecordPanel(layer, reconstruction, scan)


@dataclass(frozen=True)
class RemovalPanel:
    layer: str
    masked: bool
    cancellation: float | None
    """The sum of the norms of the removed terms over the norm of their sum. None without a filter, if they move
    nothing, and if slots have no separate terms."""
    concentration: Concentration | None
    """The alternative under rules that scale gradients."""
    unmeasured: str
    """Why there is neither; empty without a filter."""


def removal_panel(view: View) -> RemovalPanel:
    mask, layer = where(view.info, view.state), layer_of(view.info, view.state.layer)
    if mask is None or layer is None:
        return RemovalPanel(view.state.layer, view.state.masked, None, None, "")
    try:
        removed = view.memory.cancellation(mask, view.state.at, layer.name, view.state.inexact)
    except Inexact as error:
        return RemovalPanel(layer.name, True, None, None, error.message)
    concentration = removed.concentrations.get(layer.name)
    figure = removed.get(layer.name)
    if concentration is None and (figure is None or isnan(figure)):
        return RemovalPanel(layer.name, True, None, None, "What is left out moves nothing.")
    return RemovalPanel(layer.name, True, None if concentration else figure, concentration, "")

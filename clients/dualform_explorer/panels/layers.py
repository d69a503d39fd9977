"""The layers side by side, each with the sums of its groups: where attention goes from the first to the last."""

from __future__ import annotations

from dataclasses import dataclass

from dualform.answers import LayerInfo, MemoryInfo
from dualform.errors import DualformError, NotFound
from dualform.methods import Answers
from dualform_explorer.examples import query_of
from dualform_explorer.groups import MOST_GROUPS, Group, GroupRow, groups_of, rows_of
from dualform_explorer.questions import where_before, where_unmasked
from dualform_explorer.reading import layer_of, layers_of, probe_of
from dualform_explorer.state import State

_MOST_SUMMED = 12
"""Layers whose groups are summed; the others are named alone."""


@dataclass(frozen=True)
class LayerCard:
    name: str
    d_in: int
    d_out: int
    rows: tuple[GroupRow, ...] | None
    """None where they were not asked for, or there is no answer."""
    why: str
    """Why there is none."""
    chosen: bool


@dataclass(frozen=True)
class LayersPanel:
    cards: tuple[LayerCard, ...]
    score: str
    """Of the sums: contributions toward an output are those of one layer, so that there it is the signed score."""
    by: tuple[str, ...]


def layers_panel(memory: Answers, info: MemoryInfo, state: State) -> LayersPanel:
    probe = probe_of(info, state.probe)
    if probe is None:
        raise NotFound(f"There is no probe {state.probe!r}.", field="item")
    score = "signed" if state.score == "contribution" else state.score
    own = layers_of(info, probe)
    chosen = layer_of(info, state.layer)
    shown = own if len(own) <= _MOST_SUMMED else [layer for layer in own if layer is chosen]
    cards = [
        _card(memory, info, state, layer, score, layer is chosen)
        if layer in shown
        else LayerCard(layer.name, layer.d_in, layer.d_out, None, "", layer is chosen)
        for layer in own
    ]
    return LayersPanel(tuple(cards), score, state.by)


def _card(memory: Answers, info: MemoryInfo, state: State, layer: LayerInfo, score: str, chosen: bool) -> LayerCard:
    try:
        groups = _groups(memory, info, state, layer, score, True)
        whole = _groups(memory, info, state, layer, score, False) if state.chips or state.where else ()
    except DualformError as error:
        return LayerCard(layer.name, layer.d_in, layer.d_out, None, error.message, chosen)
    return LayerCard(layer.name, layer.d_in, layer.d_out, rows_of(groups, whole), "", chosen)


def _groups(
    memory: Answers, info: MemoryInfo, state: State, layer: LayerInfo, score: str, masked: bool
) -> tuple[Group, ...]:
    query = query_of(memory, info, state, layer.name)
    where = where_before(info, state) if masked else where_unmasked(state)
    sums = memory.group_sum(layer.name, query, by=state.by, where=where, score=score, k=MOST_GROUPS)
    return groups_of(memory, info, state.by, sums)

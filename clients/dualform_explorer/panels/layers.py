"""The layers side by side, each with where its attention goes: by group, by rank and by step, from the first to the
last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dualform.answers import MemoryInfo
from dualform.errors import DualformError, NotFound
from dualform.methods import Answers
from dualform_explorer.groups import GroupRow
from dualform_explorer.panels.ranks import RanksPanel, ranks_panel
from dualform_explorer.panels.steps import StepsPanel, steps_panel
from dualform_explorer.panels.sums import sums_panel
from dualform_explorer.reading import layer_of, layers_of, query_set_of
from dualform_explorer.state import State

_MOST_SUMMED = 12
"""Layers that are asked; the others are named alone."""
_MOST_SCANNED = 2_000_000_000
"""Numbers in the keys of all these: of more, scores by rank and by step are asked of the chosen layer alone, for each
takes a pass over its keys. What is summed by group is kept beside them.
"""
_MOST_BARS = 40
"""Of the sums by step, in as small a figure."""


@dataclass(frozen=True)
class LayerCard:
    """A layer. What it was not asked, or has no answer to, is None."""

    name: str
    d_in: int
    d_out: int
    chosen: bool
    rows: tuple[GroupRow, ...] | None = None
    ranks: RanksPanel | None = None
    steps: StepsPanel | None = None
    why: str = ""
    """Why there is no answer."""


@dataclass(frozen=True)
class LayersPanel:
    cards: tuple[LayerCard, ...]
    score: str
    """Of all of it: contributions toward an output are those of one layer, so that there it is the signed score."""
    by: tuple[str, ...]
    scanned: bool
    """Whether every layer that was asked has its scores by rank and by step, and not the chosen one alone."""

    @property
    def asked(self) -> bool:
        """Whether there is more to see of any than its name."""
        return any(card.rows is not None for card in self.cards)


def layers_panel(memory: Answers, info: MemoryInfo, state: State) -> LayersPanel:
    query_set = query_set_of(info, state.query_set)
    if query_set is None:
        raise NotFound(f"There is no query set {state.query_set!r}.", field="item")
    score = "dot" if state.score == "contribution" else state.score
    own, chosen = layers_of(info, query_set), layer_of(info, state.layer)
    asked = own if len(own) <= _MOST_SUMMED else [layer for layer in own if layer is chosen]
    scanned = sum(layer.distinct_keys * layer.d_in for layer in asked) <= _MOST_SCANNED
    cards = []
    for layer in own:
        card = LayerCard(layer.name, layer.d_in, layer.d_out, layer is chosen)
        if layer in asked:
            there = replace(state, layer=layer.name, score=score)
            card = _filled(card, memory, info, there, scanned or layer is chosen)
        cards.append(card)
    return LayersPanel(tuple(cards), score, state.by, scanned)


def _filled(card: LayerCard, memory: Answers, info: MemoryInfo, state: State, scanned: bool) -> LayerCard:
    """By the questions that its own panels ask where it is the chosen one, so that each is asked once."""
    try:
        card = replace(card, rows=sums_panel(memory, info, state).rows)
        if not scanned:
            return card
        ranks, steps = ranks_panel(memory, info, state), steps_panel(memory, info, state, _MOST_BARS)
    except DualformError as error:
        if error.field == "where":
            raise
        return replace(card, rows=None, why=error.message)
    return replace(card, ranks=ranks, steps=steps)

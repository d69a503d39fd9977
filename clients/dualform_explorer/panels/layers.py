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
from dualform_explorer.reading import layer_of, layers_of, probe_of
from dualform_explorer.state import State

_MOST_SUMMED = 12
"""Layers that are asked; the others are named alone."""
_MOST_BARS = 40
"""Of the sums by step, in as small a figure."""


@dataclass(frozen=True)
class LayerCard:
    """A layer. `rows`, `ranks` and `steps` are None where it was not asked, or there is no answer."""

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

    @property
    def asked(self) -> bool:
        """Whether there is more to see of any than its name."""
        return any(card.rows is not None for card in self.cards)


def layers_panel(memory: Answers, info: MemoryInfo, state: State) -> LayersPanel:
    probe = probe_of(info, state.probe)
    if probe is None:
        raise NotFound(f"There is no probe {state.probe!r}.", field="item")
    score = "signed" if state.score == "contribution" else state.score
    own, chosen = layers_of(info, probe), layer_of(info, state.layer)
    asked = own if len(own) <= _MOST_SUMMED else [layer for layer in own if layer is chosen]
    cards = []
    for layer in own:
        card = LayerCard(layer.name, layer.d_in, layer.d_out, layer is chosen)
        cards.append(
            _filled(card, memory, info, replace(state, layer=layer.name, score=score)) if layer in asked else card
        )
    return LayersPanel(tuple(cards), score, state.by)


def _filled(card: LayerCard, memory: Answers, info: MemoryInfo, state: State) -> LayerCard:
    """By the questions that its own panels ask where it is the chosen one, so that each is asked once."""
    try:
        rows = sums_panel(memory, info, state).rows
        ranks, steps = ranks_panel(memory, info, state), steps_panel(memory, info, state, _MOST_BARS)
    except DualformError as error:
        return replace(card, why=error.message)
    return replace(card, rows=rows, ranks=ranks, steps=steps)

"""The parts of a page. Each asks its questions and makes plain numbers of the answers; a template of its name shows
them. None waits for another: one that fails says so in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from dualform.answers import MemoryInfo
from dualform.methods import Answers
from dualform_explorer.panels.answer import answer_panel, output_panel, placebo_panel, terms_panel
from dualform_explorer.panels.data import adjoint_panel, slots_panel, sums_panel
from dualform_explorer.panels.example import filter_panel, query_panel
from dualform_explorer.panels.layers import layers_panel, ranks_panel
from dualform_explorer.panels.record import record_panel, removal_panel
from dualform_explorer.panels.training import steps_panel
from dualform_explorer.state import State

PanelMaker: TypeAlias = Callable[[Answers, MemoryInfo, State], Any]
Place: TypeAlias = Literal["side", "first", "answers", "under"]
"""The column at the left; what stands beside it, first and below; and what stands under that column."""


@dataclass(frozen=True)
class Panel:
    title: str
    """What stands above it; its template says more behind it."""
    place: Place
    make: PanelMaker


PANELS: dict[str, Panel] = {
    "query": Panel("Example", "side", query_panel),
    "filter": Panel("Filter", "side", filter_panel),
    "answer": Panel("Answer", "first", answer_panel),
    "output": Panel("Output", "answers", output_panel),
    "sums": Panel("Sums by group", "answers", sums_panel),
    "slots": Panel("Most similar training examples", "answers", slots_panel),
    "adjoint": Panel("Was it this data?", "answers", adjoint_panel),
    "layers": Panel("Layers", "answers", layers_panel),
    "ranks": Panel("Score distribution", "answers", ranks_panel),
    "steps": Panel("Sums by step", "answers", steps_panel),
    "terms": Panel("Contributions to the output", "answers", terms_panel),
    "placebo": Panel("Placebo", "answers", placebo_panel),
    "removal": Panel("About ablation", "under", removal_panel),
    "record": Panel("Accuracy of this recording", "under", record_panel),
}
"""By name, in the order in which a page is sent, which waits for each: what takes longest comes late. Where they stand
is the stylesheet's.
"""


def panels_in(place: Place) -> list[str]:
    """The names of those that stand there."""
    return [name for name, panel in PANELS.items() if panel.place == place]

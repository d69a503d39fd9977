"""The parts of a page. Each asks its questions and makes plain numbers of the answers; a template of its name shows
them. None knows of another: one that fails says so in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from dualform.answers import MemoryInfo
from dualform.methods import Answers
from dualform_explorer.panels.layers import layers_panel
from dualform_explorer.panels.mask import mask_panel
from dualform_explorer.panels.output import output_panel
from dualform_explorer.panels.query import query_panel
from dualform_explorer.panels.ranks import ranks_panel
from dualform_explorer.panels.record import record_panel
from dualform_explorer.panels.removal import removal_panel
from dualform_explorer.panels.slots import slots_panel
from dualform_explorer.panels.steps import steps_panel
from dualform_explorer.panels.sums import sums_panel
from dualform_explorer.panels.terms import terms_panel
from dualform_explorer.state import State

PanelMaker: TypeAlias = Callable[[Answers, MemoryInfo, State], Any]


@dataclass(frozen=True)
class Panel:
    title: str
    make: PanelMaker


PANELS: dict[str, Panel] = {
    "query": Panel("Query", query_panel),
    "mask": Panel("Mask", mask_panel),
    "output": Panel("Output", output_panel),
    "layers": Panel("Layers", layers_panel),
    "sums": Panel("Who is attended to", sums_panel),
    "slots": Panel("Best slots", slots_panel),
    "ranks": Panel("How concentrated it is", ranks_panel),
    "steps": Panel("Over the training", steps_panel),
    "terms": Panel("What adds up to the output", terms_panel),
    "removal": Panel("What leaving out means", removal_panel),
    "record": Panel("The record", record_panel),
}
"""By name, in the order in which they stand on the page."""

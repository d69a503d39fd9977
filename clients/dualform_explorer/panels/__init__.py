"""The panels of a page. Each asks its questions and reduces the answers to plain numbers, which a template of the same
name shows. Panels are independent: one that fails shows its error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from dualform_explorer.groups import expected_seconds
from dualform_explorer.panels.answer import answer_panel, output_panel, placebo_panel, terms_panel
from dualform_explorer.panels.data import adjoint_panel, samples_panel, scores_panel, slots_panel, sums_panel
from dualform_explorer.panels.example import filter_panel, query_panel
from dualform_explorer.panels.layers import layers_panel, places_panel, ranks_panel
from dualform_explorer.panels.training import record_panel, removal_panel, steps_panel, timeline_panel
from dualform_explorer.state import State
from dualform_explorer.view import View

PanelMaker: TypeAlias = Callable[[View], Any]
Place: TypeAlias = Literal["side", "first", "data", "layers", "training", "record"]
"""The column at the left, the top of the page, or one of its sections, which are folded at first."""


@dataclass(frozen=True)
class Panel:
    title: str
    """The heading; the template adds details after it."""
    place: Place
    make: PanelMaker
    of_contributions: str = ""
    """The heading if the page's score is the contribution; empty for the same one."""

    def heading(self, state: State) -> str:
        return self.of_contributions if self.of_contributions and state.score == "contribution" else self.title


PANELS: dict[str, Panel] = {
    "query": Panel("Example", "side", query_panel),
    "filter": Panel("Filter", "side", filter_panel),
    "answer": Panel("Answer", "first", answer_panel),
    "output": Panel("Output", "first", output_panel),
    "placebo": Panel("Is the change unusual?", "first", placebo_panel),
    "adjoint": Panel("Was it this data?", "first", adjoint_panel),
    "sums": Panel("Sums by group", "data", sums_panel),
    "samples": Panel("Samples of a group", "data", samples_panel),
    "slots": Panel("Most similar training examples", "data", slots_panel, "Largest contributions"),
    "terms": Panel("Contributions to the output", "data", terms_panel),
    "scores": Panel("Scores of other packages", "data", scores_panel),
    "layers": Panel("Layers", "layers", layers_panel),
    "places": Panel("Attention by place", "layers", places_panel),
    "ranks": Panel("Score distribution", "layers", ranks_panel),
    "timeline": Panel("Outputs over time", "training", timeline_panel),
    "steps": Panel("Sums by step", "training", steps_panel),
    "record": Panel("Accuracy of this recording", "record", record_panel),
    "removal": Panel("About ablation", "record", removal_panel),
}
"""By name, in the order in which they are sent. A page waits for each."""


def panels_of(state: State) -> list[str]:
    """The names of the panels that a page shows. Folded sections are not asked."""
    return [name for name, panel in PANELS.items() if panel.place in ("side", "first", *state.open)]


def panels_in(place: Place) -> list[str]:
    """The names of the panels in a place."""
    return [name for name, panel in PANELS.items() if panel.place == place]


PATIENCE = 5.0
"""The seconds of work that a page starts without being asked."""


@dataclass(frozen=True)
class Waiting:
    """Shown in place of a slow panel until the reader asks for it."""

    seconds: float


def panel_of(name: str, view: View) -> Any:
    """The content of a panel; None if it has nothing to show."""
    seconds = 0.0 if view.state.compute else expected_seconds(name, view)
    if seconds <= PATIENCE:
        return PANELS[name].make(view)
    return answer_panel(view, seconds=seconds) if name == "answer" else Waiting(seconds)


def template_of(name: str, panel: Any) -> str:
    """The template that shows the content of a panel."""
    if panel is None:
        return "nothing.html"
    return "waiting.html" if isinstance(panel, Waiting) else f"panels/{name}.html"

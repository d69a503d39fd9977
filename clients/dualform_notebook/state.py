"""The widget's question as the state of the page that shows the same, and filters as a front end gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dualform.answers import MemoryInfo
from dualform.errors import BadInput
from dualform.methods import Answers
from dualform_explorer.filter import Chip
from dualform_explorer.state import Fault, State, read_state
from dualform_explorer.view import View


@dataclass(frozen=True)
class WidgetState:
    """Empty fields get the page's defaults."""

    query: str = ""
    """QUERY_SET/EXAMPLE."""
    token: int | None = None
    """The place in the example, for layers that see tokens; None for its last."""
    layer: str = ""
    by: str = ""
    """Column, or several with commas between."""
    score: str = "dot"
    target: str = ""
    """Of contributions: an output, or a margin as 3-8."""
    chips: tuple[Chip, ...] = ()
    where: str = ""
    """SQL of the reader's own."""
    k: int = 12
    allow_inexact: bool = False

    def page(self, memory: Answers, info: MemoryInfo) -> State:
        """The page that shows the same. Raises BadInput for invalid fields, with the valid choices."""
        if self.k < 1:
            raise BadInput(f"k must be at least 1, not {self.k}.", hint="Ask for 1 or more slots.", field="k")
        reading = read_state(self._params(), info)
        if reading.state is None:
            raise BadInput(
                " ".join(fault.message for fault in reading.faults),
                hint=" ".join(filter(None, map(_choices, reading.faults))),
                field=reading.faults[0].parameter,
            )
        return replace(View(memory, info, reading.state).completed(0), k=self.k)

    def _params(self) -> list[tuple[str, str]]:
        said = {
            "item": self.query,
            "token": "" if self.token is None else str(self.token),
            "layer": self.layer,
            "by": ",".join(name.strip() for name in self.by.split(",")),
            "score": self.score,
            "target": self.target,
            "where": self.where,
            "inexact": "yes" if self.allow_inexact else "",
        }
        chips = [("only" if chip.only else "without", chip.written) for chip in self.chips]
        return [*((name, own) for name, own in said.items() if own), *chips]


def _choices(fault: Fault) -> str:
    return f"There is: {', '.join(name for name, _ in fault.choices)}." if fault.choices else ""


def chip_of(given: Any) -> Chip:
    """A group of slots to remove, or to keep: {"values": {column: value}, "keep": false}; None is NULL.

    Raises BadInput for anything else.
    """
    values = given.get("values") if isinstance(given, Mapping) else None
    if (
        not isinstance(values, Mapping)
        or not values
        or not isinstance(given.get("keep", False), bool)
        or not all(isinstance(value, str | int | float | bool | None) for value in values.values())
    ):
        raise BadInput(f"a mask is {given!r}.", hint='Give {"values": {"label": 3}, "keep": False}.', field="masks")
    return Chip.of(given.get("keep", False), list(map(str, values)), list(values.values()))


def words_of(chip: Chip) -> str:
    """As a reader has it."""
    return f"{'only' if chip.only else 'without'} {chip.words}"

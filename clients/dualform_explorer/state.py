"""Where a page's links lead: to other states of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

from dualform_explorer.filter import Chip, where_of

SCORES = {"dot": "attention", "abs": "absolute", "contribution": "contribution"}
"""By name in the URL and of the question: what the page calls it."""
KS = (12, 24, 60, 120, 500)
"""How many of the best slots may be shown."""
SECTIONS = ("data", "layers", "training", "record")
"""Of a page, beside its answer. What is folded asks nothing."""
ALL, MISCLASSIFIED = "all", "misclassified"
CELL = re.compile(r"[0-9]{1,9}-[0-9]{1,9}")
"""Which of a query set's examples the reader goes through."""


@dataclass(frozen=True)
class State:
    memory: str
    """By the name under which it is shown."""
    query_set: str
    row: int
    """Of the query set's examples."""
    layer: str
    by: tuple[str, ...]
    """The columns that group slots."""
    token: int | None = None
    """The place in the example, for layers that see tokens; None for its last."""
    score: str = "dot"
    target: str = ""
    """Of contributions: an output, or a margin as 3-8."""
    chips: tuple[Chip, ...] = ()
    where: str = ""
    """A condition of one's own, beside the chips."""
    initial: bool = True
    """Whether the initial weights and the bias are part of the sum."""
    at: int | None = None
    """As of so many steps; None for the end."""
    k: int = 24
    by_sample: bool = False
    """Whether slots of one sample are shown as one."""
    among: str = ALL
    """ALL, MISCLASSIFIED, or a label and the output that was read in its place, as 0-6."""
    inexact: bool = False
    """Whether an answer is wanted of a record that is not exact."""
    within: Chip | None = None
    """The group whose samples are shown; it filters nothing else."""
    compute: bool = False
    """Whether contributions are wanted that take long."""
    verify: bool = False
    """Whether reconstruction errors are asked for, which takes a pass over all keys and values."""
    kept: str = ""
    """The name under which an adjoint was kept; empty for the first."""
    open: tuple[str, ...] = ()
    """The sections that are unfolded, in their order."""

    @property
    def item(self) -> str:
        """As the page names it: SET/EXAMPLE. Questions name a stored row, which of a layer with tokens is one of
        them (`examples.query_of`).
        """
        return f"{self.query_set}/{self.row}"

    @property
    def masked(self) -> bool:
        """Whether anything is left out of the sum as it stood."""
        return bool(self.chips or self.where or not self.initial)

    def mask(self, complete: frozenset[str] = frozenset()) -> str | None:
        """The slots that stay, for questions that take `at_step`."""
        return where_of(self.chips, self.where, None, complete)

    def mask_before(self, complete: frozenset[str] = frozenset()) -> str | None:
        """The slots that stay, for questions about scores: those of steps up to `at` alone."""
        return where_of(self.chips, self.where, self.at, complete)

    def params(self, **changes: Any) -> list[tuple[str, str]]:
        """What stands in the URL, in order; with some fields changed. Another layer has other outputs, so that the
        target is left to it.
        """
        if changes.get("layer", self.layer) != self.layer:
            changes = {"target": "", **changes}
        state = replace(self, **changes)
        chips = [("only" if chip.only else "without", chip.written) for chip in state.chips]
        written: list[tuple[str, str | None]] = [
            ("memory", state.memory or None),
            ("item", state.item),
            ("token", None if state.token is None else str(state.token)),
            ("layer", state.layer),
            ("score", None if state.score == "dot" else state.score),
            ("target", state.target or None),
            ("by", written_by(state.by)),
            *chips,
            ("where", state.where or None),
            ("w0", None if state.initial else "off"),
            ("at", None if state.at is None else str(state.at)),
            ("k", None if state.k == State.k else str(state.k)),
            ("as", "samples" if state.by_sample else None),
            ("among", None if state.among == ALL else state.among),
            ("inexact", "yes" if state.inexact else None),
            ("within", None if state.within is None else state.within.written),
            ("compute", "yes" if state.compute else None),
            ("verify", "yes" if state.verify else None),
            ("kept", state.kept or None),
            ("open", ",".join(state.open) or None),
        ]
        return [(name, value) for name, value in written if value is not None]

    def query(self, **changes: Any) -> str:
        """The part of the URL behind its question mark."""
        return query_string(self.params(**changes))

    def toggled(self, section: str) -> tuple[str, ...]:
        """The open sections, with one more of them, or one less."""
        return tuple(own for own in SECTIONS if (own in self.open) != (own == section))

    def with_open(self, section: str) -> tuple[str, ...]:
        """The open sections, with that one."""
        return self.open if section in self.open else self.toggled(section)

    def with_chip(self, only: bool, columns: Sequence[str], values: Sequence[Any]) -> State:
        """One chip more, or less where it is there already. It takes the place of its opposite."""
        chip, other = Chip.of(only, columns, values), Chip.of(not only, columns, values)
        chips = tuple(own for own in self.chips if own not in (chip, other))
        return replace(self, chips=chips if chip in self.chips else (*chips, chip))

    def without_chip(self, chip: Chip) -> State:
        return replace(self, chips=tuple(own for own in self.chips if own != chip))


def written_by(names: Iterable[str]) -> str:
    """Columns with a comma between, as `by` has them: one in a name is no such comma."""
    return ",".join(name.replace("%", "%25").replace(",", "%2C") for name in names)


def query_string(params: list[tuple[str, str]] | Mapping[str, str]) -> str:
    return urlencode(params, quote_via=quote, safe="/:,-")


def link(state: State, **changes: Any) -> str:
    """To the page of a state, with some fields changed."""
    return f"explore?{state.query(**changes)}"


def item_link(memory: str, query_set: str, row: int, layer: str, by: tuple[str, ...], among: str = "all") -> str:
    return f"explore?{State(memory, query_set, row, layer, by, among=among).query()}"


def cell_link(memory: str, query_set: str, cell: str) -> str:
    """To the start page, with the examples of a cell of a query set's confusion matrix."""
    params = {"memory": memory, "set": query_set, "cell": cell}
    return f"./?{query_string({name: own for name, own in params.items() if own})}#set-{query_set}"

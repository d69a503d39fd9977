"""The state of a page, which its address holds, and links to other states."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

from dualform_explorer.filter import Chip, where_of

SCORES = {"dot": "attention", "abs": "absolute", "contribution": "contribution"}
"""The page's word for each score."""
KS = (12, 24, 60, 120, 500)
"""Choices for the number of best slots."""
SECTIONS = ("data", "layers", "training", "record")
"""The sections of a page after its answer. A folded section asks no questions."""
ALL, MISCLASSIFIED = "all", "misclassified"
CELL = re.compile(r"[0-9]{1,9}-[0-9]{1,9}")
"""A cell of the confusion matrix: a label and an output."""


@dataclass(frozen=True)
class State:
    memory: str
    """The name under which it is served."""
    query_set: str
    row: int
    """A row of the query set."""
    layer: str
    by: tuple[str, ...]
    """The columns that group slots."""
    token: int | None = None
    """The token's place in the example, for layers that see tokens; None for the default."""
    score: str = "dot"
    target: str = ""
    """What contributions are measured along: an output such as 3, or a margin such as 3-8."""
    chips: tuple[Chip, ...] = ()
    where: str = ""
    """The reader's own condition, in addition to the chips."""
    initial: bool = True
    """Whether the initial weights and the bias are part of the sum."""
    at: int | None = None
    """The number of steps after which to ask; None for the end."""
    k: int = 24
    by_sample: bool = False
    """Whether to show one slot for each sample."""
    among: str = ALL
    """ALL, MISCLASSIFIED, or a label and the output predicted instead, such as 0-6."""
    inexact: bool = False
    """Whether to answer even if the record is not exact."""
    within: Chip | None = None
    """The group whose samples are shown. It filters nothing else."""
    compute: bool = False
    """Whether to compute contributions that take long."""
    verify: bool = False
    """Whether to compute reconstruction errors, which reads all keys and values."""
    kept: str = ""
    """The name under which an adjoint was kept; empty for the first."""
    open: tuple[str, ...] = ()
    """The sections that are unfolded, in order."""

    @property
    def item(self) -> str:
        """The page's name of the example: SET/EXAMPLE. Questions name a stored row, and a layer with tokens has one for
        each token (`examples.query_of`).
        """
        return f"{self.query_set}/{self.row}"

    @property
    def masked(self) -> bool:
        """Whether anything is removed from the full sum."""
        return bool(self.chips or self.where or not self.initial)

    def mask(self, complete: frozenset[str] = frozenset()) -> str | None:
        """The slots to keep, for questions that take `at_step`."""
        return where_of(self.chips, self.where, None, complete)

    def mask_before(self, complete: frozenset[str] = frozenset()) -> str | None:
        """The slots to keep, for questions about scores: only those of steps up to `at`."""
        return where_of(self.chips, self.where, self.at, complete)

    def params(self, **changes: Any) -> list[tuple[str, str]]:
        """The parameters of the address, in order, with some fields changed. Another layer has other outputs, so a
        change of layer resets the target.
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
        """The query string of the address."""
        return query_string(self.params(**changes))

    def toggled(self, section: str) -> tuple[str, ...]:
        """The open sections after opening or closing one."""
        return tuple(own for own in SECTIONS if (own in self.open) != (own == section))

    def with_open(self, section: str) -> tuple[str, ...]:
        """The open sections, including that one."""
        return self.open if section in self.open else self.toggled(section)

    def with_chip(self, only: bool, columns: Sequence[str], values: Sequence[Any]) -> State:
        """Add a chip, or remove it if it is already there. It replaces its opposite."""
        chip, other = Chip.of(only, columns, values), Chip.of(not only, columns, values)
        chips = tuple(own for own in self.chips if own not in (chip, other))
        return replace(self, chips=chips if chip in self.chips else (*chips, chip))

    def without_chip(self, chip: Chip) -> State:
        return replace(self, chips=tuple(own for own in self.chips if own != chip))


def written_by(names: Iterable[str]) -> str:
    """Columns separated by commas, as `by` has them. A comma within a name is escaped."""
    return ",".join(name.replace("%", "%25").replace(",", "%2C") for name in names)


def query_string(params: list[tuple[str, str]] | Mapping[str, str]) -> str:
    return urlencode(params, quote_via=quote, safe="/:,-")


def link(state: State, **changes: Any) -> str:
    """A link to the page of a state, with some fields changed."""
    return f"explore?{state.query(**changes)}"


def item_link(memory: str, query_set: str, row: int, layer: str, by: tuple[str, ...], among: str = "all") -> str:
    return f"explore?{State(memory, query_set, row, layer, by, among=among).query()}"


def cell_link(memory: str, query_set: str, cell: str) -> str:
    """A link to the start page with the examples of one cell of a query set's confusion matrix."""
    params = {"memory": memory, "set": query_set, "cell": cell}
    return f"./?{query_string({name: own for name, own in params.items() if own})}#set-{query_set}"

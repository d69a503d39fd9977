"""The state of a page, which its address holds; links to other states, and reading them.

Unknown and invalid parameters become errors that list the valid choices. Missing ones get defaults that depend on the
memory.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, unquote, urlencode

from dualform.answers import LayerInfo, MemoryInfo, QuerySetInfo
from dualform.errors import BadInput
from dualform_explorer.filter import Chip, read_chip, where_of

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


def item_link(
    memory: str,
    query_set: str,
    row: int,
    layer: str,
    by: tuple[str, ...],
    among: str = ALL,
    chips: tuple[Chip, ...] = (),
) -> str:
    """A link to the page of an example, under these chips."""
    return link(State(memory, query_set, row, layer, by, among=among, chips=chips))


def cell_link(memory: str, query_set: str, cell: str) -> str:
    """A link to the start page with the examples of one cell of a query set's confusion matrix."""
    params = {"memory": memory, "set": query_set, "cell": cell}
    return f"./?{query_string({name: own for name, own in params.items() if own})}#set-{query_set}"


def layer_of(info: MemoryInfo, name: str) -> LayerInfo | None:
    """The recorded layer with a name, which may be the name of one of its parts."""
    return next((layer for layer in info.layers if layer.name == name or name in layer.views), None)


def query_set_of(info: MemoryInfo, name: str) -> QuerySetInfo | None:
    return next((query_set for query_set in info.query_sets if query_set.name == name), None)


def layers_of(info: MemoryInfo, query_set: QuerySetInfo | str) -> list[LayerInfo]:
    """The layers of which a query set stores queries."""
    found = query_set_of(info, query_set) if isinstance(query_set, str) else query_set
    return [] if found is None else [layer for layer in info.layers if layer.name in found.layers]


Params = Sequence[tuple[str, str]]
_MOST_CHOICES = 40
_MOST_BY = 3
_MOST_CHIPS = 100
LONGEST = 4000
"""The maximum length of a parameter."""
SINGLE = (
    *("memory", "item", "token", "layer", "score", "target", "by", "where", "w0", "at", "k", "as", "among"),
    *("inexact", "within", "compute", "verify", "kept", "open"),
)
_REPEATED = ("without", "only")
_FORM = ("keep", "column", "value", "first", "last", "move")
"""Parameters sent by forms and keyboard shortcuts: a filter chip to add, or the number of examples to move by. They are
not part of a state, so the reader is redirected to the state's own address."""
_MOVE = re.compile(r"-?[0-9]{1,6}")
_TARGET = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})?")


@dataclass(frozen=True)
class Fault:
    parameter: str
    message: str
    choices: tuple[tuple[str, str], ...] = ()
    """Valid choices: each a name and the query string of its page."""


def default_by(info: MemoryInfo) -> tuple[str, ...]:
    """The default columns to group by."""
    return ("dataset", "label") if len(info.datasets) > 1 else ("label",)


def read_state(params: Params, info: MemoryInfo, memory: str = "") -> Reading:
    """`memory`: its name in links; empty if the server has only one memory."""
    reading = Reading(params, info)
    reading.read(memory)
    return reading


@dataclass
class Reading:
    """One address that is being read, parameter by parameter."""

    params: Params
    info: MemoryInfo
    single: Sequence[str] = SINGLE
    """The parameters that this page knows, each given at most once."""
    others: Sequence[str] = (*_REPEATED, *_FORM)
    state: State | None = None
    """None if the address has faults."""
    faults: list[Fault] = field(default_factory=list)
    move: int = 0
    """The number of examples to move forward, or back if negative."""

    def __post_init__(self) -> None:
        given = dict[str, list[str]]()
        for name, value in self.params:
            given.setdefault(name, []).append(value)
        for name, values in given.items():
            if name not in (*self.single, *self.others):
                listed = ", ".join(own for own in (*self.single, *self.others) if own not in _FORM)
                self.faults.append(Fault(name, f"The page knows no parameter {name!r}. It knows {listed}."))
            elif name in self.single and len(values) > 1:
                self.fault(name, f"The parameter {name} is given {len(values)} times.", values)
            if any(len(value) > LONGEST for value in values):
                self.fault(name, f"The parameter {name} is longer than {LONGEST} letters.")

    @property
    def forms(self) -> bool:
        """Whether the address comes from a form, so that the state has a different address."""
        return any(name in _FORM for name, _ in self.params)

    @property
    def complete(self) -> bool:
        """Whether the state is ready to show: it needs no move, and it has a target."""
        return not self.move and (self.state is None or self.state.score != "contribution" or bool(self.state.target))

    def read(self, memory: str) -> None:
        """Read the state of an example's page."""
        if any(len(value) > LONGEST for _, value in self.params):
            return
        query_set, row = self._item()
        layer = None if query_set is None else self._layer(query_set)
        if query_set is None or layer is None:
            return
        columns = dict(self.info.columns.get(layer.space, {}))
        state = State(
            memory=memory,
            query_set=query_set.name,
            row=row,
            layer=self.one("layer") or layer.name,  # may name a part of the layer
            by=self._by(columns),
            token=self.number("token"),
            score=self.choice("score", "dot", SCORES),
            target=self._target(layer),
            chips=self._chips(columns),
            where=self.one("where").strip(),
            initial=self.choice("w0", "on", ("on", "off")) == "on",
            at=None if self.one("at") == str(self.info.steps) else self.number("at", self.info.steps),
            k=int(self.choice("k", str(State.k), [str(k) for k in KS])),
            by_sample=self.choice("as", "slots", ("slots", "samples")) == "samples",
            among=self.one("among")
            if CELL.fullmatch(self.one("among"))
            else self.choice("among", ALL, (ALL, MISCLASSIFIED)),
            inexact=self.choice("inexact", "no", ("no", "yes")) == "yes",
            within=next(iter(self._chip_of("within", self.one("within"), columns)), None),
            compute=self.choice("compute", "no", ("no", "yes")) == "yes",
            verify=self.choice("verify", "no", ("no", "yes")) == "yes",
            kept=self.one("kept"),
            open=self._open(),
        )
        self.move = self._move()
        self.state = None if self.faults else state

    def one(self, name: str) -> str:
        return next((value for own, value in self.params if own == name), "")

    def fault(self, name: str, message: str, choices: Iterable[str] = (), near: str = "") -> None:
        """`choices`: valid values to offer."""
        named = list(choices)
        if len(named) > _MOST_CHOICES:
            named = difflib.get_close_matches(near, named, _MOST_CHOICES, 0.3) or named[:_MOST_CHOICES]
        rest = query_string([(n, v) for n, v in self.params if n != name])
        links = [(own, f"{rest}&{query_string([(name, own)])}".lstrip("&")) for own in named]
        self.faults.append(Fault(name, message, () if len(rest) > LONGEST else tuple(links)))

    def _item(self) -> tuple[QuerySetInfo | None, int]:
        said = self.one("item")
        if not self.info.query_sets:
            self.fault(
                "item",
                "This memory has no query set: recorder.query_set(NAME, inputs, label) stores examples to ask by.",
            )
            return None, 0
        name, _, row = said.rpartition("/") if said else (self.info.query_sets[0].name, "", "0")
        query_set = query_set_of(self.info, name)
        if query_set is None:
            names = [f"{query_set.name}/0" for query_set in self.info.query_sets]
            self.fault("item", f"There is no query set {name or said!r}; an item is SET/EXAMPLE.", names, f"{name}/0")
            return None, 0
        most = query_set.rows if query_set.examples is None else query_set.examples
        if not (row.isascii() and row.isdecimal() and len(row) < 10 and int(row) < most):
            last = [] if query_set.examples is None else [f"{name}/{most - 1}"]
            there = f"0 to {most - 1}" if last else f"no more than {most}"
            self.fault("item", f"The query set {name} has no example {row!r}: it has {there}.", [f"{name}/0", *last])
            return query_set, 0
        return query_set, int(row)

    def _layer(self, query_set: QuerySetInfo) -> LayerInfo | None:
        own = layers_of(self.info, query_set)
        if not own:
            self.fault("item", f"The query set {query_set.name} has queries of no recorded layer.")
            return None
        named = any(name == "layer" for name, _ in self.params)  # a model that is itself a layer has an empty name
        said = self.one("layer") if named else own[-1].name
        found = layer_of(self.info, said)
        if found is None or found not in own:
            names = [name for layer in own for name in (layer.name, *layer.views)]
            there = f"The query set {query_set.name} has no queries of" if found else "There is no"
            self.fault("layer", f"{there} layer {said!r}.", names, said)
            return None
        return found

    def choice(self, name: str, default: str, choices: Iterable[str]) -> str:
        said = self.one(name) or default
        if said not in choices:
            listed = [own for own in choices if own != default or name in ("by", "score")]
            self.fault(name, f"{name} is {said!r}, which is none of: {', '.join(choices)}.", listed, said)
            return default
        return said

    def _by(self, columns: dict[str, str]) -> tuple[str, ...]:
        by = tuple(map(unquote, self.one("by").split(","))) if self.one("by") else default_by(self.info)
        choices = [written_by((name,)) for name in columns]
        if len(set(by)) < len(by) or len(by) > _MOST_BY:
            self.fault("by", f"by is {self.one('by')!r}; it names up to {_MOST_BY} columns, each once.", choices)
            return by
        for name in by:
            if name not in columns:
                self.fault("by", f"There is no column {name!r} to group by.", choices, name)
        return by

    def number(self, name: str, most: int | None = None) -> int | None:
        said = self.one(name)
        if not said:
            return None
        if not (said.isascii() and said.isdecimal() and len(said) < 12 and (most is None or int(said) <= most)):
            bounds = "from 0 on" if most is None else f"0 to {most}"
            self.fault(
                name, f"{name} is {said!r}; it is a whole number, {bounds}.", [] if most is None else [str(most)]
            )
            return None
        return int(said)

    def _open(self) -> tuple[str, ...]:
        said = self.one("open").split(",") if self.one("open") else []
        for name in said:
            if name not in SECTIONS:
                self.fault("open", f"There is no section {name!r}: they are {', '.join(SECTIONS)}.", SECTIONS, name)
        return tuple(name for name in SECTIONS if name in said)

    def _move(self) -> int:
        said = self.one("move") or "0"
        if not _MOVE.fullmatch(said):
            self.fault("move", f"move is {said!r}; it is a whole number, below zero to go back.")
            return 0
        return int(said)

    def _target(self, layer: LayerInfo) -> str:
        said = self.one("target").replace(" ", "")
        if not said:
            return ""
        outputs = [int(part) for part in said.split("-")] if _TARGET.fullmatch(said) else []
        if not outputs or max(outputs) >= layer.d_out or len(set(outputs)) < len(outputs):
            self.fault(
                "target",
                f"target is {said!r}; it is an output of layer {layer.name}, 0 to {layer.d_out - 1}, or a margin of "
                "two, as 0-1.",
            )
            return ""
        return said

    def _chips(self, columns: dict[str, str]) -> tuple[Chip, ...]:
        chips = [chip for name, said in self.params if name in _REPEATED for chip in self._chip_of(name, said, columns)]
        if column := self.one("column"):
            value = self.one("value") or "..".join(filter(None, (self.one("first"), self.one("last"))))
            keep = self.choice("keep", "without", _REPEATED)
            chips += self._chip_of(keep, f"{column}:{value}" if value else column, columns)
        found = tuple(dict.fromkeys(chips))
        if len(found) > _MOST_CHIPS:
            said = f"without and only are given {len(found)} times, and a page has {_MOST_CHIPS} at most."
            self.fault("without", f"{said} Write the mask as one where.")
        return found

    def _chip_of(self, name: str, said: str, columns: dict[str, str]) -> list[Chip]:
        """A list of one chip, or an empty list if the parameter is empty or invalid."""
        try:
            return [read_chip(said, name != "without", columns)] if said or name in _REPEATED else []
        except BadInput as error:
            self.fault(name, f"{error} Columns: {', '.join(columns)}.")
            return []

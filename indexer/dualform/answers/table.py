"""Shared by answers: tables and their conversion to text, pandas and Arrow, plots, scans and statuses."""

from __future__ import annotations

import math
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, ClassVar, Literal, Self, SupportsIndex, TypeAlias, TypeVar, cast
from weakref import ref

import numpy as np
from numpy import ma
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.extras import optional


@dataclass(frozen=True)
class Scan:
    """The snapshot that a result is of, and the work that it took."""

    snapshot: int = 0
    """The number of commits in the snapshot."""
    slots_scanned: int = 0
    """The slots of the layer in the snapshot; for weights, of all spaces."""
    slots_matching: int = 0
    """The slots that `where` keeps, regardless of `at_step`."""
    backend: str = ""
    """The backend that scored the keys: int8, numpy, torch, faiss, torch-cuda or faiss-gpu; empty for outputs and
    weights."""
    seconds: float = 0.0
    """Wall time of the work, in the process that did it."""
    missing: tuple[str, ...] = ()
    """Machines of a distributed memory that did not answer, with allow_partial. The result lacks their slots."""
    share: float = 1.0
    """The share of all slots of the training that was recorded. It is below 1.0 if a budget made the recorder sample;
    the result then covers only the sample. It is 1.0 as of a step before sampling began. As of later steps it is the
    share over the whole training; earlier steps mostly kept more. Deleting samples does not change it."""

    @property
    def sample(self) -> str:
        """The share of slots that was kept, as text; empty if all were kept."""
        if self.share == 1:
            return ""
        return f"a sample of {percent(self.share)} of the slots of all steps, kept within a budget"


def percent(share: float) -> str:
    """A share as text. Less than 100 % is never rounded to 100 %."""
    return "over 99.9 %" if 0.9995 <= share < 1 else f"{100 * share:.3g} %"


StatusName: TypeAlias = Literal["exact", "exact to bfloat16", "approximate", "scores only"]


@dataclass(frozen=True)
class Status:
    """How exact the record of a layer is as of a step.

    It was measured during the training or, for optimizers that cannot be measured then, by reading all slots.
    """

    name: StatusName
    """Whether rebuilt weights match the training; "scores only" if they cannot be rebuilt."""
    error: float | None = None
    """The reconstruction error: how far rebuilt weights are from the trained ones, relative to how far training moved
    them. None if it was not measured."""
    rounding: float | None = None
    """The part of the error that float32 rounding of the weights can explain, on the same scale."""
    since: int | None = None
    """The recorded step from which the record deviates, if one step stands out."""
    reason: str = ""
    """Why the record is not exact, or what limits an exact one; otherwise empty."""

    @property
    def exact(self) -> bool:
        """Whether rebuilt outputs and weights match the training."""
        return self.name == "exact"

    def __str__(self) -> str:
        if self.name != "approximate" or self.error is None:
            return self.name
        since = "" if self.since is None else f" since step {self.since}"
        return f"approximate{since}, error {self.error:.1e}"


SHOWN = 10
"""The number of rows that a table prints. If it has one or two more, it prints them too."""
_WIDEST = 60
"""Characters of a cell that are shown."""
_EXACT = 2**53 - 1
"""JavaScript rounds whole numbers beyond."""


class Html(str):
    """A cell that is HTML already. Only dualform.answers.contents makes them; every other text is escaped."""


def escaped(text: str) -> str:
    """Text for HTML elements and attributes. All text from memories is escaped here."""
    return text if isinstance(text, Html) else escape(_plain(text))


def json_value(value: Any) -> Any:
    """One value as JSON. JSON lacks NaN and infinities, so they become the texts "nan", "inf" and "-inf", which differ
    from NULL. Whole numbers that JavaScript rounds become text too, and so does any value that is not a number, text or
    boolean.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) <= _EXACT else str(value)
    if value is None or isinstance(value, str | bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


@dataclass(frozen=True, eq=False, repr=False)
class Columns:
    """A table with one NumPy array for each column, all of one length.

    `columns["label"]` is a column, `len` counts rows, and iterating gives each row as a dict of plain Python values.
    Numbers and booleans with NULLs are `numpy.ma` arrays; texts are object arrays with None for NULL. pandas, polars
    and pyarrow can read it directly.
    """

    arrays: Mapping[str, NDArray[Any]]
    scan: Scan = field(default_factory=Scan)
    space: str = ""
    """The slot space of the rows; empty for the result of an SQL statement."""

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[name]

    def __contains__(self, name: object) -> bool:
        return name in self.arrays

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """A row at a time; NULL is None."""
        lists = [column.tolist() for column in self.arrays.values()]
        return (dict(zip(self.arrays, row, strict=True)) for row in zip(*lists, strict=True))

    def __len__(self) -> int:
        return self.rows

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.arrays.values()))) if self.arrays else 0

    def keys(self) -> Sequence[str]:
        """The names of the columns."""
        return tuple(self.arrays)

    def items(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Names and columns."""
        return iter(self.arrays.items())

    def records(self) -> list[dict[str, Any]]:
        """One dict of plain Python values for each row, with None for NULL."""
        return list(self)

    def first(self, rows: SupportsIndex) -> Columns:
        """Only the first rows."""
        return Columns({name: column[:rows] for name, column in self.arrays.items()}, self.scan, self.space)

    def to_arrow(self) -> Any:
        """A pyarrow.Table. Raises MissingPackage without pyarrow."""
        pyarrow = optional("pyarrow")
        return pyarrow.table({name: _of_arrow(pyarrow, column) for name, column in self.arrays.items()})

    def to_pandas(self) -> Any:
        """A pandas.DataFrame; whole numbers with NULLs have the type Int64. Raises MissingPackage without pandas."""
        pandas = optional("pandas")
        return pandas.DataFrame({name: _of_pandas(pandas, column) for name, column in self.arrays.items()})

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return as_text(self, len(self))

    def _repr_html_(self) -> str:
        return as_html(self, len(self))


def column_of(values: Sequence[Any]) -> NDArray[Any]:
    """A column of plain values: numbers and booleans with None in them are masked, all else are objects."""
    known = [value for value in values if value is not None]
    types = {type(value) for value in known}
    if len(types) != 1 or not types <= {int, float, bool} or (types == {int} and _too_large(known)):
        column = np.empty(len(values), dtype=object)
        column[:] = values
        return column
    if len(known) == len(values):
        return np.array(values)
    mask = [value is None for value in values]
    return ma.array([known[0] if value is None else value for value in values], mask=mask)


def as_text(table: Columns, rows: int, title: str = "") -> str:
    """The first rows of a table that has so many, below each other; numbers to the right."""
    names, cells, left = _shown(table, rows)
    if not rows:
        left.append("(no rows)")
    widths = [max(map(len, (name, *own)), default=0) for name, own in zip(names, cells, strict=True)]
    right = [_is_number(column) for column in table.arrays.values()]
    lines = [title] if title else []
    for start, stop in _blocks(widths):
        own = slice(start, stop)
        for line in (names, *zip(*cells, strict=True)):
            padded = zip(line[own], widths[own], right[own], strict=True)
            lines.append(
                "  ".join(f"{cell:>{width}}" if number else f"{cell:<{width}}" for cell, width, number in padded)
            )
        lines += [""] * (stop < len(widths))
    return "\n".join(line.rstrip() for line in (*lines, *left))


def _blocks(widths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The columns to print side by side: as many as fit on a terminal, otherwise all."""
    room = shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None
    start, taken = 0, -2
    for place, width in enumerate(widths):
        taken += width + 2
        if room is not None and taken > room and place > start:
            yield start, place
            start, taken = place, width
    yield start, len(widths)


def as_html(table: Columns, rows: int, title: str = "", most: int = SHOWN) -> str:
    """As `as_text`, for a notebook. All text is escaped."""
    names, cells, left = _shown(table, rows, most)
    if not rows:
        left.append("No rows.")
    caption = f"<caption>{escaped(' '.join((title, *left)))}</caption>" if title or left else ""
    head = "".join(f"<th>{escaped(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in row)}</tr>" for row in zip(*cells, strict=True)
    )
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _shown(table: Columns, rows: int, most: int = SHOWN) -> tuple[list[str], list[list[str]], list[str]]:
    """The names of the columns, the cells of each, and a remark about the rows that are left out."""
    most = rows if rows <= most + 2 else most
    shown = table.first(most)
    left = [f"… {rows - most:,} more rows"] if rows > most else []
    names = [_plain(name) for name in shown.arrays]
    return names, [[_cell(value) for value in column.tolist()] for column in shown.arrays.values()], left


def _cell(value: Any) -> str:
    if value is None or isinstance(value, Html):
        return "-" if value is None else value
    text = _plain(f"{value:.6g}" if isinstance(value, float) else str(value))
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _plain(text: str) -> str:
    """Without control characters: a label in somebody's data set must not steer the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _is_number(column: NDArray[Any]) -> bool:
    return column.dtype.kind in "iuf"


def _of_arrow(pyarrow: Any, column: NDArray[Any]) -> Any:
    if isinstance(column, ma.MaskedArray):
        return pyarrow.array(column.data, mask=ma.getmaskarray(column))
    return pyarrow.array(column.tolist()) if column.dtype == object else column


def _of_pandas(pandas: Any, column: NDArray[Any]) -> Any:
    if not isinstance(column, ma.MaskedArray):
        return column.tolist() if column.dtype == object else column
    mask = ma.getmaskarray(column)
    if not mask.any():
        return column.data
    if column.dtype.kind in "iu":  # as floats, those above 2^53 would be others
        return pandas.arrays.IntegerArray(column.data.copy(), mask.copy())
    return column.tolist()


def _too_large(numbers: Sequence[int]) -> bool:
    return not -(2**63) <= min(numbers) <= max(numbers) < 2**63


A = TypeVar("A")


class Shown(ABC):
    """A result that prints itself as a table, also in notebooks."""

    _asked: tuple[ref[Any], Any] | None = None
    """The memory that gave the answer, and the question. No pickle has it, and no message."""

    @abstractmethod
    def shown(self, most: int) -> tuple[Columns, int]:
        """The rows to print, at most `most`, and the number of all rows."""

    @abstractmethod
    def title(self) -> str:
        """One line that describes the rows."""

    def __repr__(self) -> str:
        return as_text(*self.shown(SHOWN + 2), self.title())

    def _repr_html_(self) -> str:
        with suppress(Exception):  # a memory that was closed, a server that is gone: the table needs neither
            return self._html(*self._source())
        return as_html(*self.shown(SHOWN + 2), self.title())

    def _html(self, memory: Any, question: Any) -> str:
        """The notebook's HTML. `memory`: to look up more; None if it is gone or unknown."""
        return as_html(*self.shown(SHOWN + 2), self.title())

    def _source(self) -> tuple[Any, Any]:
        return (None, None) if self._asked is None else (self._asked[0](), self._asked[1])

    def __getstate__(self) -> dict[str, Any]:
        return {name: own for name, own in vars(self).items() if name != "_asked"}


def asked_of(memory: Any, question: Any, answer: A) -> A:
    """The answer, which from now on knows the memory as long as that lives: a notebook then shows samples."""
    if isinstance(answer, Shown):
        object.__setattr__(answer, "_asked", (ref(memory), question))
    return answer


class Table(Shown):
    """A result that is a table."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """The number of rows of `table`."""

    @abstractmethod
    def table(self, most: int | None = None) -> Columns:
        """The result as columns; only the first `most` rows if given."""

    def shown(self, most: int) -> tuple[Columns, int]:
        return self.table(most), self.rows

    def to_pandas(self) -> Any:
        """`table` as a pandas.DataFrame. Raises MissingPackage without pandas."""
        return self.table().to_pandas()

    def to_arrow(self) -> Any:
        """`table` as a pyarrow.Table. Raises MissingPackage without pyarrow."""
        return self.table().to_arrow()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table().__arrow_c_stream__(requested_schema)


class ByQuery:
    """A result whose arrays have a row for each query. Iterating gives the result of each."""

    _of_queries: ClassVar[tuple[str, ...]]
    """The names of these arrays, which may be None but for the first."""

    @property
    def nbytes(self) -> int:
        """The size in bytes of the numbers that grow with the queries."""
        return sum(own.nbytes for own in self._arrays().values())

    def part(self, start: int, stop: int) -> Self:
        """The result for the queries from start to stop. `scan` stays that of the whole."""
        return cast(
            "Self", replace(cast("Any", self), **{name: own[start:stop] for name, own in self._arrays().items()})
        )

    def _arrays(self) -> dict[str, NDArray[Any]]:
        found = {name: getattr(self, name) for name in self._of_queries}
        return {name: own for name, own in found.items() if own is not None}

    def __len__(self) -> int:
        return len(getattr(self, self._of_queries[0]))

    def __iter__(self) -> Iterator[Any]:
        return (self.part(query, query + 1) for query in range(len(self)))


class Recorded:
    """Something whose record is as exact as its `status` says."""

    status: Status

    @property
    def exact(self) -> bool:
        """Whether the record is exact."""
        return self.status.exact

    @property
    def reason(self) -> str:
        """Why the record is not exact, or what limits an exact one; otherwise empty."""
        return self.status.reason


def counted(number: int, noun: str) -> str:
    """ "1 query", "2,000 queries"."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def slots_told(scan: Scan, space: str) -> str:
    """ "320 slots of space 'sample'", or how many of them a mask left, and what is missing of them; empty where nothing
    is known."""
    of = f" of space {space!r}" if space else ""
    if not scan.slots_scanned:
        return f"slots{of}" if space else ""
    left = "" if scan.slots_matching == scan.slots_scanned else f"{scan.slots_matching:,} of "
    sample = f", {scan.sample}" if scan.sample else ""
    missing = f", without those of {', '.join(scan.missing)}" if scan.missing else ""
    return f"{left}{counted(scan.slots_scanned, 'slot')}{of}{sample}{missing}"


def group_columns(by: Sequence[str], groups: Sequence[tuple[Any, ...]], numbers: NDArray[Any]) -> dict[str, Any]:
    """The values of the groups of these numbers, a column for each of `by`."""
    chosen = [groups[number] for number in numbers.tolist()]
    names = by or [f"group_{place}" for place in range(len(groups[0]) if groups else 0)]
    return {name: column_of([own[place] for own in chosen]) for place, name in enumerate(names)}


def beside(own: Mapping[str, NDArray[Any]], of_user: Mapping[str, NDArray[Any]], at: int) -> dict[str, NDArray[Any]]:
    """The columns of an answer, with a user's columns inserted at place `at`. User columns keep their names. A column
    of the answer with the same name gets underscores appended.
    """
    taken = {*own, *of_user}
    renamed = {free_name(name, taken) if name in of_user else name: column for name, column in own.items()}
    names = [*list(renamed)[:at], *of_user, *list(renamed)[at:]]
    return {name: {**renamed, **of_user}[name] for name in names}


def free_name(name: str, taken: Container[str]) -> str:
    """The name, with underscores appended until it is not taken."""
    while name in taken:
        name += "_"
    return name


def first_places(shape: tuple[int, ...], most: int | None) -> tuple[NDArray[np.int64], ...]:
    """The indices of the first numbers of an array of that shape, in its order, one array an axis."""
    size = int(np.prod(shape))
    return np.unravel_index(np.arange(size if most is None else min(size, most)), shape) if size else _none(shape)


def _none(shape: tuple[int, ...]) -> tuple[NDArray[np.int64], ...]:
    return tuple(np.zeros(0, dtype=np.int64) for _ in shape)


_POSITIVE, _NEGATIVE = "#2a6f97", "#c1553b"
_LONGEST = 40
"""Characters of a name."""


def axes_or_new(axes: Any) -> Any:
    """The given axes, or those of a new figure. Raises MissingPackage if matplotlib is not installed."""
    return optional("matplotlib.pyplot").subplots(layout="constrained")[1] if axes is None else axes


def check_number(number: int, count: int, noun: str) -> int:
    """Raises BadInput for a query or an example that the answer does not have."""
    if not 0 <= number < count:
        raise BadInput(f"{noun} must be 0 to {count - 1}, not {number}.", field=noun)
    return number


def name_of(by: Sequence[str], group: Sequence[Any] | None) -> str:
    """ "3", or "3 | mnist" of several columns; NULL as a dash."""
    said = " | ".join("-" if value is None else str(value) for value in group or ())
    plain = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in said)
    # A dollar sign would begin a formula.
    return (plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 1]}…").replace("$", r"\$")


def draw_ranks(axes: Any, lines: Sequence[tuple[str, NDArray[Any]]], ylabel: str) -> None:
    """Scores by rank, on a logarithmic axis of ranks; a line a group."""
    for name, scores in lines:
        draw_curve(axes, np.arange(1, len(scores) + 1), scores, ylabel, name)
    if len(lines) > 1:
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))


def draw_curve(axes: Any, ranks: NDArray[Any], scores: NDArray[Any], ylabel: str, name: str = "") -> None:
    """Scores at some ranks, on a logarithmic axis of ranks."""
    axes.plot(ranks, scores, marker="o", markersize=3, linewidth=1.2, label=name or None)
    axes.set_xscale("log")
    axes.set_xlabel("rank")
    axes.set_ylabel(ylabel)


def draw_bars(axes: Any, names: Sequence[str], numbers: Sequence[float], xlabel: str) -> None:
    """One bar a name, the first on top; colours by sign."""
    places = np.arange(len(names))
    axes.barh(places, numbers, color=[_POSITIVE if number >= 0 else _NEGATIVE for number in numbers])
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel(xlabel)


def draw_terms(axes: Any, names: Sequence[str], terms: NDArray[np.float64]) -> None:
    """A field for each term and output: blue adds to the output, red takes from it. `terms`: float64[terms, d_out]."""
    most = float(np.abs(terms).max(initial=0.0)) or 1.0
    drawn = axes.imshow(terms, cmap="RdBu", vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
    axes.set_yticks(np.arange(len(names)), names)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("output")
    axes.figure.colorbar(drawn, ax=axes, label="contribution")

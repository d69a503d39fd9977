"""Questions to a memory, as plain values. Shapes: n queries, d dimensions of a layer's input.

A question checks itself when it is made, as far as that needs no memory: widths, layers, columns and probes are
checked by whoever answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dualform.errors import BadInput

Score: TypeAlias = Literal["signed", "abs"]


@dataclass(frozen=True)
class Vectors:
    """Queries given as numbers."""

    rows: NDArray[np.float32]
    """float32[n, d], finite."""

    def __post_init__(self) -> None:
        try:
            with np.errstate(over="ignore"):  # what overflows float32 is infinite there, and refused below
                rows = np.asarray(self.rows, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise BadInput(f"queries must be numbers: {error}.", field="queries") from None
        if rows.ndim == 1:
            rows = rows[None, :]
        if rows.ndim != 2:
            raise BadInput(
                f"queries must be float32[n, d] or float32[d], got an array of {rows.ndim} dimensions.", field="queries"
            )
        if not len(rows):
            raise BadInput("queries hold no row.", hint="Ask with at least one query.", field="queries")
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            raise BadInput(
                f"query {int(np.argmin(finite))} holds NaN or infinity.",
                hint="Scores are inner products: every number must be finite in float32.",
                field="queries",
            )
        object.__setattr__(self, "rows", np.ascontiguousarray(rows))


@dataclass(frozen=True)
class ProbeRows:
    """Queries stored in the memory under a probe's name."""

    probe: str
    rows: tuple[int, ...] | None = None
    """Row numbers from 0; None asks with every row."""


@dataclass(frozen=True)
class SlotKeys:
    """The keys of training datapoints themselves, as queries."""

    slots: tuple[int, ...]


Queries: TypeAlias = Vectors | ProbeRows | SlotKeys
QueriesLike: TypeAlias = Queries | ArrayLike | str


def as_queries(queries: QueriesLike) -> Queries:
    """Vectors, ProbeRows or SlotKeys as they are; numbers as Vectors; "probe" and "probe/3,17" as ProbeRows.

    Raises BadInput where a text names no row numbers after its last slash.
    """
    if isinstance(queries, Vectors | ProbeRows | SlotKeys):
        return queries
    if not isinstance(queries, str):
        return Vectors(np.asarray(queries))
    name, slash, rows = queries.rpartition("/")
    if not slash:
        return ProbeRows(queries)
    try:
        return ProbeRows(name, tuple(int(row) for row in rows.split(",")))
    except ValueError:
        raise BadInput(
            f"{queries!r} names no probe row: {rows!r} is no row number.",
            hint="Write PROBE/ROW, for example test-mnist/17, or PROBE/3,17 for several.",
            field="queries",
        ) from None


def as_by(by: str | Sequence[str] | None) -> tuple[str, ...]:
    """Column names of a grouping: "label", ("dataset", "label"), or None for none."""
    names = (by,) if isinstance(by, str) else by or ()
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise BadInput(f"by is {by!r}.", hint='Name columns, for example by="label".', field="by")
    names = tuple(names)
    if len(set(names)) < len(names):
        raise BadInput(f"by names a column twice: {', '.join(names)}.", field="by")
    return names


def as_ids(ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[n] of slot ids. Raises BadInput where they are no one-dimensional integers."""
    try:
        array = np.asarray(ids)
        whole = array.astype(np.int64) if not array.size or array.dtype.kind in "iu" else None
    except (TypeError, ValueError, OverflowError):
        whole = None
    if whole is None or whole.ndim != 1:
        raise BadInput("ids must be a list of whole numbers.", hint="Slots count from 0.", field="ids")
    return whole


def _check_layer(layer: str) -> None:
    if not isinstance(layer, str):
        raise BadInput(f"layer is {layer!r}.", hint="Give a layer's name.", field="layer")


def _check_score(score: str) -> None:
    if score not in ("signed", "abs"):
        raise BadInput(f"score is {score!r}.", hint='It is "signed" or "abs".', field="score")


@dataclass(frozen=True)
class TopK:
    """The k training datapoints that each query attends to most (paper section 5.2, figure 4)."""

    layer: str
    queries: Queries
    k: int = 10
    where: str | None = None
    by: tuple[str, ...] = ()
    """Columns; with any, the k best of each group."""
    score: Score = "signed"

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int | np.integer) or self.k < 1:
            raise BadInput(f"k is {self.k!r}.", hint="Ask for at least 1 datapoint.", field="k")
        object.__setattr__(self, "k", int(self.k))
        _check_layer(self.layer)
        _check_score(self.score)


@dataclass(frozen=True)
class GroupSum:
    """The sum of attention weights of each group of training datapoints (paper section 5.2, figure 5)."""

    layer: str
    queries: Queries
    by: tuple[str, ...]
    where: str | None = None
    score: Score = "signed"

    def __post_init__(self) -> None:
        if not self.by:
            raise BadInput("by names no column.", hint='Group by a slot column, for example by="label".', field="by")
        _check_layer(self.layer)
        _check_score(self.score)


@dataclass(frozen=True)
class Output:
    """A layer's output when only the slots of a mask speak (paper equation 13)."""

    layer: str
    queries: Queries
    where: str | None = None
    at_step: int | None = None
    """Number of recorded steps that have been taken: 0 is the initial network, None the end."""

    def __post_init__(self) -> None:
        _check_layer(self.layer)
        if self.at_step is None:
            return
        if isinstance(self.at_step, bool) or not isinstance(self.at_step, int | np.integer) or self.at_step < 0:
            raise BadInput(f"at_step is {self.at_step!r}.", hint="Steps count from 0.", field="at_step")

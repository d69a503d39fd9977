"""Answers of a memory, as plain values, and the protocol that whoever answers satisfies.

Shapes: n queries, G groups, d_out outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.questions import QueriesLike, Score

GroupKey: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Scan:
    """What answering took."""

    snapshot: int = 0
    """Number of commits the answer saw."""
    slots_scanned: int = 0
    """Slots of the layer in that snapshot."""
    slots_matching: int = 0
    """Slots that the mask left."""
    backend: str = ""
    """What scored the keys: numpy, torch, faiss, torch-cuda, faiss-gpu."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Grade:
    """How exact the record of a layer is as of a step, as measured while the training ran."""

    name: Literal["exact", "exact to bfloat16", "off", "scores only"]
    """Whether weights rebuilt from the record are those of the training; "scores only": they cannot be rebuilt."""
    error: float | None = None
    """Distance of the rebuilt weights from the real ones, relative to the way those went; None where not measured."""
    rounding: float | None = None
    """What float32 rounding of the weights alone may account for, relative to the same way."""
    since: int | None = None
    """The recorded step at which the record parted from the weights, where one step stands out."""
    reason: str = ""
    """Why it is not exact; empty where it is."""

    @property
    def exact(self) -> bool:
        return self.name == "exact"

    def __str__(self) -> str:
        if self.name != "off":
            return self.name
        since = "" if self.since is None else f" since step {self.since}"
        by = "" if self.error is None else f" by {self.error:.1e}"
        return f"off{by}{since}"


@dataclass(frozen=True, eq=False)
class Hits:
    """The best slots of each query, best first: score descending, then slot ascending.

    `slots[i]` is int64[hits] and `scores[i]` float32[hits] for query i. Where the question had `by`, `groups` holds one
    tuple of values per group, and `slots[i][g]`, `scores[i][g]` the best of group g. A group or mask with fewer than k
    slots gives fewer hits, never padding.
    """

    ids: NDArray[np.int64]
    """All slots, query after query, group after group."""
    weights: NDArray[np.float32]
    """The score of each of `ids`: its attention weight."""
    counts: NDArray[np.int64]
    """int64[n, max(G, 1)]: how many of `ids` belong to each query and group."""
    groups: tuple[GroupKey, ...] | None = None
    by: tuple[str, ...] = ()
    scan: Scan = field(default_factory=Scan)

    @property
    def slots(self) -> Sequence[Any]:
        return self._split(self.ids)

    @property
    def scores(self) -> Sequence[Any]:
        return self._split(self.weights)

    def _split(self, column: NDArray[Any]) -> list[Any]:
        parts = iter(np.split(column, np.cumsum(self.counts.ravel())[:-1]))
        rows = [[next(parts) for _ in range(self.counts.shape[1])] for _ in range(self.counts.shape[0])]
        return [row[0] for row in rows] if self.groups is None else rows

    def __len__(self) -> int:
        return int(self.counts.shape[0])


@dataclass(frozen=True, eq=False)
class GroupSums:
    """The summed attention weight of each group, for each query."""

    groups: tuple[GroupKey, ...]
    """One tuple of `by` values per group, in value order, NULLs (None) last."""
    sums: NDArray[np.float64]
    """float64[n, G]."""
    counts: NDArray[np.int64]
    """int64[G]: slots in each group."""
    by: tuple[str, ...] = ()
    scan: Scan = field(default_factory=Scan)


class Columns(Mapping[str, NDArray[Any]]):
    """A table by column name: one NumPy array per column, all of one length.

    Numbers and booleans with NULLs are masked arrays; texts are object arrays in which NULL is None.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._columns = dict(columns)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def rows(self) -> int:
        return len(next(iter(self._columns.values()))) if self._columns else 0

    def records(self) -> list[dict[str, Any]]:
        """One dict of plain Python values per row; NULL is None."""
        lists = {name: column.tolist() for name, column in self._columns.items()}
        return [{name: values[row] for name, values in lists.items()} for row in range(self.rows)]

    def to_arrow(self) -> Any:
        """A pyarrow.Table; raises MissingPackage where pyarrow is not installed."""
        pyarrow = _optional("pyarrow")
        return pyarrow.table(
            {name: pyarrow.array(column.tolist()) if _has_nulls(column) else column for name, column in self.items()}
        )

    def to_pandas(self) -> Any:
        """A pandas.DataFrame; raises MissingPackage where pandas is not installed."""
        return _optional("pandas").DataFrame(
            {name: column.tolist() if _has_nulls(column) else column for name, column in self.items()}
        )

    def __repr__(self) -> str:
        return f"Columns({self.rows} rows: {', '.join(self)})"


def _has_nulls(column: NDArray[Any]) -> bool:
    return isinstance(column, np.ma.MaskedArray) or column.dtype == object


def _optional(package: str) -> Any:
    from importlib import import_module

    from dualform.errors import MissingPackage
    from dualform.extras import missing_package

    try:
        return import_module(package)
    except ImportError as error:
        unnamed = MissingPackage(f"{package} is not installed.", hint=f"Install it: pip install {package}.")
        raise missing_package(error) or unnamed from None


@dataclass(frozen=True)
class LayerInfo:
    name: str
    d_in: int
    """Width of a key, without the 1 that stands for the bias."""
    d_out: int
    bias: bool
    space: str
    """What one slot stands for: "sample" or "token"."""
    slots: int
    distinct_keys: int
    """Keys stored: fewer than slots where the layer's inputs repeat, 0 where none were kept (see `reason`)."""
    values: bool
    """Whether error signals were stored."""
    exact: bool
    """Whether outputs and weights can be rebuilt from the record."""
    reason: str = ""
    """Why not, where they cannot."""


@dataclass(frozen=True)
class ProbeInfo:
    name: str
    rows: int
    layers: tuple[str, ...]


@dataclass(frozen=True)
class MemoryInfo:
    """What a memory holds, as of one snapshot."""

    format: int
    snapshot: int
    recording: bool
    """False once the recorder has left; a training that was killed stays True."""
    slots: Mapping[str, int]
    """Slots by space."""
    steps: int
    optimizer: str
    layers: tuple[LayerInfo, ...]
    skipped: Mapping[str, str]
    """Linear and other layers that were not recorded, with the reason."""
    datasets: Mapping[str, int]
    """Slots by dataset, over all spaces; slots without one are left out."""
    columns: Mapping[str, str]
    """Slot columns and their DuckDB types."""
    probes: tuple[ProbeInfo, ...]


@dataclass(frozen=True, eq=False)
class Probe:
    """Stored queries and what the model answered to them."""

    name: str
    labels: NDArray[np.int64] | None
    """int64[n], -1 where unknown."""
    outputs: NDArray[np.float32] | None
    """float32[n, outputs] of the whole model when the probe was taken."""
    queries: NDArray[np.float32] | None = None
    """float32[n, d] of the layer that was asked for, else None."""


@dataclass(frozen=True)
class Certificate:
    """How well the record rebuilds one layer: ||W_T - rebuilt|| / ||W_T - W_0||, bias included."""

    relative_error: float | None
    """None where the layer cannot be rebuilt at all (no values, or an optimizer that is not linear)."""
    exact: bool
    reason: str = ""


class Answers(Protocol):
    """Whoever answers questions about one memory: the engine in process, the client over gRPC."""

    def info(self) -> MemoryInfo: ...

    def topk(
        self,
        layer: str,
        queries: QueriesLike,
        k: int = 10,
        where: str | None = None,
        by: str | Sequence[str] | None = None,
        score: Score = "signed",
    ) -> Hits: ...

    def group_sum(
        self,
        layer: str,
        queries: QueriesLike,
        by: str | Sequence[str],
        where: str | None = None,
        score: Score = "signed",
    ) -> GroupSums: ...

    def output(
        self, layer: str, queries: QueriesLike, where: str | None = None, at_step: int | None = None
    ) -> NDArray[np.float32]: ...

    def slots(self, ids: Sequence[int] | NDArray[np.int64], space: str | None = None) -> Columns: ...

    def sql(self, statement: str) -> Columns: ...

    def probe(self, name: str, layer: str | None = None) -> Probe: ...

    def verify(self) -> Mapping[str, Certificate]: ...

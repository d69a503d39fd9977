"""What a way to store keys provides, and where rows of keys come from.

What a way to store keys has to say, of one layer: what becomes of the keys that a recorder hands over, and back.

Shapes: n entries of a batch, P of which a stored row stands for; m = n / P stored rows.

Keys that are made of stored rows each time they are read. Shapes: n rows asked for.

Where some consecutive keys of a layer come from, whatever form they are stored in. Shapes: n rows asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dualform.store.files.segment import MatrixForm, Segment


class KeySource(Protocol):
    """Rows of float32[rows, width]. They never change, so what is derived from them is kept under `identity`."""

    @property
    def identity(self) -> Hashable: ...

    @property
    def first_row(self) -> int:
        """The number of the first row among the layer's."""
        ...

    @property
    def rows(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def made(self) -> bool:
        """Whether rows are made anew each time they are read, so that the cache does not hold them."""
        ...

    @property
    def segment(self) -> Segment | None:
        """The file that the rows come from; None for rows that memory holds."""
        ...

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, width], C-contiguous, not to be written to: rows counted from the first one here.

        Raises Damaged, naming the file, where it is not what was committed; so do the other methods.
        """
        ...

    def holding(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """A matrix float32[…, width] that holds some rows, counted from the first one here, and int64[n]: where.

        Nothing is said of other rows of that matrix: they need not have been read from the file.
        """
        ...

    def shifted(self, rows: int) -> KeySource:
        """The same rows, with so many more of the layer before them."""
        ...

    def passing(self, *, first: bool = False) -> KeySource:
        """The same rows, read to be gone through once: what of their file no cache holds whole is not kept there.

        With `first`, that is so the first time that this is asked, and from then on they are kept. Under a budget of
        memory they always are, for it counts what is kept.
        """
        ...

    def verify(self) -> None:
        """Hold all of the file against its checksums, and keep nothing of it."""
        ...


class StoredRows(KeySource, Protocol):
    """Rows as they are stored: any type, [rows, *shape]. Float32 rows are a key source as they are."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """As `KeySource.read`, [stop - start, *shape]."""
        ...

    def holding(self, rows: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """As `KeySource.holding`, of rows [*shape]."""
        ...

    def passing(self, *, first: bool = False) -> StoredRows: ...


@dataclass(frozen=True, eq=False)
class HeldRows:
    """Stored rows, and a key source where they are float32."""

    identity: Hashable
    first_row: int
    content: NDArray[Any]
    """[rows, *shape], C-contiguous."""
    made: ClassVar[bool] = False
    segment: ClassVar[Segment | None] = None

    @property
    def rows(self) -> int:
        return len(self.content)

    @property
    def width(self) -> int:
        return int(np.prod(self.content.shape[1:]))

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.content.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self.content[start:stop]

    def holding(self, rows: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        return self.content, rows

    def shifted(self, rows: int) -> HeldRows:
        return replace(self, first_row=self.first_row + rows)

    def passing(self, *, first: bool = False) -> HeldRows:
        return self

    def verify(self) -> None:
        """Whoever read the rows held them against their checksum."""


@dataclass(frozen=True, eq=False)
class MadeRows(ABC):
    """A key source but for how keys are made, which a kind of its own says."""

    stored: StoredRows
    first_row: int
    width: int
    made: ClassVar[bool] = True

    @property
    def identity(self) -> Hashable:
        return self.stored.identity

    @property
    def segment(self) -> Segment | None:
        return self.stored.segment

    @property
    def rows(self) -> int:
        return self.stored.rows

    @abstractmethod
    def make(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32[n, width], C-contiguous: the keys of ascending rows, counted from the first one here."""

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        return self.make(np.arange(start, stop))

    def holding(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        distinct, places = np.unique(rows, return_inverse=True)
        return self.make(distinct), places

    def shifted(self, rows: int) -> Self:
        return replace(self, first_row=self.first_row + rows)

    def passing(self, *, first: bool = False) -> Self:
        return replace(self, stored=self.stored.passing(first=first))

    def verify(self) -> None:
        self.stored.verify()


@dataclass(frozen=True, eq=False)
class DecodedRows(MadeRows):
    """Keys each of which is made of one stored row."""

    decode: Callable[[NDArray[Any]], NDArray[np.float32]]
    """Of stored rows [n, *shape], float32[n, width]."""

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        return self.decode(self.stored.read(start, stop))

    def make(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        matrix, places = self.stored.holding(rows)
        return self.decode(matrix[places])


Geometry = Mapping[str, tuple[int, ...]]
"""What a format has to know of a layer beyond the width of its keys."""


class KeyFormat(ABC):
    """A new way to store keys is a file with a subclass, which says the name that the manifest has for it."""

    named: ClassVar[dict[str, type[KeyFormat]]] = {}
    """All of them."""

    geometry_names: ClassVar[frozenset[str]] = frozenset()
    """What has to stand in a layer's geometry."""

    number_bytes: ClassVar[int | None] = None
    """Of one number of a key, where rows are keys in the type that the training computed in; else None."""

    holds_values: ClassVar[bool] = False
    """Whether values can be stored as such keys are: a row is one vector of numbers, kept to the bit."""

    multiplied: ClassVar[bool] = True
    """Whether layers multiply by such keys, which autocast does in half precision: rows that are looked up stay as they
    are.
    """

    def __init_subclass__(cls, *, source: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        KeyFormat.named[source] = cls

    def __init__(self, d_in: int, geometry: Geometry) -> None:
        """Raises ValueError, saying why, for a layer whose keys have no such form."""
        self.d_in = d_in
        if geometry.keys() != self.geometry_names:
            named = ", ".join(sorted(self.geometry_names)) or "nothing"
            raise ValueError(f"its geometry has {', '.join(sorted(geometry)) or 'nothing'}, and must have {named}.")

    @property
    def per_row(self) -> int:
        """P: entries, consecutive ones, that a stored row stands for."""
        return 1

    @property
    def numbers_a_row(self) -> int:
        """How many numbers of keys a question reads for each stored row."""
        return self.per_row * self.d_in

    @property
    def most_rows(self) -> int | None:
        """How many different rows there can be; None for any number."""
        return None

    def count(self, keys: NDArray[Any]) -> int | None:
        """n, of the keys of a batch as they are handed over; None where nobody knows."""
        return len(keys) * self.per_row

    @property
    @abstractmethod
    def forms(self) -> Sequence[MatrixForm]:
        """The forms that files of keys have, of different types. The last one holds any keys, those before it some."""

    @abstractmethod
    def accepted(self, keys: NDArray[Any]) -> NDArray[Any]:
        """The keys of a batch, [m, …], C-contiguous. Raises ValueError, saying why, for what cannot be stored."""

    def encoded(self, keys: NDArray[Any], form: MatrixForm) -> NDArray[Any] | None:
        """Accepted keys as rows [m, *shape] of a form; None where it cannot hold them without loss."""
        return keys

    @abstractmethod
    def source(self, stored: StoredRows) -> KeySource:
        """The keys that stored rows, of any of the forms, stand for."""


def float32_rows(keys: NDArray[Any], *shape: int) -> NDArray[np.float32]:
    """Keys that are float32[m, *shape]. Raises ValueError for others."""
    if keys.dtype != np.float32 or keys.shape[1:] != shape:
        raise ValueError(f"its keys are {described(keys)}, and must be float32[n, {', '.join(map(str, shape))}].")
    return np.ascontiguousarray(keys)


def described(keys: NDArray[Any]) -> str:
    """Type and shape, for messages."""
    return f"{keys.dtype}[{', '.join(map(str, keys.shape))}]"

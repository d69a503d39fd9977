"""What a way to store keys has to say, of one layer: what becomes of the keys that a recorder hands over, and back.

Shapes: n entries of a batch, P of which a stored row stands for; m = n / P stored rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dualform.store.matrix_file import MatrixForm
from dualform.store.sources.key_source import KeySource, StoredRows

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

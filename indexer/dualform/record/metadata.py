"""What step(...) says of its datapoints: the checked entries.

Shapes: B rows, `L...` token dimensions of a batch.

An entry is one value for all, one for each row [B], or one for each token [B, L...]: its first axis is always the
batch, whichever axis that is in the layers' inputs. Nothing is fitted by its number of elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import BadInput
from dualform.store.tables import EXTENTS, KINDS, SAID, SLOTS, duckdb_type

Array: TypeAlias = NDArray[Any]

_BUILT_IN = {*SLOTS, "datapoint"}
_OF_EXTENTS = set(EXTENTS) - set(SLOTS)
"""Columns of the tables that hold what is said of single slots."""
_ANSWERED = ("query", "score", "group", "count")
"""Fields of answers that stand beside slot columns."""
_INTEGERS = ("label", "sample", "position", "row")
_LARGEST = np.iinfo(np.int64).max
PLACES = ("row", "position", "mask")
"""What is said of slots and is no column of theirs that a user names."""


class Metadata:
    """The checked arguments of one step; holds copies, so that the training may reuse its buffers."""

    def __init__(
        self,
        *,
        dataset: str | Sequence[str] | None = None,
        label: Any = None,
        sample: Any = None,
        position: Any = None,
        mask: Any = None,
        at: Mapping[str, Mapping[str, Any]] | None = None,
        batch_dim: int | Mapping[str, int] | None = None,
        columns: Mapping[str, Any],
    ) -> None:
        """Raises BadInput naming the argument that is no column."""
        _check_names(columns)
        given = {"dataset": dataset, "label": label, "sample": sample, **columns}
        self.entries = {name: _column(name, value) for name, value in given.items() if value is not None}
        """By column, of what is said of the whole step."""
        self.position = None if position is None else _column("position", position)
        self.mask = None if mask is None else _mask(mask)
        self._batch_dim = _checked_dims(batch_dim)
        self._at: dict[str, list[dict[str, Array]]] = {}
        for space, of in (at or {}).items():
            self.say(space, of)

    def say(self, space: str, columns: Mapping[str, Any]) -> None:
        """Say columns of the slots of one space. Raises BadInput."""
        _check_names(name for name in columns if name not in (*SAID, "position", "row"))
        for name in columns:
            if name.lower() in _OF_EXTENTS:
                raise BadInput(f"{name!r} cannot be said of single slots.", hint="Rename it.", field=name)
        said = {
            name: _mask(value) if name == "mask" else _column(name, value)
            for name, value in columns.items()
            if value is not None
        }
        self._at.setdefault(space, []).append(said)

    @property
    def spaces(self) -> list[str]:
        """The spaces that are spoken to by name."""
        return list(self._at)

    def at(self, space: str) -> dict[str, Array]:
        """What is said to one space by name: columns, `mask`, `position` and `row`; the last of what was said again."""
        return {name: entry for saying in self.sayings(space) for name, entry in saying.items()}

    def sayings(self, space: str) -> Sequence[Mapping[str, Array]]:
        """Everything that was said to one space by name, one after the other."""
        return self._at.get(space, ())

    @property
    def of_slots(self) -> bool:
        """Whether anything is said of single slots, or to one space by name."""
        single = self.position is not None or self.mask is not None or bool(self._at)
        return single or any(entry.ndim > 1 for entry in self.entries.values())

    @property
    def said_dims(self) -> int | Mapping[str, int] | None:
        """What was said of the axis of the batch."""
        return self._batch_dim

    def batch_dim(self, space: str) -> int | None:
        """The axis that is said to be the batch; None where none is."""
        if isinstance(self._batch_dim, int):
            return self._batch_dim
        return (self._batch_dim or {}).get(space)

    @property
    def axes(self) -> Mapping[str, int]:
        """By space or layer, what is said of it by name."""
        return self._batch_dim if isinstance(self._batch_dim, Mapping) else {}

    @property
    def rows(self) -> int | None:
        """B, of what has rows; None where nothing has."""
        return next((len(entry) for entry in self.arrays.values()), None)

    @property
    def arrays(self) -> dict[str, Array]:
        """Everything said of the whole step that has rows: its first axis is the batch."""
        named = {**self.entries, "position": self.position, "mask": self.mask}
        return {name: entry for name, entry in named.items() if entry is not None and entry.ndim}

    def speaks_of(self, space: str) -> bool:
        """Whether anything that is said depends on which axis of the space is the batch."""
        return bool(self.arrays) or any(entry.ndim for entry in self.at(space).values())


def _check_names(columns: Iterable[str]) -> None:
    names = list(columns)
    for name in names:
        if not name or not _is_unicode(name):
            raise BadInput(f"{name!r} cannot name a column.", hint="Give it a name of Unicode text.", field=name)
        if name.lower() in _BUILT_IN:
            raise BadInput(f"{name!r} is a column that the recorder fills itself.", field=name)
        if name.lower() in _ANSWERED:
            raise BadInput(f"{name!r} is what answers call a field of their own.", hint="Rename it.", field=name)
        if [other.lower() for other in names].count(name.lower()) > 1:
            raise BadInput(f"two columns are called {name!r} but for case, which SQL does not see.", field=name)


def _checked_dims(batch_dim: int | Mapping[str, int] | None) -> int | dict[str, int] | None:
    for said in batch_dim.values() if isinstance(batch_dim, Mapping) else [batch_dim]:
        if said not in (None, 0, 1):
            raise BadInput(f"batch_dim is {said}.", hint="The batch is axis 0 or 1.", field="batch_dim")
    return dict(batch_dim) if isinstance(batch_dim, Mapping) else batch_dim


def _mask(mask: Any) -> Array:
    if np.ma.is_masked(mask):
        raise BadInput("mask has entries that are masked.", hint="Fill them with true or false.", field="mask")
    given = as_array("mask", mask)
    if given.dtype != np.bool_:
        raise BadInput(f"mask holds {given.dtype}.", hint="Give booleans, true for real tokens.", field="mask")
    return given


def as_array(name: str, value: Any) -> Array:
    """An array of our own. Raises BadInput, naming the argument, for what is none."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value.float().numpy() if value.dtype.itemsize == 2 and value.is_floating_point() else value.numpy()
    try:
        return np.array(value)
    except ValueError:
        raise BadInput(f"{name} is ragged.", hint="Give an array or a tensor.", field=name) from None


def _column(name: str, value: Any) -> Array:
    """An owned array in the column's own type. Raises BadInput for one that no column holds."""
    missing = np.ma.getmaskarray(value) if np.ma.is_masked(value) else None
    entry = as_array(name, value if missing is None else value.filled(0))
    if missing is not None and entry.dtype.kind in "UO":
        entry = entry.astype(np.object_)
        entry[missing] = None
    kind, stored = entry.dtype.kind, duckdb_type(entry)
    if stored is None or (kind == "O" and not all(v is None or isinstance(v, str) for v in entry.flat)):
        raise BadInput(
            f"{name} holds {_said(entry)}.", hint="A column holds integers, floats, booleans or texts.", field=name
        )
    if name in _INTEGERS and kind not in "iu":
        raise BadInput(
            f"{name} holds {_said(entry)}.",
            hint=f"It is an integer column; record other values under a name of your own, as step(my_{name}=…).",
            field=name,
        )
    if name == "dataset" and kind not in "UO":
        raise BadInput(f"dataset holds {_said(entry)}.", hint="Name datasets by text.", field=name)
    if kind == "u" and entry.size and entry.max() > _LARGEST:
        raise BadInput(
            f"{name} holds {entry.max()}, and integers are at most {_LARGEST}.",
            hint="Record it as text.",
            field=name,
        )
    if kind in "UO" and not _is_unicode("".join(text for text in entry.flat if text is not None)):
        raise BadInput(f"{name} holds text that is no Unicode: a lone surrogate.", hint="Replace it.", field=name)
    entry = entry.astype(KINDS[stored].numpy, copy=False)
    return entry if missing is None or entry.dtype == np.object_ else _masked(name, entry, missing)


def _masked(name: str, entry: Array, missing: NDArray[np.bool_]) -> Array:
    """An entry whose missing values are NULL."""
    if name == "position":
        raise BadInput(
            "position has entries that are masked.", hint="Every slot has one; leave slots out with mask=.", field=name
        )
    if name == "row":
        return np.where(missing, -1, entry)
    return np.ma.MaskedArray(entry, mask=missing)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _said(entry: Array) -> str:
    kinds = sorted({type(v).__name__ for v in entry.flat if not isinstance(v, str)}) if entry.dtype.kind == "O" else []
    return ", ".join(kinds) or str(entry.dtype)

"""What step(...) says of its datapoints, and how that becomes slot columns.

Shapes: B samples, `L...` token dimensions of a batch, n slots of a space.

An entry may be one value for all, one per sample [B], or one per token [B, L...]; flattened forms [B * L] count as the
latter. A per-sample entry holds for each of its tokens; a per-token one says nothing of a sample, and is NULL there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import BadInput
from dualform.store.tables import SLOTS

Array: TypeAlias = NDArray[Any]

_BUILT_IN = tuple(SLOTS)
_ANSWERED = ("query", "score", "group", "count")
"""Fields of answers that stand beside slot columns."""
_INTEGERS = ("label", "sample", "position")
_KINDS = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float64, "U": np.object_, "O": np.object_}
"""Storage of each NumPy kind."""


@dataclass(frozen=True)
class Shape:
    """The leading dimensions of a space's keys: (B,) for samples, (B, L...) for tokens; their slots, flat, in order."""

    space: str
    leading: tuple[int, ...]

    @property
    def rows(self) -> int:
        return prod(self.leading)


class Metadata:
    """The checked arguments of one step; holds copies, so that the training may reuse its buffers."""

    def __init__(
        self,
        *,
        dataset: str | Sequence[str] | None,
        label: Any,
        sample: Any,
        position: Any,
        mask: Any,
        columns: Mapping[str, Any],
    ) -> None:
        """Raises BadInput naming the argument that is no column."""
        for name in columns:
            if name.lower() in _BUILT_IN:
                raise BadInput(f"{name!r} is a column that the recorder fills itself.", field=name)
            if name.lower() in _ANSWERED:
                raise BadInput(f"{name!r} is what answers call a field of their own.", hint="Rename it.", field=name)
            if [other.lower() for other in columns].count(name.lower()) > 1:
                raise BadInput(f"two columns are called {name!r} but for case, which SQL does not see.", field=name)
        given = {"dataset": dataset, "label": label, "sample": sample, "position": position, **columns}
        self._entries = {name: _column(name, value) for name, value in given.items() if value is not None}
        self._mask = None if mask is None else as_array("mask", mask)
        if self._mask is not None and self._mask.dtype != np.bool_:
            raise BadInput(f"mask holds {self._mask.dtype}.", hint="Give booleans, true for real tokens.", field="mask")

    def types(self) -> dict[str, np.dtype[Any]]:
        """The user columns and what they store."""
        return {name: entry.dtype for name, entry in self._entries.items() if name not in _BUILT_IN}

    def check_columns(self, known: Mapping[str, np.dtype[Any]], step: int) -> None:
        """Raises BadInput for a user column that the first step did not have, or had with another type."""
        for name, dtype in self.types().items():
            if name not in known:
                raise BadInput(
                    f"column {name!r} is new at step {step}.", hint="Give it from the first step on.", field=name
                )
            if known[name] != dtype:
                raise BadInput(f"column {name!r} held {known[name]} at first and holds {dtype} now.", field=name)

    def check(self, shapes: Sequence[Shape]) -> None:
        """Raises BadInput for an entry that fits no space of the step."""
        named = dict(self._entries) if self._mask is None else {**self._entries, "mask": self._mask}
        for name, entry in named.items():
            if shapes and all(_fit(entry, shape) == "no" for shape in shapes):
                seen = " and ".join(f"{list(shape.leading)} ({shape.space}s)" for shape in shapes)
                raise BadInput(
                    f"{name} has shape {list(entry.shape)}, but the recorded layers saw batches of {seen}.",
                    hint="Give one value, one per sample, or one per token.",
                    field=name,
                )

    def kept(self, shape: Shape) -> NDArray[np.int64] | None:
        """Flat indices of the entries that become slots; None where all do."""
        fit = "no" if self._mask is None else _fit(self._mask, shape)
        if self._mask is None or fit == "no" or self._mask.all():
            return None
        each = {"all": shape.rows, "samples": prod(shape.leading[1:]), "slots": 1}[fit]
        return np.flatnonzero(np.repeat(self._mask.ravel(), each))

    def slot_columns(self, shape: Shape, types: Mapping[str, np.dtype[Any]]) -> dict[str, Array]:
        """The columns of one space's new slots, [n] each; `types` are the user columns the memory has."""
        kept = self.kept(shape)
        flat = np.arange(shape.rows) if kept is None else kept
        tokens = prod(shape.leading[1:])
        n = len(flat)
        columns: dict[str, Array] = {"row": (flat // max(tokens, 1)).astype(np.int32)}
        wanted = {"position": np.dtype(np.int64), "dataset": np.dtype(np.object_), "label": np.dtype(np.int64),
                  "sample": np.dtype(np.int64), **types}  # fmt: skip
        for name, dtype in wanted.items():
            entry = self._entries.get(name)
            fit = "absent" if entry is None else _fit(entry, shape)
            if entry is not None and fit == "all":
                columns[name] = np.full(n, entry[()], dtype=dtype)
            elif entry is not None and fit == "slots":
                columns[name] = entry.reshape(-1)[flat]
            elif entry is not None and fit == "samples":
                columns[name] = entry[columns["row"]]
            elif name == "position" and shape.space == "token":
                columns[name] = flat % max(tokens, 1)
            else:
                columns[name] = _nulls(n, dtype)
        return columns


@lru_cache(maxsize=16)
def _nulls(n: int, dtype: np.dtype[Any]) -> Array:
    """A column of NULLs; shared between steps, so nobody may write to it."""
    if dtype == np.object_:
        return np.full(n, None, dtype=np.object_)
    return np.ma.MaskedArray(np.zeros(n, dtype=dtype), mask=np.ones(n, dtype=np.bool_))


def _fit(entry: Array, shape: Shape) -> str:
    """How an entry speaks of a space's slots: one value for "all", one per "samples" or "slots", or "no"."""
    if entry.ndim == 0:
        return "all"
    if entry.shape == shape.leading:
        return "slots"
    if entry.shape == shape.leading[:1]:
        return "samples"
    # Flattened: tokens as one long list, or [b, L] where the model folded its tokens into the batch.
    return "slots" if entry.size == shape.rows else "no"


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
    entry = as_array(name, value)
    kind = entry.dtype.kind
    if kind not in _KINDS or (kind == "O" and not all(v is None or isinstance(v, str) for v in entry.flat)):
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
    return entry.astype(_KINDS[kind], copy=False)


def _said(entry: Array) -> str:
    kinds = sorted({type(v).__name__ for v in entry.flat if not isinstance(v, str)}) if entry.dtype.kind == "O" else []
    return ", ".join(kinds) or str(entry.dtype)

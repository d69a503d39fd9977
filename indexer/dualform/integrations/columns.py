"""Which parts of a trainer's batch are columns of the memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from dualform.errors import BadInput

Columns: TypeAlias = Mapping[str, str | int] | Sequence[str] | Callable[[Any], Mapping[str, Any]]
"""Names that a batch has its columns under; column -> name or place in the batch; or what makes the arguments of
`recorder.step` of a batch."""


def said_of(batch: Any, columns: Columns, first: bool) -> dict[str, Any]:
    """The arguments of `recorder.step` for a batch.

    Raises BadInput for a column that the `first` batch lacks; a later batch without it has NULLs there.
    """
    if callable(columns):
        return dict(columns(batch))
    said: dict[str, Any] = {}
    for column, place in places_of(columns).items():
        try:
            said[column] = batch[place]
        except (LookupError, TypeError):
            if first:
                raise BadInput(
                    f"the first batch has no {place!r}, which column {column!r} is to be: it has {_contents(batch)}.",
                    hint="Keep it in the data set and in what collates batches, or leave the column out.",
                    field="columns",
                ) from None
    return said


def places_of(columns: Columns) -> dict[str, str | int]:
    """Column -> its name or place in a batch; of none where a function says all."""
    if callable(columns):
        return {}
    return dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}


def _contents(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return ", ".join(map(repr, batch)) or "nothing"
    return f"{len(batch)} parts" if isinstance(batch, tuple | list) else f"no parts: it is {type(batch).__name__}"

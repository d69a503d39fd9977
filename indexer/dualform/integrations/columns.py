"""Columns of a memory from the batches of a trainer. Shapes: B rows of a batch, L tokens of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from dualform.errors import BadInput

Place: TypeAlias = str | int | Callable[[Any], Any]
"""Where a batch has a column: a name, a number, or a function of the batch such as `next_token`."""
Columns: TypeAlias = Mapping[str, Place] | Sequence[str] | Callable[[Any], Mapping[str, Any]]
"""Names of columns in a batch; column -> its place in the batch; or a function from a batch to the arguments of
`recorder.step`."""
_NO_TARGET = -100
"""The entry of `labels` for a token that is not predicted."""


def next_token(batch: Mapping[str, Any]) -> np.ma.MaskedArray[Any, Any]:
    """The label of each token for a model that predicts the next one: int64[B, L], NULL for tokens without a label.

    `batch["labels"]`, integers [B, L], has each token at its own place, as causal models of Hugging Face expect, and
    -100 for tokens that are not predicted. Raises BadInput for labels of another shape, and KeyError without labels.
    """
    given = batch["labels"]
    labels = np.asarray(given.detach().cpu() if isinstance(given, Tensor) else given)
    if labels.ndim != 2 or labels.dtype.kind not in "iu":
        shape = ", ".join(map(str, labels.shape))
        raise BadInput(
            f"labels must be integers [B, L] for next_token, not {labels.dtype}[{shape}].",
            hint="Pass one label for each token, or compute the column with your own function.",
            field="label",
        )
    behind = np.full(labels.shape, _NO_TARGET, dtype=np.int64)
    behind[:, :-1] = labels[:, 1:]
    return np.ma.masked_equal(behind, _NO_TARGET)


def said_of(batch: Any, columns: Columns, first: bool) -> dict[str, Any]:
    """The arguments of `recorder.step` for a batch.

    Raises BadInput for a column that the `first` batch lacks; a later batch without it has NULLs there.
    """
    if callable(columns):
        return dict(columns(batch))
    said: dict[str, Any] = {}
    for column, place in places_of(columns).items():
        try:
            said[column] = place(batch) if callable(place) else batch[place]
        except (LookupError, TypeError):
            if first:
                lacks = f"lacks what {_named(place)} takes" if callable(place) else f"has no {place!r}"
                raise BadInput(
                    f"The first batch {lacks}, from which column {column!r} is taken. It has {_contents(batch)}.",
                    hint="Keep it in the dataset and in the collate function, or leave the column out.",
                    field="columns",
                ) from None
    return said


def places_of(columns: Columns) -> dict[str, Place]:
    """Column -> its place in a batch; of none where a function says all."""
    if callable(columns):
        return {}
    return dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}


def _named(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))


def _contents(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return ", ".join(map(repr, batch)) or "nothing"
    return f"{len(batch)} parts" if isinstance(batch, tuple | list) else f"no parts: it is {type(batch).__name__}"

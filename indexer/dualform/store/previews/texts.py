"""Texts of a preview set, and where in them each position of a sample is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.answers import Previews
from dualform.answers.contents import TEXTS
from dualform.coding.passage import check_text, places_of
from dualform.coding.pixels import as_numbers
from dualform.errors import BadInput
from dualform.store.previews.content import FoundRows, gathered

_TEXT = ("text", pa.string())
_OFFSETS = ("offsets", pa.list_(pa.int32()))
_FIRST = ("first", pa.int64())


class Texts:
    """One text a sample."""

    kind = TEXTS

    def __init__(self, texts: Sequence[str], offsets: Sequence[Any] | None, first: Any = None) -> None:
        """`offsets`: of each text, [positions, 2] of where a position starts and stops in it, in characters; `first`:
        of each text, the position that they begin with, None for 0.

        Raises BadInput for what is no text, and for offsets that do not lie in their text.
        """
        if isinstance(texts, str | bytes):
            raise BadInput(
                "texts must be a list, not one text.", hint="Pass a list with one text for each sample.", field="texts"
            )
        # Iterated, a mapping and a DataFrame give names, and a set an order of its own.
        if isinstance(texts, Mapping | Set) or hasattr(texts, "columns") or not isinstance(texts, Iterable):
            raise BadInput(
                f"texts must be a list of texts, not {type(texts).__name__}.",
                hint="Pass one text for each sample, or one column of a table; for more, dualform.PreviewSet.table(…).",
                field="texts",
            )
        self._texts = list(texts)
        for number, text in enumerate(self._texts):
            check_text(number, text)
        self._offsets = None if offsets is None else self._checked(offsets)
        self._first = None if first is None else _firsts(first, self._offsets)
        self.schema = pa.schema(
            [_TEXT] if offsets is None else [_TEXT, _OFFSETS] if first is None else [_TEXT, _OFFSETS, _FIRST]
        )

    def __len__(self) -> int:
        return len(self._texts)

    def scale(self) -> None:
        return None

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._offsets is None:
            return gathered(((text,) for text in self._texts), self.schema)
        columns: list[Iterable[Any]] = [self._texts, (own.ravel() for own in self._offsets)]
        if self._first is not None:
            columns.append(self._first.tolist())
        return gathered(zip(*columns, strict=True), self.schema)

    @staticmethod
    def look(found: FoundRows) -> Previews:
        texts = found.spread(found.rows.column("text").to_pylist(), None)
        offsets, firsts = None, None
        if found.has("offsets"):
            pairs = map(_pairs, found.rows.column("offsets"))
            offsets = found.spread(pairs, np.zeros((0, 2), dtype=np.int32))
        if found.has("first"):
            firsts = np.zeros(len(found.samples), dtype=np.int64)
            firsts[found.known] = found.rows.column("first").to_numpy(zero_copy_only=False)
        return Previews(found.samples, TEXTS, found.known, texts=texts, offsets=offsets, firsts=firsts)

    def _checked(self, offsets: Any) -> list[NDArray[np.int32]]:
        if not isinstance(offsets, Iterable):
            raise BadInput(
                f"offsets must be a list, not {type(offsets).__name__}.",
                hint="Pass one list for each text.",
                field="offsets",
            )
        offsets = list(offsets)
        if len(offsets) != len(self._texts):
            raise BadInput(
                f"offsets has {len(offsets)} entries for {len(self._texts)} texts.",
                hint="Pass one list for each text, and an empty list where offsets are unknown.",
                field="offsets",
            )
        lengths = map(len, self._texts)
        return [places_of(number, *own) for number, own in enumerate(zip(offsets, lengths, strict=True))]


def _firsts(first: Any, offsets: list[NDArray[np.int32]] | None) -> NDArray[np.int64]:
    if offsets is None:
        raise BadInput("first= needs offsets=.", hint="Pass both, or leave out first=.", field="first")
    try:
        found = as_numbers(first)
    except (BadInput, ValueError):
        found = np.zeros(0)
    if (
        found.shape != (len(offsets),)
        or (len(found) and found.dtype.kind not in "iu")
        or (found.astype(np.int64) < 0).any()
    ):
        raise BadInput(
            f"first must contain one whole number from 0 for each of {len(offsets)} texts.",
            hint="Pass the position of the first token in offsets, for each text.",
            field="first",
        )
    return found.astype(np.int64)


def _pairs(offsets: pa.ListScalar) -> NDArray[np.int32]:
    return np.array(offsets.values.to_numpy(zero_copy_only=False), dtype=np.int32).reshape(-1, 2)

"""A text, and where in it each position of its sample is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.coding.pixels import as_numbers
from dualform.errors import BadInput


def check_text(number: int, text: Any) -> None:
    """`number`: of the sample, which the error names. Raises BadInput for what is no text."""
    if not isinstance(text, str):
        raise BadInput(f"text {number} is of type {type(text).__name__}.", hint="Give texts.", field="texts")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput(
            f"text {number} contains half of a surrogate pair, which is not valid Unicode.", field="texts"
        ) from None


def places_of(number: int, offsets: Any, length: int) -> NDArray[np.int32]:
    """int32[positions, 2] of where each position starts and stops in a text of this length; none where they are not
    known. Raises BadInput for what are no such pairs, and for those outside of the text.
    """
    if offsets is None or (hasattr(offsets, "__len__") and not len(offsets)):
        return np.zeros((0, 2), dtype=np.int32)
    try:
        found = as_numbers(offsets)
    except (BadInput, ValueError):
        found = np.zeros(0)
    if found.ndim != 2 or found.shape[1] != 2 or found.dtype.kind not in "iu":
        raise BadInput(
            f"the offsets of text {number} must be pairs of integers.",
            hint="Give where each position starts and stops, as the offset_mapping of a tokenizer.",
            field="offsets",
        )
    start, stop = found.astype(np.int64).T
    if (start < 0).any() or (stop < start).any() or (stop > length).any():
        place = int(np.flatnonzero((start < 0) | (stop < start) | (stop > length))[0])
        raise BadInput(
            f"position {place} of text {number} has the offsets {start[place]} to {stop[place]}, but the text has "
            f"{length} characters.",
            hint="Offsets count characters of the text, from 0.",
            field="offsets",
        )
    return found.astype(np.int32)

"""What a reader's own function says that one sample looks like, checked and coded as a preview set codes it.

Shapes: h lines of w pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Preview
from dualform.coding.passage import check_text, places_of
from dualform.coding.pixels import as_numbers, check_finite, framed, scaled
from dualform.coding.png import encoded
from dualform.errors import BadInput


def coded_preview(value: Any, sample: int) -> Preview:
    """An image (an array, a tensor, one of Pillow's, alone or as (image, label)), a text, alone or with offsets, a
    mapping of columns, or None. Raises BadInput for anything else, and for what a preview set would not take.

    A preview set scales numbers by all of its images, of which only one is known here. So numbers of 8 bits are taken
    as they are, floats and truth values that lie from 0 to 1 as shares of full brightness, and others are scaled from
    the least to the greatest of the image itself.
    """
    if value is None:
        return Preview(sample)
    if isinstance(value, str):
        return _text(sample, value, None)
    if isinstance(value, tuple) and len(value) == 2:
        if isinstance(value[0], str):
            return _text(sample, *value)
        value = value[0]
    if _is_row_of_pandas(value):
        value = value.to_dict()
    if isinstance(value, Mapping):
        return Preview(sample, row={_name(name, sample): _entry(name, own) for name, own in value.items()})
    if not _has_pixels(value):
        raise BadInput(
            f"it is of type {type(value).__name__}.",
            hint="Give an image (an array, a tensor, or one of Pillow's), a text, a mapping of columns, or None.",
            field="preview",
        )
    return Preview(sample, image=encoded(_pixels(value, sample)))


def _text(sample: int, text: str, offsets: Any) -> Preview:
    check_text(sample, text)
    places = None if offsets is None else places_of(sample, offsets, len(text))
    return Preview(sample, text=text, offsets=places)


def _pixels(value: Any, sample: int) -> NDArray[np.uint8]:
    """uint8[h, w], or [h, w, 3]."""
    image = framed(sample, as_numbers(value), None)
    check_finite(image, f"image {sample} holds")
    if image.dtype == np.uint8:
        return image
    least, greatest = float(image.min()), float(image.max())
    shares = image.dtype.kind in "bf" and least >= 0 and greatest <= 1
    return scaled(image, 0.0, 1.0) if shares else scaled(image, least, greatest)


def _has_pixels(value: Any) -> bool:
    """A table has no pixels, though NumPy would take it for an array."""
    return not hasattr(value, "columns") and any(
        hasattr(value, own) for own in ("detach", "__array__", "__array_interface__")
    )


def _is_row_of_pandas(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "pandas" and type(value).__name__ == "Series"


def _name(name: Any, sample: int) -> str:
    check_text(sample, str(name))
    return str(name)


def _entry(name: Any, value: Any) -> Any:
    """A plain value, as a row has it."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # NumPy's and torch's numbers
        value = value.item()
    if isinstance(value, date | time | timedelta | Decimal):
        return str(value)
    if not (value is None or isinstance(value, str | bool | int | float)):
        raise BadInput(
            f"column {str(name)!r} holds {type(value).__name__}.",
            hint="Give numbers, truth values and texts.",
            field="preview",
        )
    if isinstance(value, str):
        check_text(0, value)
    return value

"""Previews of training samples from a function of the reader, in place of recorded previews.

The function runs only in the process that serves the pages. Servers and memories know nothing of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date, time, timedelta
from decimal import Decimal
from threading import RLock
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from dualform.answers import MemoryInfo, Preview, Previews
from dualform.answers.contents import IMAGES, MOST_BYTES, TABLE, TEXTS
from dualform.coding.passage import check_text, places_of
from dualform.coding.pixels import as_numbers, check_finite, framed, scaled
from dualform.coding.png import encoded
from dualform.errors import BadInput
from dualform.methods import Answers
from dualform.questions import PreviewLookup, Question

_PIXELS = ("detach", "__array__", "__array_interface__")
"""An image has one of these attributes."""


def coded_preview(value: Any, sample: int) -> Preview:
    """Encode an image (an array, a tensor or one of Pillow's, alone or as (image, label)), a text with or without
    offsets, a mapping of columns, or None. Raises BadInput for anything else, and for values that a recorded preview
    cannot hold.

    Recorded previews scale numbers by all of their images, of which only one is known here. So 8-bit numbers are kept,
    floats and booleans from 0 to 1 are shares of full brightness, and other numbers are scaled from the least to the
    greatest of the image.
    """
    if value is None:
        return Preview(sample)
    value, offsets = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    if isinstance(value, str):
        check_text(sample, value)
        places = None if offsets is None else places_of(sample, offsets, len(value))
        return Preview(sample, text=value, offsets=places)
    if hasattr(value, "to_dict") and hasattr(value, "index") and not hasattr(value, "columns"):  # a row of pandas
        value = value.to_dict()
    if isinstance(value, Mapping):
        return Preview(sample, row={str(name): _entry(str(name), own, sample) for name, own in value.items()})
    # NumPy would take a table for an array, but it has no pixels.
    if hasattr(value, "columns") or not any(hasattr(value, own) for own in _PIXELS):
        raise BadInput(
            f"it is of type {type(value).__name__}.",
            hint="Give an image (an array, a tensor, or one of Pillow's), a text, a mapping of columns, or None.",
            field="preview",
        )
    return Preview(sample, image=encoded(_pixels(value, sample)))


def _pixels(value: Any, sample: int) -> NDArray[np.uint8]:
    """uint8[h, w], or [h, w, 3]."""
    image = framed(sample, as_numbers(value), None)
    check_finite(image, f"image {sample} holds")
    if image.dtype == np.uint8:
        return image
    least, greatest = float(image.min()), float(image.max())
    shares = image.dtype.kind in "bf" and least >= 0 and greatest <= 1
    return scaled(image, 0.0, 1.0) if shares else scaled(image, least, greatest)


def _entry(name: str, value: Any, sample: int) -> Any:
    """A plain value for a row."""
    check_text(sample, name)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # NumPy's and torch's numbers
        value = value.item()
    if isinstance(value, date | time | timedelta | Decimal):
        return str(value)
    if not (value is None or isinstance(value, str | bool | int | float)):
        raise BadInput(
            f"column {name!r} holds {type(value).__name__}.",
            hint="Give numbers, truth values and texts.",
            field="preview",
        )
    if isinstance(value, str):
        check_text(sample, value)
    return value


A = TypeVar("A")
PreviewFunction: TypeAlias = Callable[[str | None, int], Any]
"""Takes a dataset, or None for samples without one, and a sample's number. Returns an image, a text, a row or None."""
GIVEN = "function"
"""Used as the kind of previews, because a function's are known only once it is called."""


def check_preview_function(preview: Any) -> None:
    """Raises BadInput unless it can be called as a PreviewFunction."""
    if not callable(preview):
        raise BadInput(
            f"preview is of type {type(preview).__name__}.",
            hint="Give a function preview(dataset, sample).",
            field="preview",
        )
    try:
        inspect.signature(preview).bind(None, 0)
    except ValueError:
        pass  # a builtin, whose signature is unknown
    except TypeError as error:
        raise BadInput(
            f"{_name_of(preview)} cannot be called as preview(dataset, sample): {error}.",
            hint="It gets the dataset's name, or None, and the sample's number.",
            field="preview",
        ) from None


class AnswersWithPreviews(Answers):
    """The answers of a memory, with previews of training samples from a function. Query sets keep their recorded
    previews.

    Only one thread calls functions at a time, and a result is encoded before the next call, so a function may reuse its
    array.
    """

    _lock = RLock()

    def __init__(self, answers: Answers, preview: PreviewFunction) -> None:
        self._answers, self._function = answers, preview

    def ask(self, question: Question[A]) -> A:
        if isinstance(question, PreviewLookup) and question.query_set is None:
            return cast("A", self._previews(question))
        answer = self._answers.ask(question)
        if isinstance(answer, MemoryInfo):
            return cast("A", replace(answer, previews=dict.fromkeys(("", *answer.datasets), GIVEN)))
        return answer

    def _previews(self, question: PreviewLookup) -> Previews:
        """Raises BadInput for a result that cannot be shown, an error in the function, and more bytes than an answer
        may hold.
        """
        found, size = list[Preview](), 0
        for sample in question.samples.tolist():
            own = self._preview(question.dataset or None, sample)
            size += _bytes(own)
            if size > MOST_BYTES:
                raise BadInput(
                    f"what these samples look like takes more than {MOST_BYTES >> 20} MiB.",
                    hint=f"Ask for at most {len(found)} at a time." if found else "One of them alone is larger.",
                    field="samples",
                )
            found.append(own)
        kinds = {_kind(own): own.sample for own in found if own.known}
        if len(kinds) > 1:
            said = " and ".join(f"{kind} for sample {sample}" for kind, sample in kinds.items())
            raise BadInput(
                f"{_name_of(self._function)} gave {said} of one dataset.",
                hint="Give all samples of a dataset alike, or None.",
                field="preview",
            )
        return _together(found, next(iter(kinds), IMAGES))

    def _preview(self, dataset: str | None, sample: int) -> Preview:
        called = f"{_name_of(self._function)}({dataset!r}, {sample})"
        with self._lock:
            try:
                value = self._function(dataset, sample)
            except (Exception, SystemExit) as error:  # the function is not ours
                raise BadInput(f"{called} raised {_said(error)}.", field="preview") from error
            try:
                return coded_preview(value, sample)
            except Exception as error:  # such as an image whose file ends early
                raise BadInput(f"What {called} gave cannot be shown: {_why(error)}", field="preview") from error

    def close(self) -> None:
        self._answers.close()


def _together(found: Sequence[Preview], kind: str) -> Previews:
    known = np.array([own.known for own in found], dtype=bool)
    offsets = None
    if any(own.offsets is not None for own in found):
        none = np.zeros((0, 2), dtype=np.int32)
        offsets = tuple(none if own.offsets is None else own.offsets for own in found)
    rows = [own.row or {} for own in found]
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        columns[name] = np.empty(len(rows), dtype=object)
        columns[name][:] = [row.get(name) for row in rows]
    return Previews(
        samples=np.array([own.sample for own in found], dtype=np.int64),
        kind=kind,
        known=known,
        images=tuple(own.image for own in found) if kind == IMAGES else (),
        texts=tuple(own.text for own in found) if kind == TEXTS else (),
        offsets=offsets,
        columns=columns,
    )


def _kind(own: Preview) -> str:
    return IMAGES if own.image is not None else TEXTS if own.text is not None else TABLE


def _bytes(own: Preview) -> int:
    """The size of a preview in an answer."""
    size = len(own.image or b"") + len((own.text or "").encode())
    size += 0 if own.offsets is None else own.offsets.nbytes
    return size + sum(len(value.encode()) if isinstance(value, str) else 8 for value in (own.row or {}).values())


def _why(error: Exception) -> str:
    """Why a function's result cannot be shown."""
    if not isinstance(error, BadInput):
        return f"reading it raised {_said(error)}."
    hint = "Give it without the axis of channels, or larger." if error.field == "channels" else error.hint
    return f"{error.message} {hint}".strip()


def _said(error: BaseException) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}".removesuffix(": ")
    except Exception:  # an error whose text cannot be made
        return name


def _name_of(preview: Any) -> str:
    return getattr(preview, "__name__", type(preview).__name__)

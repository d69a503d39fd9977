"""Arguments of questions as messages hold them, refused where they cannot."""

from __future__ import annotations

from typing import SupportsIndex

from dualform.errors import BadInput


def encode_text(value: str, field: str) -> str:
    """A text as it is; raises BadInput where UTF-8 cannot carry it (bytes of a command line that are no text)."""
    if not isinstance(value, str):
        raise BadInput(f"{field} is of type {type(value).__name__}, not a text.", field=field)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{field} is {value!r}, which is no valid text.", field=field) from None
    return value


def encode_optional_text(value: str | None, field: str) -> str | None:
    return None if value is None else encode_text(value, field)


def encode_int64(value: SupportsIndex, field: str) -> int:
    try:
        number = value.__index__()
    except AttributeError:
        raise BadInput(f"{field} holds {value!r}, which is no whole number.", field=field) from None
    if not -(2**63) <= number < 2**63:
        raise BadInput(f"{field} holds {number}, which is beyond 64 bits.", field=field)
    return number


def encode_optional_int64(value: SupportsIndex | None, field: str) -> int | None:
    return None if value is None else encode_int64(value, field)

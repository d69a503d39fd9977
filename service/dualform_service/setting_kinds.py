"""What a setting may be: each kind is read from the text of a flag or a variable, or from what a TOML file holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import R_OK, access
from pathlib import Path
from typing import Any, Literal

from dualform.store.byte_counts import bytes_of

Kind = Literal["text", "whole number", "number", "seconds", "bytes", "file", "yes or no"]


@dataclass(frozen=True)
class Reader:
    read: Callable[[Any], Any]
    """The value of what was said; raises ValueError."""
    wanted: str
    """Said of what cannot be read."""
    metavar: str


def _text(said: Any) -> str:
    return said if isinstance(said, str) and said else _refuse()


def _whole_number(said: Any) -> int:
    value = int(said) if isinstance(said, str) else said
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else _refuse()


def _number(said: Any) -> float:
    value = float(said) if isinstance(said, str | int | float) and not isinstance(said, bool) else 0.0
    return value if 0 < value < float("inf") else _refuse()


def _byte_count(said: Any) -> int:
    return bytes_of(int(said) if isinstance(said, str) and said.strip().isdecimal() else said)


def _file(said: Any) -> Path:
    file = Path(_text(said))
    return file if file.is_file() and access(file, R_OK) else _refuse()


def _yes_or_no(said: Any) -> bool:
    if isinstance(said, str):
        said = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(said.lower())
    return said if isinstance(said, bool) else _refuse()


def _refuse() -> Any:
    raise ValueError


KINDS: dict[Kind, Reader] = {
    "text": Reader(_text, "must not be empty", "TEXT"),
    "whole number": Reader(_whole_number, "must be a whole number above 0", "N"),
    "number": Reader(_number, "must be a number above 0", "N"),
    "seconds": Reader(_number, "must be a number above 0", "SECONDS"),
    "bytes": Reader(_byte_count, 'must be a number of bytes above 0, or a text with a unit, such as "2 GB"', "BYTES"),
    "file": Reader(_file, "must name a file that can be read", "FILE"),
    "yes or no": Reader(_yes_or_no, "must be true or false", ""),
}

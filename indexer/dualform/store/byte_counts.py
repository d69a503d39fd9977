"""Numbers of bytes, as people write and read them."""

from __future__ import annotations

import math
import re
from numbers import Integral
from typing import Any

from dualform.errors import BadInput

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def readable(count: float) -> str:
    """A number of bytes, for people."""
    unit, *larger = ("bytes", "kB", "MB", "GB", "TB")
    while count >= 1000 and larger:
        count, unit, *larger = (count / 1000, *larger)
    return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.3g} {unit}"


def bytes_of(said: Any, name: str = "budget") -> int:
    """Of an integer, or of a text such as "200 GB". Raises BadInput, by the argument's name, for anything else."""
    if isinstance(said, Integral) and not isinstance(said, bool) and int(said) > 0:
        return int(said)
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*", said) if isinstance(said, str) else None
    size = _UNITS.get(found[2].upper()) if found else None
    if found is None or size is None or not (whole := math.floor(float(found[1]) * size)):
        raise BadInput(
            f"{name} must be a number of bytes, or a text with a unit, not {said!r}.",
            hint=f'For example {name}="200 GB" or {name}=200_000_000_000.',
            field=name,
        )
    return whole

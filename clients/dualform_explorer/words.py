"""Numbers, durations and the tokens of a language model as text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from os import PathLike, fspath
from typing import Any

from dualform.errors import BadInput

_SEEN = str.maketrans(
    {" ": "\N{OPEN BOX}", "\n": "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}", "\t": "\N{RIGHTWARDS ARROW}"}
)
_UNDECODED = "\N{REPLACEMENT CHARACTER}"


_WHITE = re.compile(r"\A +| +\Z|[\n\t]")


def visible(text: str) -> str:
    """Show white space at either end, and line breaks and tabs everywhere, as visible signs."""
    return _WHITE.sub(lambda found: found[0].translate(_SEEN), text)


class Words:
    """The tokens of a tokenizer. Thread-safe."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer`: a tokenizer of the package `tokenizers`, or its file. Raises BadInput for anything else."""
        if isinstance(tokenizer, str | PathLike):
            tokenizer = _read(fspath(tokenizer))
        elif inner := getattr(tokenizer, "backend_tokenizer", None):  # a tokenizer of transformers
            tokenizer = inner
        if not hasattr(tokenizer, "id_to_token") or not hasattr(tokenizer, "decode"):
            raise BadInput(
                f"tokenizer must be a tokenizers.Tokenizer or its file, not {type(tokenizer).__name__}.",
                hint="Write one with tokenizer.save(FILE).",
                field="tokenizer",
            )
        self._tokenizer = tokenizer
        self.of: Callable[[int], str] = cache(self._made)
        """The text of a token, with visible white space; empty for an unknown number."""

    def _made(self, number: int) -> str:
        named = self._tokenizer.id_to_token(number) if number >= 0 else None
        if named is None:
            return ""
        text = self._tokenizer.decode([number], skip_special_tokens=False)
        return visible(named if not text or _UNDECODED in text else text)


def _read(path: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise BadInput(
            "A tokenizer needs the package tokenizers.", hint="pip install tokenizers", field="tokenizer"
        ) from None
    try:
        return Tokenizer.from_file(path)
    except Exception as error:  # the package raises no narrower class
        raise BadInput(
            f"{path} is not the file of a tokenizer: {error}.",
            hint="Write one with tokenizer.save(FILE), or pass the tokenizer.json of a model.",
            field="tokenizer",
        ) from None


MINUS, MISSING = "\N{MINUS SIGN}", "\N{EN DASH}"
_LEAST, _MOST = 1e-3, 1e6
"""Numbers of a size between these are written without an exponent."""


def rounded(value: float | int | None, digits: int = 3) -> str:
    """Rounded to significant digits. Whole numbers are kept, with thousands separators."""
    if value is None:
        return MISSING
    if isinstance(value, int):
        return f"{value:,}".replace("-", MINUS)
    if not math.isfinite(value):
        return MISSING if math.isnan(value) else f"{MINUS if value < 0 else ''}\N{INFINITY}"
    size = abs(value)
    if size and not _LEAST <= size < _MOST:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        return f"{mantissa}e{int(exponent)}".replace("-", MINUS)
    whole = math.floor(math.log10(size)) + 1 if size else 1
    text = f"{value:,.{max(0, digits - whole)}f}"
    return text.replace("-", MINUS) if float(text.replace(",", "")) else text.lstrip("-")


def decimals(largest: float, digits: int = 3) -> int:
    """The number of decimal places that gives numbers up to a size so many digits."""
    if not math.isfinite(largest) or largest <= 0:
        return digits - 1
    return min(8, max(0, digits - 1 - math.floor(math.log10(largest))))


def lasting(seconds: float) -> str:
    """An approximate duration: "8 s", "3 min", "2 h"."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1, round(seconds))} s"

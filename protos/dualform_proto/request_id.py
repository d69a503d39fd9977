"""The name of a call, by which its caller and the server's log speak of the same one.

It travels as the metadata `x-request-id`, in both directions. A caller may give its own; the server makes one where
there is none, or where it could not be printed safely in a log.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

KEY = "x-request-id"
_FORM = re.compile(r"[A-Za-z0-9._-]{1,64}")


def made() -> str:
    """One that nobody has had: 16 hexadecimal digits."""
    return secrets.token_hex(8)


def given(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The one that metadata hold, if it is 64 of [A-Za-z0-9._-] at most; empty otherwise."""
    for key, value in metadata:
        if key == KEY and isinstance(value, str) and _FORM.fullmatch(value):
            return value
    return ""

"""The metadata of a call.

`dualform-memory` names the memory to ask, for a server of several. It is known before any message, and percent-encoded,
which leaves names of letters, digits and ._-~ as they are. `x-request-id` names the call itself, in both directions, so
that its caller and the server's log speak of the same one. The server makes it if the caller gives none, or one that a
log could not print safely.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from typing import TypeAlias
from urllib.parse import quote, unquote

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]
MEMORY = "dualform-memory"
REQUEST_ID = "x-request-id"
_FORM = re.compile(r"[A-Za-z0-9._-]{1,64}")


def encode_memory(name: str) -> str:
    return quote(name, safe="")


def memory_of(metadata: Metadata) -> str:
    """The name of the memory; empty for none."""
    return unquote(next((value for key, value in metadata if key == MEMORY and isinstance(value, str)), ""))


def new_request_id() -> str:
    """One that nobody has had: 16 hexadecimal digits."""
    return secrets.token_hex(8)


def request_id_of(metadata: Metadata) -> str:
    """The first one that has at most 64 of the characters [A-Za-z0-9._-]; empty for none."""
    found = (value for key, value in metadata if key == REQUEST_ID and isinstance(value, str))
    return next((value for value in found if _FORM.fullmatch(value)), "")

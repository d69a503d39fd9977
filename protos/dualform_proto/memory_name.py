"""Which memory of a server a call asks: its name travels as the metadata `dualform-memory`, known before any message.

Clients write it behind the address, `host:port/NAME`. In metadata it is percent-encoded, which leaves names of letters,
digits and ._-~ as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote, unquote

from dualform_proto.address import is_address

KEY = "dualform-memory"


def split(target: str) -> tuple[str, str]:
    """Address and name of `host:port/NAME`; the name is empty where there is none."""
    address, _, name = target.partition("/")
    return address, name


def is_served(target: str) -> bool:
    """Whether a text has the form of `host:port` or `host:port/NAME`."""
    return is_address(split(target)[0])


def encoded(name: str) -> str:
    """As metadata hold it."""
    return quote(name, safe="")


def given(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The one that metadata hold; empty where they hold none."""
    for key, value in metadata:
        if key == KEY and isinstance(value, str):
            return unquote(value)
    return ""

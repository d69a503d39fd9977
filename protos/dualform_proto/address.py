"""Addresses `host:port`, `[host]:port` of IPv6, targets `host:port/NAME`, and the Host of HTTP requests."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from dualform.errors import BadInput

_FORM = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%\w+)?)\]|(?P<host>[^\s:/\[\]\\]+)):(?P<port>\d{1,5})")

_HOST = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::\d*)?")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""Names by which this machine asks itself, as a Host header has them."""


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    """0 lets the system choose a free one."""

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Raises BadInput where the text is no address."""
    form = _FORM.fullmatch(text)
    if form is None or int(form["port"]) > 65535:
        raise BadInput(
            f"{text!r} is no address.", hint="Write host:port, for example 127.0.0.1:50051.", field="address"
        )
    return Address(form["v6"] or form["host"], int(form["port"]))


def split_target(target: str) -> tuple[str, str]:
    """Address and memory of `host:port/NAME`; the memory is empty if the target has none."""
    address, _, name = target.partition("/")
    return address, name


def is_served(target: str) -> bool:
    """Whether a text has the form of `host:port` or `host:port/NAME`."""
    return _FORM.fullmatch(split_target(target)[0]) is not None


def host_of(header: str) -> str:
    """The name in a Host header, without its port, in lower case; empty where it has another form."""
    form = _HOST.fullmatch(header.lower())
    return form[1] if form else ""

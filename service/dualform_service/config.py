"""How a server is to run. A configuration checks itself: what cannot be served safely is refused when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dualform.errors import BadInput
from dualform_proto.address import Address, parse_address

DEFAULT_ADDRESS = "127.0.0.1:50051"
REQUEST_BYTES, ANSWER_BYTES = 4 * 2**20, 64 * 2**20
METADATA_BYTES = 64 * 2**10
"""Errors carry their details as metadata; gRPC's own bound of 8 KiB would cut long ones off."""


@dataclass(frozen=True)
class ServiceConfig:
    address: str = DEFAULT_ADDRESS
    """host:port; port 0 takes a free one."""
    token: str | None = field(default=None, repr=False)
    """What callers must present as `authorization: Bearer TOKEN`; None asks for none."""
    certificate: Path | None = None
    """PEM file of the server's certificate chain; with `key`, the server speaks TLS only."""
    key: Path | None = None
    max_concurrent: int = 4
    """Large questions held at once, of which two are worked on (lanes.py); one more is refused with Overloaded."""
    max_small: int = 128
    """Small questions held at once that are known to take little, as many others, most of them waiting for a scan that
    they share, and as many look-ups; one more of either is refused likewise."""
    request_bytes: int = REQUEST_BYTES
    """Largest request: a thousand queries of a thousand numbers."""
    answer_bytes: int = ANSWER_BYTES
    """Largest answer."""
    message_seconds: float = 10.0
    """In which a call's message must have come."""
    write_seconds: float = 10.0
    """In which a caller must take an answer, with one more for each MiB; else its connection is shut."""
    calls: int = 1024
    """Calls that there may be at once; one more is refused unread."""
    connection_calls: int = 512
    """Of which on one connection; others wait at their caller's."""
    deadline: float = 600.0
    """Seconds after which work stops for a caller that set no earlier deadline."""
    grace: float = 7.0
    """Seconds that running questions get to finish when the server drains."""
    follow: float = 5.0
    """Seconds between looks for newer commits of a training that still runs."""

    def __post_init__(self) -> None:
        for name in (
            "max_concurrent",
            "max_small",
            "request_bytes",
            "answer_bytes",
            "message_seconds",
            "write_seconds",
            "calls",
            "connection_calls",
            "deadline",
        ):
            if getattr(self, name) <= 0:
                raise BadInput(f"{name} is {getattr(self, name)}.", hint="It must be above 0.", field=name)
        if (self.certificate is None) != (self.key is None):
            raise BadInput(
                "TLS needs a certificate and its key, and only one was given.",
                hint="Give both --tls-cert and --tls-key.",
                field="certificate" if self.certificate is None else "key",
            )
        if self.token is not None and not (self.token and self.token.isascii() and self.token.isprintable()):
            raise BadInput("the token is empty or holds characters other than printable ASCII.", field="token")
        if not self.listen.loopback and (self.token is None or self.certificate is None):
            raise BadInput(
                f"{self.address} can be reached from other machines, which needs both TLS and a token.",
                hint="Give --tls-cert, --tls-key and --token-file, or listen on 127.0.0.1.",
                field="address",
            )

    @property
    def listen(self) -> Address:
        return parse_address(self.address)

"""How a server is to run. A configuration checks itself: what cannot be served safely is refused when it is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from math import inf
from pathlib import Path

from dualform.errors import BadInput
from dualform.query.bounds import QuestionBounds
from dualform_proto.address import Address, parse_address

DEFAULT_ADDRESS = "127.0.0.1:50051"
REQUEST_BYTES, ANSWER_BYTES = 4 * 2**20, 64 * 2**20
WHERE_BYTES, WHERE_NODES = 64 * 2**10, 10_000
PATTERNS, PATTERN_LETTERS = 16, 256
METADATA_BYTES = 64 * 2**10
"""Errors carry their details as metadata; gRPC's own bound of 8 KiB would cut long ones off."""


@dataclass(frozen=True)
class ServiceConfig:
    address: str = DEFAULT_ADDRESS
    """host:port; port 0 takes a free one."""
    token: str | None = field(default=None, repr=False)
    """What callers must present as `authorization: Bearer TOKEN`; None asks for none."""
    token_file: Path | None = None
    """File of the tokens that callers may present (auth.py), in place of `token`; read again when it changes."""
    token_rate: float | None = None
    """Questions a second of one caller, as many at once; None: as many as come."""
    certificate: Path | None = None
    """PEM file of the server's certificate chain; with `key`, the server speaks TLS only."""
    key: Path | None = None
    client_authority: Path | None = None
    """PEM file of the authorities whose certificates callers must have, beside a token; None asks for none."""
    sql: bool = False
    """Whether statements of SQL are answered."""
    max_concurrent: int = 4
    """Large questions held at once, of which two are worked on (scheduling.py); one more is refused with Overloaded."""
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
    metrics: str | None = None
    """host:port where metrics are scraped (metrics.py); None for nowhere."""
    explore: str | None = None
    """host:port of pages for browsers, which another process beside this one answers with; None for none."""
    follow: float = 5.0
    """Seconds between looks for newer commits of a training that still runs."""

    def __post_init__(self) -> None:
        for fault in self._faults():
            raise fault

    def _faults(self) -> Iterator[BadInput]:
        yield from self._faulty_numbers()
        if (self.certificate is None) != (self.key is None):
            yield BadInput(
                "TLS needs a certificate and its key, and only one was given.",
                hint="Give both --tls-cert and --tls-key.",
                field="certificate" if self.certificate is None else "key",
            )
        if self.client_authority is not None and self.certificate is None:
            yield BadInput(
                "--tls-client-ca needs TLS, but the server has no certificate.",
                hint="Give --tls-cert and --tls-key, too.",
                field="client_authority",
            )
        if self.token is not None and not (self.token and self.token.isascii() and self.token.isprintable()):
            yield BadInput(
                "token must be printable ASCII that is not empty.", hint="Make one: dualform token NAME", field="token"
            )
        if self.token is not None and self.token_file is not None:
            yield BadInput("token and token_file cannot be combined.", hint="Give one of them.", field="token")
        if self.client_authority is not None and self.explore is not None:
            yield BadInput(
                "--explore cannot be combined with --tls-client-ca: its pages have no certificate.",
                hint="Serve the pages separately: dualform explore HOST:PORT --tls-cert FILE --tls-key FILE.",
                field="explore",
            )
        for name, address in (("address", self.address), ("metrics", self.metrics), ("explore", self.explore)):
            if address is not None:
                yield from self._faults_of(name, address)

    def _faulty_numbers(self) -> Iterator[BadInput]:
        """Every field that is a number must bound something; only the grace may be none."""
        for own in fields(self):
            value = getattr(self, own.name)
            if own.type == "int" and not (isinstance(value, int) and value > 0):
                yield BadInput(f"{own.name} must be a whole number above 0, not {value}.", field=own.name)
            if own.type in ("float", "float | None") and value is not None:
                enough = value >= 0 if own.name == "grace" else value > 0
                if not (enough and value < inf):
                    least = "of at least" if own.name == "grace" else "above"
                    yield BadInput(f"{own.name} must be a finite number {least} 0, not {value}.", field=own.name)

    def _faults_of(self, name: str, address: str) -> Iterator[BadInput]:
        try:
            loopback = parse_address(address).loopback
        except BadInput as error:
            error.field = name
            yield error
            return
        if not loopback and (not self.asks_for_tokens or self.certificate is None):
            yield BadInput(
                f"{address} can be reached from other machines, which needs both TLS and a token.",
                hint="Give --tls-cert, --tls-key and --token-file, or listen on 127.0.0.1.",
                field=name,
            )

    @property
    def scheme(self) -> str:
        """Of addresses where metrics are scraped."""
        return "http" if self.certificate is None else "https"

    @property
    def asks_for_tokens(self) -> bool:
        return self.token is not None or self.token_file is not None

    @property
    def of_questions(self) -> QuestionBounds:
        """Of each question."""
        return QuestionBounds(
            answer_bytes=self.answer_bytes,
            where_bytes=WHERE_BYTES,
            where_nodes=WHERE_NODES,
            patterns=PATTERNS,
            pattern_letters=PATTERN_LETTERS,
        )

    @property
    def listen(self) -> Address:
        return parse_address(self.address)

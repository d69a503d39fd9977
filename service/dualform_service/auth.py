"""Who asks: callers by their tokens, and what each may ask.

A token file has a line for each token: `NAME SCOPES sha256:HEX`. It holds no token, so whoever reads it learns none;
looking up a digest tells nothing by the time it takes. Health checks need no token, so that whoever restarts the server
holds no secret.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dualform.errors import BadInput, Forbidden, Unauthenticated

READ, SQL, ADMIN, METRICS = "read", "sql", "admin", "metrics"
SCOPES = {
    READ: "to ask questions",
    SQL: "to run SQL",
    ADMIN: "to verify the memory or use reflection",
    METRICS: "scraping metrics",
}
"""What each allows."""
_SCOPE_OF = {"Sql": SQL, "Verify": ADMIN, "ServerReflectionInfo": ADMIN, METRICS: METRICS}
"""By method; READ of those that are not here."""
_LINE = re.compile(r"(?P<name>[\w.@-]{1,64}) (?P<scopes>[a-z]+(?:,[a-z]+)*) sha256:(?P<digest>[0-9a-f]{64})")
BYTES = 32
"""Of a token that is made here: none can be guessed, so a plain digest protects it."""
SHORTEST = 16
"""Characters of a token that stands in a file as it is."""


@dataclass(frozen=True)
class Caller:
    name: str
    """Of the token; empty where none is asked for, or there is only one without a name."""
    scopes: frozenset[str]

    def check(self, method: str) -> None:
        """Raises Forbidden where the caller may not use a method."""
        needed = _SCOPE_OF.get(method, READ)
        if needed not in self.scopes:
            raise Forbidden(
                f"The token is not allowed {SCOPES[needed]}.",
                hint=f"Use one whose line in the server's token file has the scope {needed!r}.",
            )


ANYONE = Caller("", frozenset(SCOPES))
"""Where no token is asked for."""


class Tokens(dict[bytes, Caller]):
    """Those that a server knows: callers by the digests of their tokens."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of all callers; "" is that of a token in plain text."""
        return tuple(caller.name for caller in self.values())

    def caller(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
        """Whose token stands in `authorization: Bearer TOKEN`. Raises Unauthenticated where it is missing or wrong."""
        presented = dict(metadata).get("authorization")
        if presented is None:
            raise _refused("This server requires a token.")
        data = presented if isinstance(presented, bytes) else presented.encode()
        scheme, _, token = data.partition(b" ")
        found = self.get(_digest(token)) if scheme.lower() == b"bearer" else None
        if found is None:
            raise _refused("The token is wrong.")
        return found


def single_token(token: str) -> Tokens:
    """A token without a name, which allows everything."""
    return Tokens({_digest(token.encode()): ANYONE})


def read_tokens(file: Path) -> Tokens:
    """Of a token file, or of one whose first line is a token itself.

    Raises BadInput for a file that cannot be read or that others may write, for lines that are none, and for a token
    that others may read or that is short.
    """
    lines, mode = token_lines(file)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _unfit(file, "other users may write to it", f"Run chmod go-w {file}")
    own = [(number, line) for number, line in enumerate(lines, 1) if line and not line.startswith("#")]
    if not own:
        raise _unfit(file, "it is empty", "Add a line printed by dualform token NAME")
    if " " not in own[0][1]:
        return _bare(file, own[0][1], mode)
    callers = Tokens()
    for number, line in own:
        found = _LINE.fullmatch(line)
        scopes = frozenset(found["scopes"].split(",")) if found else frozenset()
        if found is None or not scopes <= SCOPES.keys():
            raise _unfit(
                file,
                f"its line {number} is not of the form NAME SCOPES sha256:HEX",
                f"Use a line printed by dualform token NAME; scopes are {', '.join(SCOPES)}.",
            )
        if any(one.name == found["name"] for one in callers.values()):
            raise _unfit(file, f"its line {number} names {found['name']} again", "Give each token its own name.")
        callers[bytes.fromhex(found["digest"])] = Caller(found["name"], scopes)
    if len(callers) < len(own):
        raise _unfit(file, "two of its lines have the same token", "Make one for each: dualform token NAME")
    return callers


def new_token(name: str, scopes: Iterable[str]) -> tuple[str, str]:
    """A token, and the line of a token file for it. Raises BadInput for a name or scopes that no line can have."""
    token = secrets.token_urlsafe(BYTES)
    line = f"{name} {','.join(scopes)} sha256:{_digest(token.encode()).hex()}"
    found = _LINE.fullmatch(line)
    if found is None or found["name"] != name:
        raise BadInput(f"{name!r} cannot name a token.", hint="Use 1 to 64 letters, digits, or . _ @ -", field="name")
    if unknown := set(found["scopes"].split(",")) - SCOPES.keys():
        raise BadInput(f"Unknown scope {sorted(unknown)[0]!r}.", hint=f"Scopes: {', '.join(SCOPES)}.", field="scopes")
    return token, line


def _bare(file: Path, token: str, mode: int) -> Tokens:
    make = "Store only a digest in the file: dualform token NAME"
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        raise _unfit(
            file,
            "it holds a token in plain text, and other users may read it",
            f"Run chmod go-r {file}, or better: {make}",
        )
    if len(token) < SHORTEST:
        raise _unfit(file, f"its token has fewer than {SHORTEST} characters", make)
    if not token.isprintable():
        raise _unfit(file, "its token contains characters that a header cannot carry", make)
    return single_token(token)


def token_lines(file: Path) -> tuple[list[str], int]:
    """The lines of a file, without blanks around them, and its mode. Raises BadInput for a file that cannot be read."""
    try:
        with file.open(encoding="ascii") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            return [line.strip() for line in stream.read().splitlines()], mode
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds characters other than ASCII"
        raise BadInput(f"The token file {file} cannot be read: {reason}.", field="token_file") from None


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _unfit(file: Path, why: str, hint: str) -> BadInput:
    return BadInput(f"The token file {file} cannot be used: {why}.", hint=hint, field="token_file")


def _refused(message: str) -> Unauthenticated:
    return Unauthenticated(message, hint="Give a token (--token-file FILE on the command line).")

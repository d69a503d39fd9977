"""The token that callers present. Health checks need none, so that whoever restarts the server holds no secret."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable

from dualform.errors import Unauthenticated


class Token:
    """What a call's metadata must hold as `authorization: Bearer TOKEN`."""

    def __init__(self, token: str, refused: Callable[[], object] = lambda: None) -> None:
        """`refused` is told of each call that is."""
        self._expected, self._told = token.encode(), refused

    def check(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Raises Unauthenticated where it is missing or wrong."""
        try:
            self._compare(dict(metadata).get("authorization"))
        except Unauthenticated:
            self._told()
            raise

    def _compare(self, presented: str | bytes | None) -> None:
        if presented is None:
            raise _refused("The server asks for a token, and none was given.")
        data = presented if isinstance(presented, bytes) else presented.encode()
        scheme, _, token = data.partition(b" ")
        # Compared in constant time: how long a refusal takes must not tell how much of the token was right.
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token, self._expected):
            raise _refused("The token is not the server's.")


def _refused(message: str) -> Unauthenticated:
    return Unauthenticated(message, hint="Give Client(token=...), or --token-file on the command line.")

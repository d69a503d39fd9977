"""Whether a server takes questions, by the standard gRPC health check.

The check is one message of one number, read here by hand: the package that defines it belongs to the server's extra.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from dualform_client.connection import Connection

_CHECK = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"
"""HealthCheckResponse{status: SERVING}."""


def is_serving(
    address: str,
    *,
    timeout: float = 5.0,
    authority: str | Path | None = None,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
) -> bool:
    """False while the server drains. `timeout` in seconds. Raises Unavailable where nobody answers."""
    connection = Connection(address, timeout, authority=authority, certificate=certificate, key=key)
    credentials, options = connection.credentials(), connection.options()
    opened = (
        grpc.insecure_channel(address, options)
        if credentials is None
        else grpc.secure_channel(address, credentials, options)
    )
    with opened as channel:
        try:
            check: Any = channel.unary_unary(_CHECK)
            response: bytes = check(b"", timeout=timeout)
        except grpc.RpcError as status:
            raise connection.error(status) from None
    return response == _SERVING

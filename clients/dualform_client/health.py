"""Whether a server takes questions, by the standard gRPC health check.

The check is one message of one number, read here by hand: the package that defines it belongs to the server's extra.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from dualform.errors import BadInput, NotFound
from dualform_client.connection import Connection

_CHECK = "/grpc.health.v1.Health/Check"
_SERVICE = "dualform.v1.Memory"
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
    """Whether a server answers, or one of its memories (`host:port/NAME`): False while it drains, and once the folder
    is gone. `timeout` in seconds. Raises Unavailable where nobody answers, NotFound where there is no such memory.
    """
    connection = Connection(address, timeout, authority=authority, certificate=certificate, key=key)
    credentials, options = connection.credentials(), connection.options()
    opened = (
        grpc.insecure_channel(connection.address, options)
        if credentials is None
        else grpc.secure_channel(connection.address, credentials, options)
    )
    with opened as channel:
        try:
            check: Any = channel.unary_unary(_CHECK)
            response: bytes = check(_request(connection.memory), timeout=timeout)
        except grpc.RpcError as status:
            error = connection.error(status)
            if isinstance(error, NotFound) and connection.memory:
                error = NotFound(
                    f"The server at {connection.address} has no memory {connection.memory!r}.",
                    hint=f"Ask for the server as a whole: dualform health {connection.address}",
                    field="target",
                )
            raise error from None
    return response == _SERVING


def _request(memory: str) -> bytes:
    """HealthCheckRequest{service}; empty for the server as a whole."""
    if not memory:
        return b""
    service = f"{_SERVICE}/{memory}".encode()
    if len(service) >= 2**14:
        raise BadInput("The memory's name is too long.", field="target")
    low, high = len(service) & 127, len(service) >> 7
    return b"\x0a" + (bytes((low | 128, high)) if high else bytes((low,))) + service

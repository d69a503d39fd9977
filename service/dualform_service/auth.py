"""The token that callers present. Health checks need none, so that whoever restarts the server holds no secret."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

import grpc

from dualform.errors import Unauthenticated
from dualform_service.refusal import refusal

_OPEN = "/grpc.health.v1.Health/"


class TokenInterceptor(grpc.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """Refuses every call whose metadata lacks `authorization: Bearer TOKEN`."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        if handler_call_details.method.startswith(_OPEN):
            return continuation(handler_call_details)
        presented = dict(handler_call_details.invocation_metadata).get("authorization")
        if presented is None:
            return _refused("The server asks for a token, and none was given.")
        data = presented if isinstance(presented, bytes) else presented.encode()
        # Compared in constant time: how long a refusal takes must not tell how much of the token was right.
        if not hmac.compare_digest(data, self._expected):
            return _refused("The token is not the server's.")
        return continuation(handler_call_details)


def _refused(message: str) -> grpc.RpcMethodHandler[Any, Any]:
    return refusal(Unauthenticated(message, hint="Give Client(token=...), or --token-file on the command line."))

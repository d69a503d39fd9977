"""What an interceptor has a call answered with that it refuses."""

from __future__ import annotations

from typing import Any

import grpc

from dualform.errors import DualformError
from dualform_proto.errors import to_status


def refusal(error: DualformError) -> grpc.RpcMethodHandler[Any, Any]:
    """The handler that ends a call with the status of an error."""

    def refuse(_request: bytes, context: grpc.ServicerContext) -> None:
        context.abort_with_status(to_status(error))

    return grpc.unary_unary_rpc_method_handler(refuse)

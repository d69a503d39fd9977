"""The standard services beside ours: gRPC health checking and reflection."""

from __future__ import annotations

from typing import Any

import grpc

from dualform.errors import MissingPackage
from dualform_proto.v1 import dualform_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["Memory"].full_name


class Health:
    """Says SERVING for the server as a whole and for dualform.v1.Memory, until it drains."""

    def __init__(self, server: grpc.Server) -> None:
        try:
            from grpc_health.v1 import health, health_pb2, health_pb2_grpc
            from grpc_reflection.v1alpha import reflection
        except ImportError as error:
            raise MissingPackage(
                f"Serving needs {error.name}, which is not installed.", hint="Install it: pip install 'dualform[serve]'"
            ) from None
        self._servicer: Any = health.HealthServicer()
        self._serving = health_pb2.HealthCheckResponse.SERVING
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)

    def serving(self) -> None:
        for name in ("", SERVICE):
            self._servicer.set(name, self._serving)

    def draining(self) -> None:
        """NOT_SERVING from here on, whatever is set later."""
        self._servicer.enter_graceful_shutdown()

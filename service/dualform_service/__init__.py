"""A thin gRPC shell over an engine: `serve` for a process of its own, `Server` inside another one."""

from __future__ import annotations

from dualform_service.config import ServiceConfig as ServiceConfig
from dualform_service.server import Server as Server, serve as serve

__all__ = ["Server", "ServiceConfig", "serve"]

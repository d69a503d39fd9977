"""A thin gRPC shell over an engine: `serve` for a process of its own, `Server` inside another one."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dualform.extras import missing_package

if TYPE_CHECKING:
    from dualform_service.server import Server as Server, serve as serve
    from dualform_service.settings import ServiceConfig as ServiceConfig

_HOME = {"Server": "server", "ServiceConfig": "settings", "serve": "server"}

__all__ = ["Server", "ServiceConfig", "serve"]


def __getattr__(name: str) -> Any:
    """What is first used is loaded then: the command line's help names settings, and needs no server."""
    if name not in _HOME:
        raise AttributeError(f"module 'dualform_service' has no attribute {name!r}")
    try:
        value = getattr(import_module(f"dualform_service.{_HOME[name]}"), name)
    except ImportError as error:
        raise missing_package(error) or error from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

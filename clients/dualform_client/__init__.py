"""Asks a memory served elsewhere. Needs neither torch nor faiss nor duckdb.

    with dualform_client.Client("localhost:50051") as memory:
        memory.topk("layers.0", "test-mnist/17", k=10, where="dataset <> 'fashion-mnist'")

`AsyncClient` is the same with `await`; `connect` takes a folder or an address.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dualform_client.client import AsyncClient as AsyncClient, Client as Client
    from dualform_client.target import connect as connect

_HOME = {"AsyncClient": "client", "Client": "client", "connect": "target"}

__all__ = ["AsyncClient", "Client", "connect"]


def __getattr__(name: str) -> Any:
    """What is first used is loaded then: a command that asks a folder needs no gRPC."""
    if name not in _HOME:
        raise AttributeError(f"module 'dualform_client' has no attribute {name!r}")
    value = getattr(import_module(f"dualform_client.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

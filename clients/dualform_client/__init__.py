"""Asks a memory served elsewhere. Needs neither torch nor faiss nor duckdb.

    with dualform_client.Client("localhost:50051") as memory:
        memory.topk("layers.0", "test-mnist/17", k=10, where="dataset <> 'fashion-mnist'")

`AsyncClient` is the same with `await`; `connect` takes a folder or an address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualform.extras import loaded_on_use

if TYPE_CHECKING:
    from dualform_client.client import AsyncClient as AsyncClient, Client as Client
    from dualform_client.target import connect as connect

__all__ = ["AsyncClient", "Client", "connect"]

_HOMES = {"AsyncClient": "client", "Client": "client", "connect": "target"}
__getattr__ = loaded_on_use(__name__, {name: (f"{__name__}.{home}", name) for name, home in _HOMES.items()})
"""A command that asks a folder needs no gRPC."""


def __dir__() -> list[str]:
    return __all__

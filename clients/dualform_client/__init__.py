"""Asks a memory served elsewhere. Needs neither torch nor faiss nor duckdb.

    with dualform_client.Client("localhost:50051") as memory:
        memory.topk("layers.0", "test-mnist/17", k=10, where="dataset <> 'fashion-mnist'")

`AsyncClient` is the same with `await`; `connect` takes a folder or an address.
"""

from __future__ import annotations

from dualform_client.async_client import AsyncClient as AsyncClient
from dualform_client.client import Client as Client
from dualform_client.target import connect as connect

__all__ = ["AsyncClient", "Client", "connect"]

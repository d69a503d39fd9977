"""Whoever answers, asked in one way: a method by name, with arguments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dualform
from dualform_client import AsyncClient, Client

Ask = Callable[..., Any]


def opened(run: Path, address: str, method: str, arguments: Any, named: Any) -> Any:
    with dualform.open(run) as memory:
        return getattr(memory, method)(*arguments, **named)


def client(run: Path, address: str, method: str, arguments: Any, named: Any) -> Any:
    with Client(address) as memory:
        return getattr(memory, method)(*arguments, **named)


def async_client(run: Path, address: str, method: str, arguments: Any, named: Any) -> Any:
    async def ask() -> Any:
        async with AsyncClient(address) as memory:
            return await getattr(memory, method)(*arguments, **named)

    return asyncio.run(ask())


ANSWERERS = (opened, client, async_client)

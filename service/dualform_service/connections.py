"""The sockets of this process: how many it may have, and each by the addresses of both its ends.

gRPC has no way to drop a single connection.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable, Collection, Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from queue import Empty, SimpleQueue
from typing import TypeAlias
from urllib.parse import unquote

Place: TypeAlias = tuple[IPv4Address | IPv6Address, int]

FILES = 1 << 16
"""That a server wants to be let have open, each connection being one."""


def raise_limit() -> None:
    """Has the system let this process have FILES open files, or as many as it may ask for: most begin with 1,024."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        if resource.RLIM_INFINITY != soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Shutter:
    """Shuts connections to one port, on a thread of its own, as it looks through all files of the process."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._pool = ThreadPoolExecutor(1, "dualform-shut")
        self._wanted, self._found = SimpleQueue[str](), set[str]()

    def shut(self, peer: str, then: Callable[[bool], object]) -> None:
        """Shuts the connection of a peer, as gRPC writes it, soon. `then` is called on the loop with whether it was
        found; the call that asks for this may have been cancelled by it."""
        self._wanted.put(peer)
        looking = asyncio.get_running_loop().run_in_executor(self._pool, self._shut_all)
        looking.add_done_callback(lambda _: then(self._was_found(peer)))

    def _was_found(self, peer: str) -> bool:
        found = peer in self._found
        self._found.discard(peer)
        return found

    def close(self) -> None:
        self._pool.shutdown()

    def _shut_all(self) -> None:
        """All that are wanted so far, in one look: whoever waits behind finds its own done."""
        peers = set[str]()
        with suppress(Empty):
            while True:
                peers.add(self._wanted.get_nowait())
        if peers:
            self._found |= shut(peers, self._port)


def shut(peers: Collection[str], port: int) -> set[str]:
    """Shuts the connections of peers, as gRPC writes them, to a port of ours; returns those that were found.

    Where the system does not list a process's files nothing happens, and a call's deadline ends it.
    """
    wanted = {place: peer for peer in peers if (place := _place(peer)) is not None}
    found = set[str]()
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd") if wanted else ():
            with suppress(OSError, ValueError):
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode) and (place := _shut_if(int(name), wanted, port)):
                    found.add(wanted[place])
    return found


def _place(peer: str) -> Place | None:
    """The far end's address; None of what has none."""
    kind, _, place = peer.partition(":")
    host, _, number = unquote(place).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not number.isdigit():
        return None
    return _plain(host.strip("[]")), int(number)


def _shut_if(file: int, wanted: Container[Place], port: int) -> Place | None:
    """The far end of what was shut."""
    # A file of our own, for gRPC may close its one at any moment, and another may get that number.
    with socket.socket(fileno=os.dup(file)) as own:
        if own.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        peer = own.getpeername()
        place = _plain(peer[0]), peer[1]
        if place not in wanted or own.getsockname()[1] != port:
            return None
        own.shutdown(socket.SHUT_RDWR)
        return place


def _plain(host: str) -> IPv4Address | IPv6Address:
    """Sockets of IPv6 that serve both write ::ffff:127.0.0.1. Raises ValueError for what is no address."""
    address = ip_address(host)
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address

"""The sockets of this process: how many it may have, and each by the addresses of both its ends.

gRPC has no way to drop a single connection.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import unquote

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


def shut(peer: str, port: int) -> bool:
    """Shuts the connection of a peer, as gRPC writes it, to a port of ours; returns whether it was found.

    Where the system does not list a process's files nothing happens, and the call's deadline ends it.
    """
    kind, _, place = peer.partition(":")
    host, _, number = unquote(place).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not number.isdigit():
        return False
    far = _plain(host.strip("[]")), int(number)
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError, ValueError):
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode) and _shut_if(int(name), far, port):
                    return True
    return False


def _shut_if(file: int, far: tuple[IPv4Address | IPv6Address, int], port: int) -> bool:
    # A file of our own, for gRPC may close its one at any moment, and another may get that number.
    with socket.socket(fileno=os.dup(file)) as own:
        if own.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        peer = own.getpeername()
        if (_plain(peer[0]), peer[1]) != far or own.getsockname()[1] != port:
            return False
        own.shutdown(socket.SHUT_RDWR)
        return True


def _plain(host: str) -> IPv4Address | IPv6Address:
    """Sockets of IPv6 that serve both write ::ffff:127.0.0.1. Raises ValueError for what is no address."""
    address = ip_address(host)
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address

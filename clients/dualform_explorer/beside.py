"""Pages beside a server of memories, in the same terms: its tokens, its TLS, and its end."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dualform_explorer.application import DEADLINE, Pages
from dualform_explorer.guard import Guard
from dualform_explorer.memories import Memories
from dualform_explorer.rendering import templates
from dualform_explorer.server import run
from dualform_explorer.visitors import Opened, Visitors
from dualform_proto.address import LOOPBACK, parse_address


@dataclass(frozen=True)
class BesideConfig:
    address: str
    """host:port of the pages. The server has seen to it that one which others can reach has tokens and TLS."""
    tokens: bool
    """Whether the server asks for tokens; then visitors must bring theirs."""
    pair: tuple[Path, Path] | None = None
    """Reconstruction error and key of the TLS that is spoken."""


def serve_beside(
    config: BesideConfig,
    connect: Callable[[str | None], Opened],
    listening: socket.socket,
    wait: Callable[[], object],
) -> None:
    """Until `wait` returns. `connect`: the server's memories, as asked with a token."""
    door = templates().get_template("door.html").render()
    pages = (
        Visitors(connect, door, DEADLINE) if config.tokens else Pages(Memories(connect(None)), DEADLINE).application()
    )
    # With TLS a browser has held the server to its name; without, a page elsewhere could give its own name our address.
    host = parse_address(config.address).host
    hosts = None if config.pair is not None else {*LOOPBACK, host.lower()}
    run(Guard(pages, hosts, door), listening, wait, config.pair)

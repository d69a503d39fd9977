"""The pages on an address of this machine, until the process is interrupted."""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from dualform.errors import BadInput
from dualform.methods import Answers
from dualform_explorer.application import DEADLINE, Pages
from dualform_explorer.guard import Guard
from dualform_explorer.look_function import LookFunction
from dualform_explorer.memories import Memories
from dualform_explorer.rendering import templates
from dualform_proto.address import parse_address

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_CLOSING_SECONDS = 3
_BACKLOG = 128


@dataclass(frozen=True)
class ExplorerConfig:
    address: str
    """host:port; port 0 is a free one."""
    hosts: Collection[str] = ()
    """Further names that requests may be addressed to, as those of a proxy in front."""
    token: str | None = None
    """That visitors must have; None asks for none, on addresses of this machine alone."""
    root_path: str = ""
    """Where a proxy in front has the pages, as /explorer."""
    deadline: float = DEADLINE
    """Seconds that a panel may take."""

    def __post_init__(self) -> None:
        if self.token is None and not parse_address(self.address).loopback:
            raise BadInput(
                f"{self.address} can be reached from other machines, and no token is asked for.",
                hint="Give --access FILE, whose first line is the token, or listen on 127.0.0.1.",
                field="address",
            )
        if not self.deadline > 0:
            raise BadInput(f"deadline is {self.deadline}.", hint="It is a number of seconds.", field="deadline")
        if self.root_path and not self.root_path.startswith("/"):
            raise BadInput(f"root_path is {self.root_path!r}.", hint="It begins with a slash.", field="root_path")


def application(memories: Memories, config: ExplorerConfig) -> Guard:
    """The pages behind their guard, as any ASGI server runs them."""
    host, _, _ = config.address.rpartition(":")
    names = {name.lower() for name in (host, *config.hosts)}
    if parse_address(config.address).loopback:
        names |= set(LOOPBACK)
    door = templates().get_template("door.html").render()
    return Guard(
        Pages(memories, config.deadline).application(), names, door, config.token, config.root_path.rstrip("/")
    )


def serve(
    opened: Mapping[str, Callable[[], Answers]],
    config: ExplorerConfig,
    ready: Callable[[str], None],
    browse: bool = False,
    look: LookFunction | None = None,
) -> None:
    """Until the process is interrupted. `ready` is told the address of the start page. `look`: what training samples
    look like, in place of the galleries of datasets.

    Raises BadInput where the address cannot be had.
    """
    listening = listening_at(config.address)
    url = url_of(config, listening)
    guarded = application(Memories(opened, look), config)
    ready(url)
    if browse:
        webbrowser.open(url)
    run(guarded, listening)


def url_of(config: ExplorerConfig, listening: socket.socket) -> str:
    """Of the start page."""
    host, port = config.address.rpartition(":")[0], listening.getsockname()[1]
    return f"http://{host}:{port}{config.root_path.rstrip('/')}/"


def run(
    guarded: Guard,
    listening: socket.socket,
    wait: Callable[[], object] | None = None,
    pair: tuple[Path, Path] | None = None,
) -> None:
    """Until the process is interrupted, or `wait`, in a thread of its own, returns. `pair`: certificate and key of the
    TLS that is spoken.
    """
    server = uvicorn.Server(
        uvicorn.Config(
            guarded,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_CLOSING_SECONDS,
            ssl_certfile=None if pair is None else pair[0],
            ssl_keyfile=None if pair is None else pair[1],
        )
    )
    if wait is not None:

        def end() -> None:
            wait()
            server.should_exit = True

        threading.Thread(target=end, name="dualform-explorer-end", daemon=True).start()
    with suppress(KeyboardInterrupt), listening:
        server.run(sockets=[listening])


def listening_at(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    name = host.strip("[]")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((name, int(port)))
        found.listen(_BACKLOG)  # whoever is told the address may ask at once
    except (OSError, OverflowError) as error:
        found.close()
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BadInput(
            f"Nothing can listen at {address}: {why}.", hint="Give another --address.", field="address"
        ) from None
    return found

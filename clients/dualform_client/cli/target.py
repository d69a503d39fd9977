"""TARGET: a memory's folder, answered in this process, or host:port, answered over gRPC."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dualform.errors import BadInput
from dualform.methods import Answers
from dualform_client.cli.options import Decorator, connection_options
from dualform_client.cli.suggestions import complete_folder
from dualform_client.target import check_folder, connect
from dualform_proto.address import is_served

if TYPE_CHECKING:
    from dualform.query.engine import Bound

REACH = ("token_file", "tls", "authority", "certificate", "key", "timeout")
"""Options that say how to reach a server."""


def check_run(path: str) -> None:
    """Raises NotAMemory if there is no such folder, BadInput for an address."""
    if not Path(path).exists() and is_served(path):
        raise BadInput(
            f"{path} is a server, and this command needs the memory's folder.",
            hint="Run it on the machine that has the folder.",
            field="target",
        )
    check_folder(Path(path))


def connected(target: str, ram: Bound | None = None, **reach: Any) -> Answers:
    """Opens the folder or connects to the server, to be closed; `reach` has a value for each of REACH.

    Raises NotAMemory or BadInput if the target is neither.
    """
    file = reach.pop("token_file")
    return connect(target, token=read_token(file) if file and not Path(target).exists() else None, ram=ram, **reach)


def read_token(file: Path) -> str:
    """The first line of a file. Raises BadInput if it cannot be read or is blank."""
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds characters other than ASCII"
        raise BadInput(f"The token file {file} cannot be read: {reason}.", field="token_file") from None
    if not lines or not lines[0].strip():
        raise BadInput(
            f"The token file {file} is blank.", hint="Write the token in its first line.", field="token_file"
        )
    return lines[0].strip()


def asks_target(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the argument TARGET and its options to a command, which is called with the open memory."""

    @wraps(command)
    def opened(place: str, ram: str | None, **rest: Any) -> Any:
        reach = {name: rest.pop(name) for name in REACH}
        with connected(place, ram, **reach) as answers:
            return command(answers, **rest)

    return reaching(opened, "place")


def asks_two_targets(command: Callable[..., Any]) -> Callable[..., Any]:
    """As `asks_target`, for two TARGETs A and B; the command is called with both memories in a tuple."""

    @wraps(command)
    def opened(a: str, b: str, ram: str | None, **rest: Any) -> Any:
        reach = {name: rest.pop(name) for name in REACH}
        served = [not Path(target).exists() and is_served(target) for target in (a, b)]
        # It is for the folder, if only one is; two folders share it.
        bound = ram if ram is None or any(served) else _shared_bound(ram)
        own = [None if one and not all(served) else bound for one in served]
        with connected(a, own[0], **reach) as first, connected(b, own[1], **reach) as second:
            return command((first, second), **rest)

    return reaching(opened, "a", "b")


def _shared_bound(ram: str) -> Bound:
    from dualform.store.byte_counts import bytes_of
    from dualform.store.ram_budget import RamBudget

    return RamBudget.shared(bytes_of(ram, "ram"))


def reaching(command: Callable[..., Any], *targets: str) -> Callable[..., Any]:
    """Adds these arguments and the connection options to a command."""
    names = {"place": "TARGET"}
    arguments = [
        click.argument(name, metavar=names.get(name, name.upper()), shell_complete=complete_folder) for name in targets
    ]
    given: tuple[Decorator, ...] = (*arguments, *connection_options)
    for decorator in reversed(given):
        command = decorator(command)
    return command

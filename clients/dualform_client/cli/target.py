"""TARGET: a memory's folder, answered in this process, or host:port, answered over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dualform.errors import BadInput
from dualform.methods import Answers
from dualform_client.cli.suggestions import complete_folder
from dualform_client.target import check_folder, connect
from dualform_proto.memory_name import is_served

if TYPE_CHECKING:
    from dualform.query.engine import Bound

NOT_SERVED = "This needs the memory's folder, not a server."


def check_run(path: str) -> None:
    """Raises NotAMemory where there is no such folder, BadInput for an address."""
    if not Path(path).exists() and is_served(path):
        raise BadInput(NOT_SERVED, hint="Run it where the memory lies.", field="target")
    check_folder(Path(path))


REACH = ("token_file", "tls", "tls_ca", "tls_cert", "tls_key", "timeout")
"""Options that say how to reach a server."""


@contextmanager
def open_target(target: str, ram: Bound | None = None, **reach: Any) -> Iterator[Answers]:
    """Whoever answers for the target; `reach` has a value for each of REACH.

    Raises NotAMemory or BadInput where it is neither a folder nor an address.
    """
    token_file = reach["token_file"]
    with connect(
        target,
        timeout=reach["timeout"],
        token=read_token(token_file) if token_file and not Path(target).exists() else None,
        tls=reach["tls"],
        authority=reach["tls_ca"],
        certificate=reach["tls_cert"],
        key=reach["tls_key"],
        ram=ram,
    ) as answers:
        yield answers


def read_token(file: Path) -> str:
    """The first line of a file. Raises BadInput where it cannot be read or is blank."""
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds characters other than ASCII"
        raise BadInput(f"The token file {file} cannot be read: {reason}.", field="token_file") from None
    if not lines or not lines[0].strip():
        raise BadInput(f"The token file {file} is blank.", hint="Its first line is the token.", field="token_file")
    return lines[0].strip()


def asks_target(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the argument TARGET and the options to reach it; it is called with the open memory instead."""

    @wraps(command)
    def opened(
        target: str,
        ram: str | None,
        **rest: Any,
    ) -> Any:
        reach = {name: rest.pop(name) for name in REACH}
        with open_target(target, ram, **reach) as answers:
            return command(answers, **rest)

    return reaching(opened, "target")


def asks_two_targets(command: Callable[..., Any]) -> Callable[..., Any]:
    """As `asks_target`, of two: TARGETs A and B, reached alike; the command is called with both memories in a tuple."""

    @wraps(command)
    def opened(
        a: str,
        b: str,
        ram: str | None,
        **rest: Any,
    ) -> Any:
        reach = {name: rest.pop(name) for name in REACH}
        served = [not Path(target).exists() and is_served(target) for target in (a, b)]
        # It is meant for the folder, if there is one; two share it.
        bound = ram if ram is None or any(served) else _shared_bound(ram)
        own = [None if one and not all(served) else bound for one in served]
        with open_target(a, own[0], **reach) as first, open_target(b, own[1], **reach) as second:
            return command((first, second), **rest)

    return reaching(opened, "b", "a")


def _shared_bound(ram: str) -> Bound:
    from dualform.store.byte_counts import bytes_of
    from dualform.store.ram_budget import RamBudget

    return RamBudget.shared(bytes_of(ram, "ram"))


def reaching(command: Callable[..., Any], *targets: str) -> Callable[..., Any]:
    """The command with arguments, the last one first, and the options to reach what they name."""
    file = click.Path(path_type=Path)
    for option in (
        click.option(
            "--ram",
            metavar="BYTES",
            help='What answering from folders may take, as "2 GB"; a server has an option of its own. Default: half '
            "of the machine's memory for keys and values, an eighth for their codes.",
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(0, min_open=True),
            default=300.0,
            show_default=True,
            help="Seconds that a call to a server may take.",
        ),
        click.option(
            "--tls-ca", type=file, help="PEM file of the authorities to trust; implies --tls. Default: the system's."
        ),
        click.option("--tls-key", type=file, help="PEM file of that certificate's key; goes with --tls-cert."),
        click.option(
            "--tls-cert",
            type=file,
            help="PEM file of your own certificate, for a server that asks for one; implies --tls. Default: none.",
        ),
        click.option("--tls", is_flag=True, help="Speak TLS to the server."),
        click.option(
            "--token-file",
            type=file,
            envvar="DUALFORM_TOKEN_FILE",
            help="File whose first line is the server's token. Default: $DUALFORM_TOKEN_FILE, or no token.",
        ),
        *(click.argument(target, shell_complete=complete_folder) for target in targets),
    ):
        command = option(command)
    return command

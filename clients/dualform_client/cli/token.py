"""dualform token: a new token, and its line for a server's token file."""

from __future__ import annotations

import os
from pathlib import Path

import click

from dualform.errors import BadInput
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line


@click.command()
@click.argument("name")
@click.option(
    "--scopes",
    default="read",
    show_default=True,
    help="What it allows: read (all but what follows), sql, admin (verify, reflection), metrics; with commas between.",
)
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Token file of a server, to which the line is added; made where there is none. Default: the line is shown.",
)
@json_option
def token(name: str, scopes: str, file: Path | None, as_json: bool) -> None:
    """Make a token for a caller NAME.

    The token itself is the only line on stdout, and shown this once: the line for the server's file holds no more than
    its digest. A server that runs reads its file again within a second of a question.

    \b
    Example:
      dualform token alice --file tokens > alice.token
    """
    from dualform_service.auth import new_token, read_tokens

    made, line = new_token(name, scopes.split(","))
    if file is not None:
        names = read_tokens(file).names if file.exists() and file.stat().st_size else ()
        if name in names:
            raise BadInput(
                f"{file} has a line of {name} already.", hint="Remove that line, or choose another name.", field="name"
            )
        if "" in names:
            raise BadInput(
                f"{file} holds a token as it is, beside which there can be no others.",
                hint="Give another file.",
                field="file",
            )
        _add(file, line)
    if as_json:
        print_json({"name": name, "token": made, "line": line})
        return
    print_line(made)
    click.echo(f"added to {file}: {line}" if file is not None else f"for the server's token file: {line}", err=True)


def _add(file: Path, line: str) -> None:
    """Only its owner may read or write a file that is made here."""
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "a+b") as stream:
            stream.seek(0)
            content = stream.read()
            stream.write((b"\n" if content and not content.endswith(b"\n") else b"") + line.encode() + b"\n")
    except OSError as error:
        raise BadInput(f"The token file {file} cannot be written: {error.strerror}.", field="file") from None

"""dualform health: whether a server takes questions."""

from __future__ import annotations

from pathlib import Path

import click

from dualform_client.cli.failure import FAILED
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line


@click.command()
@click.argument("address", metavar="HOST:PORT[/NAME]")
@click.option(
    "--tls-ca",
    type=click.Path(path_type=Path),
    help="PEM file of the authorities to trust; speaks TLS. Default: no TLS.",
)
@click.option(
    "--tls-cert",
    type=click.Path(path_type=Path),
    help="PEM file of your own certificate, for a server that asks for one. Default: none.",
)
@click.option(
    "--tls-key", type=click.Path(path_type=Path), help="PEM file of that certificate's key; goes with --tls-cert."
)
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=5.0, show_default=True, help="Seconds to wait."
)
@json_option
def health(
    address: str, tls_ca: Path | None, tls_cert: Path | None, tls_key: Path | None, timeout: float, as_json: bool
) -> int:
    """Ask a server whether it takes questions.

    The exit code is 0 where it does, else 1: while it drains, and where the memory's folder is gone. No token is
    needed: it is for supervisors and containers.

    \b
    Example:
      dualform health 127.0.0.1:50051
    """
    from dualform_client.health import is_serving

    serving = is_serving(address, timeout=timeout, authority=tls_ca, certificate=tls_cert, key=tls_key)
    if as_json:
        print_json({"serving": serving})
    else:
        print_line("serving" if serving else "not serving")
    return 0 if serving else FAILED

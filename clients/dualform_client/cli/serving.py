"""dualform serve, health: a server, and whether one is well."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from dualform_client.cli.failure import FAILED
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line
from dualform_client.cli.target import read_token
from dualform_client.target import check_folder

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("run")
@click.option("--address", default="127.0.0.1:50051", show_default=True, help="host:port; port 0 takes a free one.")
@click.option("--token-file", type=_FILE, help="File with the token that callers must present, on its first line.")
@click.option("--tls-cert", type=_FILE, help="PEM file of the server's certificate chain.")
@click.option("--tls-key", type=_FILE, help="PEM file of its key.")
@click.option("--max-concurrent", type=int, default=4, show_default=True, help="Questions answered at once.")
@click.option(
    "--max-small", type=int, default=128, show_default=True, help="Small questions held at once; they share scans."
)
@click.option("--deadline", type=float, default=600.0, show_default=True, help="Seconds after which work stops.")
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Have the memory's shards answered on the machines of this Ray cluster, as `auto`; `local` starts one here.",
)
@click.option(
    "--shard-deadline",
    type=float,
    default=60.0,
    show_default=True,
    help="Seconds in which a shard must answer; a process that misses it is replaced. For --ray.",
)
@json_option
def serve(
    run: str,
    address: str,
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    max_concurrent: int,
    max_small: int,
    deadline: float,
    ray: str | None,
    shard_deadline: float,
    as_json: bool,
) -> None:
    """Answers questions about a memory over gRPC, until SIGTERM or Ctrl-C.

    An address that other machines can reach needs TLS and a token. Ray itself listens on every address of its machines.

    \b
    Example:
      dualform serve runs/demo --address 127.0.0.1:50051
    """
    check_folder(Path(run))
    from dualform_service.config import ServiceConfig
    from dualform_service.server import serve as serve_memory

    token = read_token(token_file) if token_file else None
    config = ServiceConfig(
        address, token, tls_cert, tls_key, max_concurrent=max_concurrent, max_small=max_small, deadline=deadline
    )

    def ready(bound: str) -> None:
        if as_json:
            print_json({"address": bound})
        else:
            print_line(f"serving {run} at {bound}")
        sys.stdout.flush()

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    if ray is None:
        serve_memory(run, config, ready)
        return
    from dualform_service.shards.opening import opened_on_ray

    # Small questions share as many scans as there are places for others (dualform_service.batching).
    asked_at_once = 2 * max_concurrent
    serve_memory(run, config, ready, lambda path: opened_on_ray(path, ray, shard_deadline, asked_at_once))


@click.command()
@click.argument("address")
@click.option("--tls-ca", type=_FILE, help="PEM file of the authorities to trust; speaks TLS.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=5.0, show_default=True, help="Seconds.")
@json_option
def health(address: str, tls_ca: Path | None, timeout: float, as_json: bool) -> int:
    """Whether a server takes questions: exit code 0 where it does. Needs no token; for supervisors and containers.

    \b
    Example:
      dualform health 127.0.0.1:50051
    """
    from dualform_client.health import is_serving

    serving = is_serving(address, timeout=timeout, authority=tls_ca)
    if as_json:
        print_json({"serving": serving})
    else:
        print_line("serving" if serving else "draining")
    return 0 if serving else FAILED

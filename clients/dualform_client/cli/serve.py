"""dualform serve: a memory behind gRPC."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dualform.errors import BadInput
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line
from dualform_client.cli.target import read_token
from dualform_client.target import check_folder

if TYPE_CHECKING:
    from dualform.query.engine import Engine
    from dualform_service.audit import JsonLog

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("run")
@click.option(
    "--address",
    default="127.0.0.1:50051",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to listen; port 0 takes a free one.",
)
@click.option(
    "--token-file", type=_FILE, help="File whose first line is the token that callers must present. Default: no token."
)
@click.option("--tls-cert", type=_FILE, help="PEM file of the server's certificate chain. Default: no TLS.")
@click.option("--tls-key", type=_FILE, help="PEM file of the certificate's key; goes with --tls-cert.")
@click.option(
    "--max-concurrent", type=int, default=4, show_default=True, help="Large questions held at once; two are worked on."
)
@click.option(
    "--max-small", type=int, default=128, show_default=True, help="Small questions held at once; they share scans."
)
@click.option(
    "--deadline", type=float, default=600.0, show_default=True, help="Seconds after which a question's work stops."
)
@click.option(
    "--request-bytes",
    default="4 MiB",
    show_default=True,
    metavar="BYTES",
    help="Largest question that is taken, as it is sent.",
)
@click.option(
    "--memory",
    metavar="BYTES",
    help='What the process may take, as "2 GB". Default: up to half of the machine for keys and values, '
    "and an eighth for their codes.",
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Answer each shard on a machine of this Ray cluster, as `auto`; `local` starts one here. Default: no Ray.",
)
@click.option(
    "--shard-deadline",
    type=float,
    default=60.0,
    show_default=True,
    help="Seconds in which a shard must answer, with --ray; a process that misses it is replaced.",
)
@click.option(
    "--log",
    "form",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="What stderr has: lines of text, or of JSON, one for each call among them.",
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
    request_bytes: str,
    memory: str | None,
    ray: str | None,
    shard_deadline: float,
    form: str,
    as_json: bool,
) -> None:
    """Answer questions about a memory over gRPC.

    It goes on until SIGTERM or Ctrl-C, then gives the questions under way ten seconds; a second signal ends it at
    once, with the exit code 128 and its number. An address that other machines can reach needs TLS and a token. Ray
    itself listens on every address of its machines.

    \b
    Example:
      dualform serve runs/demo --address 127.0.0.1:50051
    """
    check_folder(Path(run))
    from dualform.store.byte_counts import bytes_of
    from dualform_service.config import ServiceConfig
    from dualform_service.server import serve as serve_memory

    token = read_token(token_file) if token_file else None
    config = ServiceConfig(
        address,
        token,
        tls_cert,
        tls_key,
        max_concurrent=max_concurrent,
        max_small=max_small,
        request_bytes=bytes_of(request_bytes, "request_bytes"),
        deadline=deadline,
    )

    def ready(bound: str) -> None:
        if as_json:
            print_json({"address": bound})
        else:
            print_line(f"serving {run} at {bound}")
        sys.stdout.flush()

    log = _logging(form)
    if ray is None:
        serve_memory(run, config, ready, partial(_opened, memory=memory), log)
        return
    if memory is not None:
        raise BadInput(
            "--memory bounds one process, and --ray begins several.",
            hint="Bound those by Ray, or leave --ray away.",
            field="memory",
        )
    from dualform_service.lanes import ENGINE_THREADS
    from dualform_service.shards.opening import opened_on_ray

    serve_memory(run, config, ready, lambda path: opened_on_ray(path, ray, shard_deadline, ENGINE_THREADS), log)


def _opened(path: Path, memory: str | None) -> Engine:
    from dualform.query.engine import open_memory

    return open_memory(path, memory=memory, whole_process=True)


def _logging(form: str) -> JsonLog | None:
    """Has stderr take what is logged; returns what takes a line for each call, too, where it is JSON."""
    if form == "text":
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
        return None
    from dualform_service.audit import JsonLog

    log = JsonLog(sys.stderr.fileno())
    logging.basicConfig(level=logging.INFO, handlers=[log])
    return log

"""dualform serve: a memory behind gRPC."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line
from dualform_client.cli.suggestions import complete_folder
from dualform_client.target import check_folder
from dualform_service.settings import CONFIG, PREFIX, options

if TYPE_CHECKING:
    from dualform.query.engine import Engine
    from dualform_service.json_log import JsonLog


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_folder)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar=PREFIX + CONFIG.upper(),
    metavar="FILE",
    help="TOML file of these settings, each as a line such as `max_small = 64`. Flags go before variables of the "
    f"environment ({PREFIX}MAX_SMALL), and these before the file. Default: ${PREFIX}CONFIG, or no file.",
)
@options(click.option)
@json_option
def serve(runs: tuple[str, ...], config: Path | None, as_json: bool, **flags: Any) -> None:
    """Answer questions about memories over gRPC.

    Of several each is asked by the name of its folder, at HOST:PORT/NAME.

    It goes on until SIGTERM or Ctrl-C, then gives the questions under way seven seconds; a second signal ends it at
    once, with the exit code 128 and its number. An address that other machines can reach needs TLS and a token. Ray
    itself listens on every address of its machines.

    \b
    Example:
      dualform serve runs/demo --address 127.0.0.1:50051
      dualform serve runs/* --memory "4 GB"
    """
    for run in runs:
        check_folder(Path(run))
    from dualform_service.server import serve as serve_memory
    from dualform_service.settings_sources import read_settings
    from dualform_service.tracing import Exporter

    settings = read_settings({name: said for name, said in flags.items() if said is not None}, os.environ, config)
    values = settings.values
    service = settings.config(len(runs))

    def ready(bound: str) -> None:
        if as_json:
            print_json({"address": bound})
        else:
            print_line(f"serving {', '.join(runs)} at {bound}")
        sys.stdout.flush()

    log, memory, ray = _logging(values["log"]), values["memory"], values["ray"]
    traces = Exporter() if values["tracing"] else None
    if ray is None:
        from dualform_service.opening import opening

        serve_memory(runs, service, ready, opening(memory, len(runs) > 1), log, traces)
        return
    from dualform_service.lanes import ENGINE_THREADS
    from dualform_service.shards.opening import opened_on_ray

    def opened(path: Path) -> AbstractContextManager[Engine]:
        return opened_on_ray(path, ray, values["shard_deadline"], ENGINE_THREADS)

    serve_memory(runs, service, ready, opened, log, traces)


def _logging(form: str) -> JsonLog | None:
    """Has stderr take what is logged; returns what takes a line for each call, too, where it is JSON."""
    if form == "text":
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
        return None
    from dualform_service.json_log import JsonLog

    log = JsonLog(sys.stderr.fileno())
    logging.basicConfig(level=logging.INFO, handlers=[log])
    return log

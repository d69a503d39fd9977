"""dualform serve: a memory behind gRPC."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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
    from dualform_client.cli.pages import ServedPages
    from dualform_service.config import ServiceConfig
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
    once, with the exit code 128 and its number. With --explore, pages for a browser stand beside it until then, and ask
    it with the tokens that visitors bring. An address that other machines can reach needs TLS and a token. Ray
    itself listens on every address of its machines.

    \b
    Example:
      dualform serve runs/demo --address 127.0.0.1:50051
      dualform serve runs/* --ram "4 GB"
      dualform serve runs/demo --explore
    """
    for run in runs:
        check_folder(Path(run))
    from dualform_service.server import serve as serve_memory
    from dualform_service.settings_sources import read_settings
    from dualform_service.tracing import Exporter

    settings = read_settings({name: said for name, said in flags.items() if said is not None}, os.environ, config)
    values = settings.values
    service = settings.config(len(runs))

    log, ram, ray = _logging(values["log"]), values["ram"], values["ray"]
    traces = Exporter() if values["tracing"] else None
    with _pages(service, runs) as pages:

        def ready(bound: str) -> None:
            if pages is not None:
                pages.start(bound)
            if as_json:
                print_json({"address": bound} | ({} if pages is None else {"explore": pages.url}))
            else:
                print_line(f"serving {', '.join(runs)} at {bound}")
                if pages is not None:
                    print_line(f"exploring {', '.join(runs)} at {pages.url}")
            sys.stdout.flush()

        serve_memory(runs, service, ready, _opening(ram, ray, values["shard_deadline"], len(runs)), log, traces)


def _opening(
    ram: int | None, ray: str | None, shard_deadline: float, runs: int
) -> Callable[[Path], AbstractContextManager[Engine]]:
    """What opens a memory: in this process, or with the processes of a Ray cluster."""
    if ray is None:
        from dualform_service.opening import opening

        return opening(ram, runs > 1)
    from dualform_service.lanes import ENGINE_THREADS
    from dualform_service.shards.opening import opened_on_ray

    def opened(path: Path) -> AbstractContextManager[Engine]:
        return opened_on_ray(path, ray, shard_deadline, ENGINE_THREADS)

    return opened


def _pages(service: ServiceConfig, runs: tuple[str, ...]) -> AbstractContextManager[ServedPages | None]:
    """The pages of --explore, whose address is taken; none without it."""
    if service.explore is None:
        return nullcontext()
    from dualform_client.cli.pages import ServedPages

    names = [Path(run).resolve().name for run in runs]
    return ServedPages(service, {name: name if len(runs) > 1 else "" for name in names})


def _logging(form: str) -> JsonLog | None:
    """Has stderr take what is logged; returns what takes a line for each call, too, where it is JSON."""
    if form == "text":
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
        return None
    from dualform_service.json_log import JsonLog

    log = JsonLog(sys.stderr.fileno())
    logging.basicConfig(level=logging.INFO, handlers=[log])
    return log

"""dualform explore: pages over memories, for a browser."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from dualform.errors import BadInput
from dualform.methods import Answers
from dualform_client.cli.named_function import named_function
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line
from dualform_client.cli.suggestions import complete_folder
from dualform_client.cli.target import REACH, reaching, read_token
from dualform_client.target import check_folder, connect
from dualform_proto.memory_name import is_served


@click.command()
@reaching
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True, shell_complete=complete_folder)
@click.option(
    "--address",
    default="127.0.0.1:50080",
    show_default=True,
    metavar="HOST:PORT",
    help="Where the pages are; port 0 is a free one. One that other machines can reach needs --access.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A further name that browsers may ask by, as that of a proxy in front; repeatable. Default: none.",
)
@click.option(
    "--access",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File whose first line is the token that visitors must have. Default: none is asked for.",
)
@click.option(
    "--root-path", default="", metavar="PATH", help="Where a proxy in front has the pages, as /explorer. Default: /."
)
@click.option(
    "--deadline",
    type=click.FloatRange(0, min_open=True),
    default=15.0,
    show_default=True,
    help="Seconds that a part of a page may take.",
)
@click.option(
    "--preview",
    metavar="MODULE:FUNCTION",
    help="A function of your own, also as FILE.py:FUNCTION, that says what a training sample looks like: "
    "preview(dataset, sample) returns an image, a text, a dict of columns, or None. It runs in this process alone; a "
    "server is not told of it. Default: what is stored in the memory.",
)
@click.option(
    "--export",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write predictions of one TARGET to a file that needs no server, and end. Default: pages are served.",
)
@click.option(
    "--item",
    "items",
    multiple=True,
    metavar="QUERY_SET/EXAMPLE",
    help="With --export, a prediction; repeatable. Default: a dozen at most, misread ones that a mask corrects first.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="COLUMN:VALUE",
    help="With --export, a mask that leaves these slots out, as dataset:mnist; repeatable, and each one a mask of its "
    "own. Default: each dataset, where there are several.",
)
@click.option("--force", is_flag=True, help="With --export, replace the file where it exists.")
@click.option("--open/--no-open", "browse", help="Open the start page in a browser. Default: --no-open.")
@json_option
def explore(
    targets: tuple[str, ...],
    ram: str | None,
    address: str,
    hosts: tuple[str, ...],
    access: Path | None,
    root_path: str,
    deadline: float,
    preview: str | None,
    export: Path | None,
    items: tuple[str, ...],
    without: tuple[str, ...],
    force: bool,
    browse: bool,
    as_json: bool,
    **reach: Any,
) -> None:
    """Look at memories in a browser.

    Pages show a prediction, what in the training speaks for it, and what undoes it.

    Nothing of a memory is changed, and nothing of it runs; --preview names a function of your own that does, here.
    It goes on until Ctrl-C, or with --export until the file is written.

    \b
    Example:
      dualform explore runs/demo
      dualform explore 127.0.0.1:50051 --address 127.0.0.1:0 --open
      dualform explore runs/mine --preview FILE.py:FUNCTION
      dualform explore runs/demo --export page.html --item test-digits/17 --without dataset:permuted-digits
    """
    from dualform_explorer.memories import names_of
    from dualform_explorer.preview_function import check_preview_function
    from dualform_explorer.server import ExplorerConfig, serve

    for target in targets:
        if Path(target).exists() or not is_served(target):
            check_folder(Path(target))
    if len(set(targets)) < len(targets):
        raise BadInput("A target is given twice.", hint="Name each once.", field="targets")
    given = {"--item": items, "--without": without, "--force": force}
    if export is None and (stray := [name for name, said in given.items() if said]):
        raise BadInput(f"{' and '.join(stray)}: only with --export FILE.", field="export")
    function = None if preview is None else named_function(preview, "preview")
    if function is not None:
        check_preview_function(function)
    opened = {
        name: partial(_opened, target, ram, {own: reach[own] for own in REACH})
        for name, target in zip(names_of(targets), targets, strict=True)
    }
    if export is not None:
        from dualform_client.cli.exporting import write_page

        write_page(opened, export, items, without, force, as_json, function)
        return
    token = None if access is None else read_token(access)
    config = ExplorerConfig(address, hosts, token, root_path, deadline)

    def ready(url: str) -> None:
        if as_json:
            print_json({"url": url})
        else:
            print_line(f"exploring {', '.join(opened)} at {url}")
        sys.stdout.flush()

    serve(opened, config, ready, browse, function)


def _opened(target: str, ram: str | None, reach: dict[str, Any]) -> Answers:
    token_file = reach["token_file"]
    served = not Path(target).exists()
    return connect(
        target,
        timeout=reach["timeout"],
        token=read_token(token_file) if token_file and served else None,
        tls=reach["tls"],
        authority=reach["tls_ca"],
        certificate=reach["tls_cert"],
        key=reach["tls_key"],
        ram=None if served else ram,
    )

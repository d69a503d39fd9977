"""dualform copy: a checked backup of a memory, also while it is being written."""

from __future__ import annotations

import click

from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line
from dualform_client.cli.progress import progress_bars
from dualform_client.cli.suggestions import complete_folder
from dualform_client.cli.target import check_run


@click.command()
@click.argument("run", shell_complete=complete_folder)
@click.argument("copy")
@json_option
def copy(run: str, copy: str, as_json: bool) -> int:
    """Copy a memory to a new folder, and check the copy.

    A training may record into RUN meanwhile: COPY is what was on disk at one moment. It shares no file with RUN, and
    has its name once it is whole and has passed every check; a copy that fails leaves nothing.

    \b
    Example:
      dualform copy runs/demo backups/demo
    """
    check_run(run)
    from dualform.store.copying import copy_memory

    with progress_bars() as progress:
        made = copy_memory(run, copy, progress and (lambda _, done, total: progress("copying", done, total)))
    if as_json:
        print_json({"copy": copy, "steps": made.steps, "cut_off": made.cut_off})
    else:
        print_line(f"{copy} has {made.steps} step{'s' * (made.steps != 1)}, and every check passed")
        if made.cut_off:
            print_line(made.cut_off)
    return 0

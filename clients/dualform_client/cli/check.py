"""dualform check: what needs the memory's own files."""

from __future__ import annotations

import click

from dualform_client.cli.failure import FAILED
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line
from dualform_client.cli.progress import progress_bars
from dualform_client.cli.target import check_run


@click.command()
@click.argument("run")
@json_option
def check(run: str, as_json: bool) -> int:
    """Check every checksum, row count and mark of a memory.

    The exit code is 1 where anything is wrong.

    A recording that was cut off is said to be so. What it holds may be sound all the same, and is checked likewise.

    \b
    Example:
      dualform check runs/demo
    """
    check_run(run)
    from dualform.store.check import check_memory, how_it_ended

    with progress_bars() as progress:
        problems = check_memory(run, progress and (lambda _, done, total: progress("checking", done, total)))
    cut_off = how_it_ended(run)
    if as_json:
        print_json({"problems": problems, "cut_off": cut_off})
    else:
        for sentence in [cut_off, *problems] if cut_off else problems:
            print_line(sentence)
        print_line(f"{len(problems)} problem{'s'[: len(problems) > 1]}" if problems else "no problems")
    return FAILED if problems else 0

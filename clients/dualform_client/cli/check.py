"""dualform check: what needs the memory's own files."""

from __future__ import annotations

import click

from dualform.errors import BadInput, Damaged
from dualform_client.cli.failure import FAILED
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line
from dualform_client.cli.progress import progress_bars
from dualform_client.cli.suggestions import complete_folder
from dualform_client.cli.target import check_run


@click.command()
@click.argument("run", shell_complete=complete_folder)
@click.option("--repair", is_flag=True, help="Write what is whole of it to the folder that --out names.")
@click.option("--out", metavar="COPY", help="A folder that is not there yet, for --repair. Default: none.")
@json_option
def check(run: str, repair: bool, out: str | None, as_json: bool) -> int:
    """Check every checksum, row count and mark of a memory.

    The exit code is 1 where anything is wrong, and nothing was repaired.

    A recording that was cut off is said to be so. What it holds may be sound all the same, and is checked likewise.

    Codes kept beside keys are compared with them, and removed if they do not fit. Kept sums are removed. Both are made
    again when a question needs them.

    With --repair, what is whole of a damaged memory is written to COPY: as of the last commit before the damage, and
    without the weights of the end. It is refused where no step is whole. RUN stays as it is; COPY may share files with
    it, under other names.

    \b
    Example:
      dualform check runs/demo
      dualform check --repair runs/demo --out runs/repaired
    """
    if repair != (out is not None):
        raise BadInput("--repair and --out belong together.", hint="Say where to write: --repair --out COPY.")
    check_run(run)
    from dualform.store.check import check_memory, how_it_ended

    with progress_bars() as progress:
        problems = check_memory(run, progress and (lambda _, done, total: progress("checking", done, total)))
    cut_off = how_it_ended(run)
    repaired, steps = _repaired(run, out) if problems and out is not None else (None, 0)
    problems += _of_what_is_derived(run)
    if as_json:
        said = {"problems": problems, "cut_off": cut_off}
        print_json(said if repaired is None else {**said, "repaired": out, "dropped": repaired, "steps": steps})
    else:
        for sentence in [cut_off, *problems] if cut_off else problems:
            print_line(sentence)
        print_line(f"{len(problems)} problem{'s'[: len(problems) > 1]}" if problems else "no problems")
        for sentence in repaired or ():
            print_line(sentence)
        if out is not None:
            kept = f"{out} has what is whole, up to step {steps - 1}, and every check passed"
            print_line(kept if problems else "nothing to repair: no copy")
    return FAILED if problems and repaired is None else 0


def _of_what_is_derived(run: str) -> list[str]:
    from dualform.query.search.stored_codes import check_derived
    from dualform.store.runs import opened
    from dualform.store.segment_cache import SegmentCache

    try:
        return check_derived(opened(run, SegmentCache(most_bytes=0)))
    except Damaged:  # which was said
        return []


def _repaired(run: str, out: str) -> tuple[list[str], int]:
    """What was dropped, and how many steps there are still."""
    from dualform.store.repair import repair

    with progress_bars() as progress:
        dropped, copy = repair(run, out, progress and (lambda _, done, total: progress("copying", done, total)))
    return dropped, copy.steps

"""Where the time of a first answer goes: `python -m benchmarks.cold_profile MEMORY LAYER QUERY [--dropped]`.

Asks `dualform topk` in processes of their own, and says when each part of it ended, what its processor had done by then
(in all threads), and how much the disk had been asked for. With --dropped, the page cache lets go of the memory's files
first, which must have been written to the disk. Linux alone says what a process had its disk read.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import click

from benchmarks.document import table
from benchmarks.sections.cold import drop_files, environment

WATCHED = r"""
import json, sys, threading, time
began, stamps, AHEAD = float(sys.argv[1]), [], "reading ahead is done"

def stamp(part):
    with open("/proc/self/io") as io:
        read = next(int(line.split()[1]) for line in io if line.startswith("read_bytes"))
    stamps.append((part, time.monotonic() - began, time.process_time(), read))

def watch(owner, name, part, before):
    function = getattr(owner, name)
    def run(*arguments, **named):
        if before:
            stamp(before)
        try:
            return function(*arguments, **named)
        finally:
            stamp(part)
    setattr(owner, name, run)

stamp("Python has started")
from dualform_client.cli import main
cli = sys.modules["dualform_client.cli.main"]
from dualform.store import read_ahead
watch(read_ahead, "_read", AHEAD, "")
stamp("the command line is loaded")
cli.prepare(sys.argv[2:])
from dualform_client.cli import ask
from dualform.query import engine, slots
from dualform.query.search import screen, screen_searcher
watch(engine, "open_memory", "the memory is open", "libraries are loaded")
watch(screen, "screen", "codes are screened", "keys, mask and query are found")
watch(screen_searcher, "score_pairs", "candidates are scored", "")
watch(slots, "slot_columns", "the hits' columns are read", "hits are made")
main(sys.argv[2:])
stamp("the answer is written")
print(json.dumps(stamps), file=sys.stderr)
"""


Stamp = tuple[float, float, float]
"""Milliseconds since the process was started, those of its processor, megabytes from the disk."""


def measure(memory: Path, layer: str, query: str, dropped: bool) -> dict[str, Stamp]:
    """Of one process: what ended, and when. Of several readers, the last one counts."""
    if dropped:
        drop_files(memory)
    asked = ("topk", str(memory), "--layer", layer, "--query", query, "--json")
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(time.monotonic()), *asked],
        capture_output=True, text=True, check=True, env=environment(),
    )  # fmt: skip
    stamps = json.loads(done.stderr.splitlines()[-1])
    return {part: (1e3 * clock, 1e3 * processor, read / 1e6) for part, clock, processor, read in stamps}


@click.command(help=__doc__)
@click.argument("memory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("layer")
@click.argument("query")
@click.option("--dropped", is_flag=True, help="Of files that the page cache does not hold.")
@click.option("--repeats", default=7, help="Processes, of which medians are told. [7]")
def main(memory: Path, layer: str, query: str, dropped: bool, repeats: int) -> None:
    measure(memory, layer, query, False)
    runs = [measure(memory, layer, query, dropped) for _ in range(repeats)]
    found = {part: tuple(median(run[part][number] for run in runs) for number in range(3)) for part in runs[0]}
    lines = [
        [part, *(f"{figure:,.0f}" for figure in own)] for part, own in sorted(found.items(), key=lambda one: one[1])
    ]
    for line in table(["what has ended", "ms since the start", "ms of the processor", "MB from the disk"], lines):
        click.echo(line)


if __name__ == "__main__":
    main()

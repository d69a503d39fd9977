"""What tests of durability and hostility did: rows that they report, and docs/results/reliability.md, made of them.

    @pytest.mark.soak
    def test_bits_that_flip(...):
        count = rounds(30, 1000)
        ...
        report("bits flipped in any file of a memory", seed=SEED, count=count, outcome="refused, or of no effect")

Such a test runs in its short form with all others, and in its long one with `make soak`, which then writes the page:
python -m tests.reliability build/reliability.json docs/results/reliability.md
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dualform_studies.documents import write_page

LONG = "DUALFORM_SOAK"
"""The environment variable that asks for the long forms."""
ROWS = Path(__file__).parent.parent / "build" / "reliability.json"
"""One JSON object a line, in the order in which tests came to their ends."""


class Part(NamedTuple):
    """Rows that make one line of the page."""

    tried: str
    holds: str
    """What the tests of these files hold to: a test that fails reports no row."""
    files: tuple[str, ...]


_STOPS = "`on_error='stop_recording'`"
PARTS = (
    Part(
        "`kill -9` while recording; power cuts (simulated)",
        "No acknowledged step is lost, and no half step is there. A training killed after its first checkpoint "
        "resumes, and equals one that nobody killed.",
        ("record/test_kills.py", "record/test_power_cut.py"),
    ),
    Part(
        "a disk that is full or fails",
        "The next step raises an error with file and reason; the folder opens with whole steps. With "
        f"{_STOPS} the training goes on to the same weights.",
        ("record/test_faulty_disk.py",),
    ),
    Part(
        "errors inside the recorder's hooks",
        f"The error is a `RecordingError`. With {_STOPS} the training goes on to the same weights.",
        ("record/test_hooks.py",),
    ),
    Part(
        "files altered or cut short",
        "The memory is refused with the name of the file, or answers as before; a torn journal leaves whole steps. A "
        "repair leaves a prefix that passes every check, or nothing.",
        ("record/test_altered.py", "store/maintenance/test_copying.py"),
    ),
    Part(
        "a second writer; readers during writing; files removed under a server",
        "The second writer is refused. A reader sees whole steps. An error names the file within the memory and no "
        "path of the server.",
        ("store/writing/test_folders.py", "store/reading/test_memory.py", "service/test_memories.py"),
    ),
    Part(
        "mutated requests; random bytes on the port",
        "Each request is answered or refused with a status code, and the server goes on.",
        ("service/test_fuzzed_messages.py",),
    ),
    Part(
        "hostile filters and SQL",
        "They reach no file, environment or network, and stop at their deadline.",
        ("service/test_hostile_masks.py", "query/sql/test_sql.py"),
    ),
    Part(
        "stalled, idle and greedy clients",
        "Other clients are answered meanwhile, and work stops at its deadline.",
        ("service/test_hostile_clients.py",),
    ),
    Part(
        "pages over a million slots",
        "They show the slots of a float64 search, in its order.",
        ("explorer/test_many_slots.py",),
    ),
    Part(
        "SIGTERM under load",
        "Questions in progress are answered, new ones are refused, and the server ends within 10 s.",
        ("service/test_process.py",),
    ),
    Part(
        "an hour at full load",
        "No question fails but by a refusal, RAM stays within its limit, and no file is left open.",
        ("service/test_soak.py",),
    ),
)
OF_FILE = {f"tests/{file}": part for part in PARTS for file in part.files}
"""The line of the page that has the rows of a file."""

_PAGE = """\
`make soak` runs the long forms of these tests and writes the table. A test reports after its last check: if one fails,
`make soak` fails. `build/reliability.json` has a line for each test, with its seed and outcome.

| what was tried | times | what held |
| --- | ---: | --- |
"""


def soaking() -> bool:
    """Whether tests run in their long form."""
    return os.environ.get(LONG, "") not in ("", "0")


def rounds(short: int, long: int) -> int:
    """How often to do something: as `make test` does it, or as `make soak`."""
    return long if soaking() else short


def report(done: str, *, seed: int, count: int, outcome: str, to: Path | None = None) -> None:
    """Adds the row of the test that runs: what was done, so many times, drawn by this seed, and what came of it.

    To be called when all of that was found to hold. A line is written at once, so that those of several processes do
    not mix.
    """
    name = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
    row = {"name": name, "done": done, "seed": seed, "count": count, "outcome": outcome, "long": soaking()}
    place = to or ROWS
    place.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        os.write(handle, (json.dumps(row, ensure_ascii=False) + "\n").encode())
    finally:
        os.close(handle)


def page(lines: Iterable[str]) -> str:
    """What the page has below its summary; the last row of a test and what it did counts.

    Raises ValueError for rows of a short form.
    """
    found = {(row["name"], row["done"]): row for row in map(json.loads, lines)}
    if short := sorted({row["name"] for row in found.values() if not row["long"]}):
        raise ValueError(f"rows of short forms, of which the page is not made: {', '.join(short)}")
    times = Counter[Part]()
    for row in found.values():
        times[OF_FILE[row["name"].partition("::")[0]]] += row["count"]
    return _PAGE + "".join(f"| {part.tried} | {times[part]:,} | {part.holds} |\n" for part in PARTS if part in times)


if __name__ == "__main__":
    rows_file, page_file = map(Path, sys.argv[1:])
    write_page(page_file, "Reliability", [page(rows_file.read_text(encoding="utf-8").splitlines())])

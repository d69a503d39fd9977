"""What tests of durability and hostility did: rows that they report, and docs/reliability.md, which is made of them.

    @pytest.mark.soak
    def test_bits_that_flip(...):
        count = rounds(30, 1000)
        ...
        report("bits flipped in any file of a memory", seed=SEED, count=count, outcome="refused, or of no effect")

Such a test runs in its short form with all others, and in its long one with `make soak`, which then writes the page:
python -m tests.reliability build/reliability.json docs/reliability.md
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

LONG = "DUALFORM_SOAK"
"""The environment variable that asks for the long forms."""
ROWS = Path(__file__).parent.parent / "build" / "reliability.json"
"""One JSON object a line, in the order in which tests came to their ends."""

_PARTS = {
    "Kill -9 while recording, and power cuts": ("record/test_kills.py", "record/test_power_cut.py"),
    "A disk that is full or fails": ("record/test_faulty_disk.py",),
    "Errors inside the recorder's hooks": ("record/test_hooks.py",),
    "Files that are altered or cut short": ("record/test_altered.py", "store/test_repair.py"),
    "A second writer, readers during writing, files removed under a server": (
        "store/test_writing_lock.py",
        "store/test_read_while_written.py",
        "service/test_damaged_memories.py",
    ),
    "Fuzzed requests, and raw bytes on the port": ("service/test_fuzzed_messages.py",),
    "Hostile masks and statements": ("service/test_hostile_masks.py", "query/test_sql_bounds.py"),
    "Stalled, idle and greedy clients": (
        "service/test_hostile_clients.py",
        "service/test_idle_connections.py",
        "service/test_floods.py",
    ),
    "Pages over a million slots": ("explorer/test_many_slots.py",),
    "SIGTERM under load": ("service/test_sigterm_under_load.py",),
    "An hour at full load": ("service/test_soak.py",),
}
HEADINGS = {f"tests/{file}": heading for heading, files in _PARTS.items() for file in files}
"""What the rows of a file stand below on the page, in its order."""

_PAGE = """# What was tried to break it, and what came of it

Made with `make soak`, which runs the long form of every test below and writes this page from what they report; `make
test` runs their short forms. A test reports its row as its last act, so one that fails has none, and `make soak` fails
with it. [durability.md](durability.md) and [security.md](security.md) state what is promised.
`count` is how often something was done, drawn by a generator of that seed.
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
    """docs/reliability.md of such lines; the last row of a test and what it did counts.

    Raises ValueError for rows of a short form.
    """
    found = {(row["name"], row["done"]): row for row in map(json.loads, lines)}
    if short := sorted({row["name"] for row in found.values() if not row["long"]}):
        raise ValueError(f"rows of short forms, of which the page is not made: {', '.join(short)}")
    parts = [_PAGE]
    for heading, rows in groupby(sorted(found.values(), key=_place), key=_heading):
        parts.append(
            f"\n## {heading}\n\n| what was tried | count | seed | outcome | test |\n| --- | --- | --- | --- | --- |\n"
        )
        parts += [_line(row) for row in rows]
    return "".join(parts)


def _file(row: dict[str, Any]) -> str:
    return row["name"].partition("::")[0]


def _heading(row: dict[str, Any]) -> str:
    return HEADINGS.get(_file(row), "All else")


def _place(row: dict[str, Any]) -> tuple[int, str, str]:
    order = list(HEADINGS)
    return order.index(_file(row)) if _file(row) in HEADINGS else len(order), row["name"], row["done"]


def _line(row: dict[str, Any]) -> str:
    cells = [row["done"], f"{row['count']:,}", str(row["seed"]), row["outcome"], f"`{row['name']}`"]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    rows_file, page_file = map(Path, sys.argv[1:])
    page_file.write_text(page(rows_file.read_text(encoding="utf-8").splitlines()), encoding="utf-8")

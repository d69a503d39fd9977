"""What a study or the demo found, on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dualform_client.cli.printing import print_json, print_line, print_table

_SHOWN_ROWS = 24
"""Of a table; the page has all of them."""


def print_report(report: dict[str, Any], out: Path, as_json: bool) -> None:
    """Its tables and where its page is; with `as_json` all of it. `out`: the folder of the page, which is a memory
    or holds some."""
    if as_json:
        print_json(report)
        return
    for table in report["tables"]:
        caption, rows = table["caption"], table["rows"]
        if len(rows) > _SHOWN_ROWS:
            caption, rows = f"{caption} The first {_SHOWN_ROWS} of {len(rows):,} rows:", rows[:_SHOWN_ROWS]
        print_table(caption, table["columns"], rows)
    index = out / "report" / "index.html"
    if index.is_file() and not report.get("dry_run"):
        from dualform.store.manifest import FILE

        memories = [out] if (out / FILE).is_file() else sorted(path.parent for path in out.glob(f"*/{FILE}"))
        print_line(f"Figures and tables are shown in {index}.")
        for memory in memories:
            print_line(f"Ask the memory: dualform info {memory}")

"""What the files of a memory take on disk, by what is in them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal, TypeAlias

Part: TypeAlias = Literal["keys", "values", "tables", "weights", "query_sets", "marks"]

PARTS: dict[Part, str] = {
    "keys": "keys",
    "values": "values",
    "tables": "tables of slots and steps",
    "weights": "weights before and after",
    "query_sets": "query sets, the stored test images",
    "marks": "marks of the memory",
}
"""In words."""


def sizes_of(folder: Path) -> dict[Part, int]:
    """Bytes of each part; together they are all that the folder holds."""
    found: Counter[Part] = Counter(dict.fromkeys(PARTS, 0))
    for path in folder.rglob("*"):
        if path.is_file():
            found[_part(path.relative_to(folder))] += path.stat().st_size
    return dict(found)


def _part(path: Path) -> Part:
    if "layers" in path.parts:
        return "values" if path.name.startswith("values") else "keys"
    if path.parts[0] == "weights":
        return "weights"
    if path.parts[0] == "probes":
        return "query_sets"
    return "tables" if path.suffix == ".duckdb" else "marks"

"""What is said of a file that is damaged, or that an open memory misses because samples were deleted since.

Files know of no manifest, so memory.json is read as it is.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from dualform.errors import Damaged, DualformError
from dualform.faults import shortage
from dualform.store.durable_files import read_regular

_IRREPLACEABLE = ("memory.json", "shard.json", "slots.duckdb", "initial.safetensors")
"""Without one of these files nothing can be repaired."""


def damaged(file: Path, what: str) -> Damaged:
    """The error for a file of a memory: `what` is wrong with it, then what may help."""
    folder = next((own for own in file.parents if (own / "memory.json").is_file()), file.parent)
    if folder.name.startswith("run-") and (folder.parent / "memory.json").is_file():  # a further run of a memory
        folder = folder.parent
    hint = f"Restore a backup, or save the undamaged part: dualform check --repair {folder} --out COPY"
    if file.name in _IRREPLACEABLE:
        hint = f"Restore {folder} from a backup: nothing can be repaired without this file."
    return Damaged(f"{file} {what}.", hint=hint)


def unreadable(file: Path, error: BaseException, said: str = "cannot be read") -> DualformError:
    """The error for a file that could not be read: a shortage is not damage."""
    reason = getattr(error, "strerror", None) or (str(error).splitlines() or [""])[0]
    if isinstance(error, PermissionError):
        return Damaged(f"{file} {said}: {reason}.", hint="Allow this user to read the memory's folder.")
    short = shortage(error, f"{file} cannot be read: this process")
    return short or deleted_meanwhile(file) or damaged(file, f"{said}: {reason.rstrip('.')}")


def deleted_meanwhile(file: Path) -> Damaged | None:
    """None for a file that is there, and for one that its memory still names: that is damage."""
    for child, folder in () if file.is_file() else pairwise([file, *file.parents]):
        try:
            said = json.loads(read_regular(folder / "memory.json"))
            named = {part["folder"] for part in (*said["shards"], *said.get("runs", ()))}
        except (OSError, ValueError, LookupError, TypeError):
            continue
        if "forgotten" in said and child.name.startswith(("shard-", "run-")) and child.name not in named:
            return Damaged(f"samples of {folder} were deleted since it was opened.", hint="Open it again.")
    return None

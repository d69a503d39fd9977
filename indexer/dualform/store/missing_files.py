"""What is said of a file that an open memory misses, for the memory was written anew without some samples.

Files know of no manifest, so memory.json is read as it is.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from dualform.errors import Damaged, DualformError
from dualform.faults import shortage
from dualform.store.durable_files import read_regular


def unreadable(file: Path, error: BaseException, said: str = "cannot be read") -> DualformError:
    """What is raised for a file that an error kept from being read: shortage is no damage."""
    reason = getattr(error, "strerror", None) or (str(error).splitlines() or [""])[0]
    short = shortage(error, f"{file} cannot be read: this process")
    return short or deleted_meanwhile(file) or Damaged(f"{file} {said}: {reason.rstrip('.')}.")


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

"""What a recorder that is killed while it creates a memory leaves: a folder without memory.json, which is written last.

It is no memory yet. Whoever reads is told so, and the next recorder clears it (new_folder.py).
"""

from __future__ import annotations

import re
from pathlib import Path

_NAMES = re.compile(
    r"memory\.json\.tmp|weights(/(initial|buffers)\.safetensors(\.tmp)?)?"
    r"|shard-00000(/writing|/slots\.duckdb(\.wal)?|/others|/layers(/[^/]+(/\d+\.tmp)?)?)?"
)
"""What is there before memory.json is, within the folder."""


def is_only_begun(folder: Path) -> bool:
    """Whether a folder holds something, but neither memory.json nor anything that comes to a memory after it: its
    recorder was killed before the memory was created, or is creating it at this moment.
    """
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*")] if folder.is_dir() else []
    return bool(found) and all(map(_NAMES.fullmatch, found))

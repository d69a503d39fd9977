"""Which of its moments a snapshot saw of a memory that may still grow."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    """Snapshots of one memory and one moment hold the same."""

    commits: int
    frames: int
    """Of journals, beyond the last commits."""
    steps: int
    content: str
    """Digest of what the shards' manifests say, checksums of all that is committed among it, and of their journals:
    another training that was recorded into the same folder may have as many commits, frames and steps."""

"""What is said of an answer that stands on a share of the slots, because a budget kept no more."""

from __future__ import annotations

from dualform.answers import Scan


def share(scan: Scan) -> dict[str, float]:
    """As JSON has it, where not all slots are kept."""
    return {"share": scan.share} if scan.sample else {}


def sample_notes(scan: Scan) -> list[str]:
    """The sentence beside a table, where not all slots are kept."""
    return [f"The answer stands on {scan.sample}."] if scan.sample else []

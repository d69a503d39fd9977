"""Which columns are NULL in no slot, so that a mask may compare them as people write it."""

from __future__ import annotations

from dualform.answers import MemoryInfo


def complete_columns(info: MemoryInfo) -> frozenset[str]:
    """Those that every recorder writes, and `dataset` where all slots have one."""
    always = {"slot", "step"}
    if sum(info.datasets.values()) == sum(info.slots.values()):
        always.add("dataset")
    return frozenset(always)

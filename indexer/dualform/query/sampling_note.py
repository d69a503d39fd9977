"""What a memory says of the sample that it keeps, where slots were sampled to hold a budget."""

from __future__ import annotations

from dualform.answers.table import percent
from dualform.query.view import View
from dualform.store.dropped_slots import DroppedSlots


def sampling_note(view: View) -> str:
    """One sentence; empty where every slot was kept, and nothing was to hold."""
    snapshot = view.snapshot
    rule = snapshot.manifest.sampling
    if rule is None:
        return ""
    what = "samples, each with all of its slots" if rule.keep == "samples" else "whole steps"
    several = any(len(run.manifest.shards) > 1 for run in snapshot.runs)
    whose = ", of which each process has its own rows by a share of its own" if several else ""
    said = f"A budget of {rule.budget:,} bytes a process keeps {what}{whose}, by lot (seed {rule.seed})"
    if not snapshot.dropped:
        return f"{said}: all of them so far."
    shares = ", ".join(
        f"{percent(snapshot.share([space]))} of the slots of {space}{_up_to(own)}"
        for space, own in snapshot.dropped.items()
    )
    return f"{said}: {shares}. The column share says with which probability each was kept."


def _up_to(dropped: DroppedSlots) -> str:
    return f", all of them before step {dropped.first_step}" if dropped.first_step else ""

"""What answering has taken since a memory was opened, in numbers that only grow but for the last four."""

from __future__ import annotations

from dataclasses import dataclass

from dualform.query.score import backends
from dualform.query.view import View
from dualform.store.ram_budget import RamBudget
from dualform.store.read_bytes import READ
from dualform.store.segment_cache import SegmentCache


@dataclass(frozen=True)
class Counts:
    queries: int
    """Whose best slots were asked for."""
    fallbacks: int
    """Of these, those that the screen could not decide, answered from float32 scores of every row."""
    candidates: int
    """Rows that the screen left for canonical scoring."""
    rescoring_seconds: float
    """Of canonical scoring, on the clock."""
    derived_found: int
    derived_made: int
    """Masks, groups, sums and rebuilt weights that were kept from an earlier question, and that were not."""
    codes_found: int
    codes_made: int
    """Eight-bit codes of keys that a scan found kept, and that were read or made."""
    read_bytes: int
    """Of keys, values and what derives from them, by the whole process."""
    kept_bytes: int
    """Between questions: keys, values, codes and what derives from them."""
    most_bytes: int | None
    """Of all that the memory may take (`memory` of dualform.open); None where nothing was said."""
    commits: int
    """Of the snapshot that questions see."""
    recording: bool
    """Whether the memory is still being recorded, or was cut off."""


def counted(view: View, segments: SegmentCache | None, budget: RamBudget | None) -> Counts:
    """Of the engine that answers from `view`, with what it keeps: under a budget, that of all who share it."""
    tally, backend = view.tally, view.backend
    codes = backend.screen.codes if isinstance(backend, backends.ScreenBackend) else None
    kept = sum(cache.nbytes for cache in (view.cache, segments, codes) if cache is not None)
    return Counts(
        queries=tally.queries,
        fallbacks=tally.fallbacks,
        candidates=tally.candidates,
        rescoring_seconds=tally.rescoring_seconds,
        derived_found=tally.found,
        derived_made=tally.made,
        codes_found=0 if codes is None else codes.found,
        codes_made=0 if codes is None else codes.made,
        read_bytes=READ.total,
        kept_bytes=kept if budget is None else budget.kept_bytes,
        most_bytes=None if budget is None else budget.given,
        commits=view.snapshot.commits,
        recording=view.snapshot.recording,
    )

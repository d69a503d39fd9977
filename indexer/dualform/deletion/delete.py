"""Delete samples from a memory: dualform.delete, and a preview of what it will do.

    RUN/memory.json      names shard-00000     ->     shard-00000-1, by one atomic rename
    RUN/shard-00000      as it was             ->     removed, once the new memory has passed every check

If it is cut off at any time, the memory is whole: the old one or the new one. The next attempt removes leftover files,
and `check` reports them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dualform.deletion.leftovers import remove_leftovers
from dualform.deletion.previews import removed_preview_sets, shown
from dualform.deletion.query_sets import query_sets_that_hold
from dualform.deletion.rewrite import rewrite
from dualform.deletion.targets import Targets, kept_sums, targets_of
from dualform.errors import BadInput, EmptyMask
from dualform.query.score import backends
from dualform.query.view import View
from dualform.store.duckdb_path import check_writable
from dualform.store.folder_lock import folder_lock
from dualform.store.leftovers import check_no_links, leftovers
from dualform.store.manifest import Manifest
from dualform.store.runs import opened
from dualform.store.segment_cache import SegmentCache

CACHE_BYTES = 1 << 28


@dataclass(frozen=True)
class Deletion:
    """What is deleted, and what remains of it."""

    samples: int
    """Rows of batches."""
    slots: dict[str, int]
    """Slots by slot space."""
    steps: int
    """Steps that contain any of the samples."""
    alone: int
    """Steps that contain no other samples, so that data of the step is data of these samples."""
    summed: tuple[str, ...]
    """Layers for which one sum of the deleted terms is kept, so that weights at the end still add up."""
    scores_only: tuple[str, ...]
    """Layers that cannot be rebuilt from the first of these steps on; only scores remain."""
    first_step: int
    """The first of these steps."""
    query_sets: tuple[str, ...]
    """Query sets that are removed."""
    unsure: tuple[str, ...]
    """Query sets that are kept but may contain an input of the samples. This cannot be checked if the layer's inputs
    differ in training (dropout, normalised batches, deeper layers) or its keys are not stored."""
    others: tuple[str, ...]
    """Parameters and buffers outside the recorded layers. Their values between the first of these steps and the end are
    removed."""
    span: int
    """The number of steps from the first of these to the end."""
    removed: tuple[str, ...]
    """Other files in the folder that are removed, too: replaced runs, and leftovers of an attempt that was cut off."""
    shown: dict[str, int]
    """By dataset, the number of previews that are removed; "" stands for samples without a dataset."""
    preview_sets: tuple[str, ...]
    """Datasets whose previews are all removed: no sample is left, or samples were recorded without numbers."""
    few: bool
    """Whether a layer with a kept sum is wider than the number of its deleted slots: the sum then spans their keys."""


def delete(path: str | Path, where: str, *, query_sets: tuple[str, ...] = (), cut_off: bool = False) -> Deletion:
    """Delete the samples that `where` matches from the memory in a folder: their keys, values and columns.

    - `where`: an SQL condition over columns of the sample.
    - `query_sets`: query sets to remove, too. Query sets with an input that only these samples had are always removed.
    - `cut_off`: pass True for a recording that was cut off and will not continue.

    This changes the record, not the model, and is not unlearning. Traces remain: W_T minus W_0 minus the other terms is
    the sum of the deleted terms, and tells much if few slots were deleted. If a batch was normalised, the keys of its
    other rows can reveal a single missing one. Copies of the folder, and processes that have it open, still have the
    samples.

    Raises BadInput or EmptyMask for `where`, NotFound for a column or query set, BadInput if a file of the memory is a
    symbolic link, Locked while another process deletes, and Damaged for a damaged memory. In each case the memory is
    unchanged.
    """
    folder = Path(path)
    with folder_lock(folder):
        try:
            view, found = _prepared(folder, where, cut_off)
        except EmptyMask:
            if Manifest.read(folder).deleted:  # it may be what an attempt that was cut off did
                remove_leftovers(folder)
            raise
        told = _told(view, found, query_sets)
        remove_leftovers(folder)
        rewrite(view, found, frozenset(told.query_sets), _never)
        remove_leftovers(folder)
    return told


def planned_deletion(
    path: str | Path, where: str, *, query_sets: tuple[str, ...] = (), cut_off: bool = False
) -> Deletion:
    """What `delete` would do. Raises as it does, and changes nothing."""
    view, found = _prepared(Path(path), where, cut_off)
    return _told(view, found, query_sets)


def _prepared(folder: Path, where: str, cut_off: bool) -> tuple[View, Targets]:
    check_writable(folder)
    snapshot = opened(folder, SegmentCache())
    check_no_links(folder)
    if any(writer.going_on for writer in snapshot.writers) or (snapshot.recording and not cut_off):
        raise BadInput(
            snapshot.cut_off[0].upper() + snapshot.cut_off[1:],
            hint="If the recording has ended, pass cut_off=True.",
            field="path",
        )
    view = View(snapshot, backends.choose("numpy"), CACHE_BYTES)
    return view, targets_of(view, where)


def _told(view: View, found: Targets, query_sets: tuple[str, ...]) -> Deletion:
    for name in query_sets:
        view.snapshot.query_set(name)
    sums = kept_sums(view, found.entries)
    layers = [view.snapshot.layer(name) for name, kept in sums.items() if kept]
    removed = {*query_sets, *query_sets_that_hold(view, dict(found.entries), _never)}
    every = {name for run in view.snapshot.runs for name in run.manifest.query_sets}
    kept_by_step = {name for run in view.snapshot.runs for name in (run.others.names if run.others else ())}
    return Deletion(
        found.samples,
        dict(found.slots),
        found.steps,
        found.alone,
        tuple(name for name, kept in sums.items() if kept),
        tuple(name for name, kept in sums.items() if not kept),
        found.first_step,
        tuple(sorted(removed)),
        tuple(sorted(every - removed)),
        tuple(sorted(kept_by_step)),
        view.snapshot.steps - found.first_step,
        tuple(path.relative_to(view.snapshot.path).as_posix() for path in leftovers(view.snapshot.path)),
        dict(shown(view, found)),
        removed_preview_sets(view, found),
        any(len(found.entries.get(layer.name, ())) < layer.d_in for layer in layers),
    )


def _never() -> None:
    """Nobody asks it to stop."""

"""Writes a memory anew without the samples that were picked, and takes it in place of the old one.

Shapes: D datapoints of the memory, shard after shard and run after run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dualform.deletion.previews import write_preview_sets
from dualform.deletion.sums import sums_of
from dualform.deletion.targets import Targets, touched_blocks
from dualform.errors import Damaged, RecordingError
from dualform.query.view import Check, View
from dualform.store import attributions
from dualform.store.check import what_is_wrong
from dualform.store.deleted_samples import DeletedSamples
from dualform.store.deleted_sums import write_sums
from dualform.store.durable_files import make_folder, make_folders, read_regular, remove_all, sync_folder, write_whole
from dualform.store.kept_slots import Stays
from dualform.store.leftovers import next_name
from dualform.store.manifest import SHARD_FILE, FileMark, Manifest, Shard
from dualform.store.shard_rewrite import Removal, early_rows, manifest_of, rewrite_shard
from dualform.store.snapshot import Snapshot

_SUMS = "forgotten-{:05d}"


def rewrite(view: View, targets: Targets, query_sets: frozenset[str], check: Check) -> None:
    """The memory has none of the picked samples on return; what is left of the old one is leftovers (store/).

    `query_sets`: names of those that go. Raises Damaged where a file is not what was committed, RecordingError where
    the memory changed meanwhile, OSError where there is no room for it twice: it is as before then.
    """
    snapshot, made = view.snapshot, list[Path]()
    old = Manifest.read(snapshot.path)
    try:
        new = _written(view, targets, query_sets, check, made)
        sync_folder(snapshot.path)
        if snapshot.moved() or Manifest.read(snapshot.path) != old:
            raise RecordingError(
                f"{snapshot.path} was written to during the deletion: it is still being recorded.",
                hint="Call dualform.delete after the training has ended.",
            )
    except BaseException:
        _remove(made)
        raise
    new.write(snapshot.path)  # from here on what was made is the memory, whatever happens
    if problems := what_is_wrong(snapshot.path):
        old.write(snapshot.path)
        _remove(made)
        raise Damaged(
            f"The memory without these samples did not pass its check, so the old one was kept: {problems[0]}",
            hint=f"Run 'dualform check {snapshot.path}' to see whether the old one is damaged.",
        )


def _remove(made: Iterable[Path]) -> None:
    for path in made:
        with suppress(OSError):  # what stays of it is leftovers, which are said where they are looked for
            remove_all(path)


def _written(view: View, targets: Targets, query_sets: frozenset[str], check: Check, made: list[Path]) -> Manifest:
    """Everything but memory.json; returns what that is to say. `made`: what was written, as far as it came."""
    snapshot = view.snapshot
    first, *further = _parts(view, targets)
    runs = []
    for part, run in zip(further, snapshot.runs[0].manifest.runs, strict=True):
        place = snapshot.path / next_name(run.folder)
        made.append(place)
        make_folder(place)
        _run(part, targets, query_sets, place, check, made).write(place)
        runs.append(replace(run, folder=place.name))
    manifest = _run(first, targets, query_sets, snapshot.path, check, made)
    before = manifest.deleted
    name = _SUMS.format(int(before.sums.rpartition("-")[2]) + 1 if before and before.sums else 0)
    made.append(snapshot.path / "weights" / f"{name}.safetensors")
    file, mark = write_sums(snapshot.path, name, sums_of(view, targets, check))
    files = {own: known for own, known in manifest.files.items() if not own.startswith("weights/forgotten-")}
    entry = DeletedSamples(targets.samples, targets.first_step, snapshot.steps, name, targets.slots)
    return replace(manifest, runs=runs, files={**files, file: mark}, deleted=entry.and_before(before))


@dataclass(frozen=True)
class _Part:
    """One run."""

    run: Snapshot
    stays: list[Stays]
    """By shard, bool[datapoints]: which stay, of all that it has on disk."""
    deleted: Mapping[str, int]
    """By layer, how many slots go."""
    removal: Removal


def _parts(view: View, targets: Targets) -> Iterator[_Part]:
    first, entries = 0, dict.fromkeys(targets.entries, 0)
    blocks = frozenset(touched_blocks(view, targets.entries))
    for run, before in zip(view.snapshot.runs, view.snapshot.first_steps, strict=True):
        stays = []
        for number in range(len(run.contents.shards)):
            own = early_rows(run.contents, number, "samples")
            count = int(own.sum())
            own[own] = ~targets.datapoints[first : first + count]
            first += count
            stays.append(own)
        gone = {}
        for layer in run.layers:
            if layer in targets.entries:
                start = entries[layer]
                entries[layer] += run.entries(layer).count
                low, high = np.searchsorted(targets.entries[layer], [start, entries[layer]]).tolist()
                gone[layer] = high - low
        first_step, end = targets.first_step - before, view.snapshot.steps - before
        yield _Part(run, stays, gone, Removal(targets.labels, targets.datasets, blocks, first_step, end))


def _run(
    part: _Part, targets: Targets, query_sets: frozenset[str], folder: Path, check: Check, made: list[Path]
) -> Manifest:
    """Write a run's shards, weights, query sets and previews to a folder, its own or another one."""
    run, shards = part.run, list[Shard]()
    for number, stays in enumerate(part.stays):
        old = run.contents.shards[number].manifest
        place = folder / next_name(old.shards[0].folder)
        if folder == run.path:
            made.append(place)
        shards.append(rewrite_shard(run.contents, number, place, stays, part.removal, check))
        if number:
            manifest_of(old, shards[-1:], part.deleted).write(place, SHARD_FILE)
    first, *others = shards
    listed = [first, *(Shard(other.folder) for other in others)]
    manifest = manifest_of(run.contents.shards[0].manifest, listed, part.deleted)
    write_preview_sets(run, manifest, targets, folder, made)
    kept = {name: entry for name, entry in manifest.query_sets.items() if name not in query_sets}
    files = {
        name: mark
        for name, mark in manifest.files.items()
        if not (_of_query_set(name, query_sets) or name.startswith(attributions.FOLDER))
    }
    if folder != run.path:
        _take_along(run.path, folder, {name: mark for name, mark in files.items() if not (folder / name).exists()})
    # A digest of a network would confirm a guess. That of where the run ends is of weights that stay, and a run behind
    # is held against it.
    marks = [mark for mark in manifest.marks if mark.step == run.steps]
    return replace(manifest, query_sets=kept, files=files, marks=marks)


def _take_along(old: Path, new: Path, files: Mapping[str, FileMark]) -> None:
    for name in files:
        make_folders((new / name).parent)
        write_whole(new / name, read_regular(old / name))


def _of_query_set(file: str, query_sets: frozenset[str]) -> bool:
    place, _, rest = file.partition("/")
    return place == "probes" and rest.partition("/")[0] in query_sets

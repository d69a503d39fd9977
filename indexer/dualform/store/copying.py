"""Copies a memory as of one moment to a new folder, also while it is being written, and checks what it wrote.

    .DST.partial    until all of it is on disk and has passed every check; removed where that fails
    DST             from then on, by one rename

A copy shares no byte with its source, so that damage to the one is none of the other. What is derived (codes of keys,
sums) is left behind: it is made again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dualform.errors import AlreadyExists, BadInput, Damaged, Locked
from dualform.store import shard
from dualform.store.check import Progress, what_is_wrong
from dualform.store.duckdb_path import check_writable
from dualform.store.durable_files import (
    copy_file,
    link_file,
    make_folder,
    make_folders,
    read_regular,
    remove_all,
    rename,
    sync_folder,
    write_new,
)
from dualform.store.folder_lock import held_alone
from dualform.store.journal import journal_path
from dualform.store.manifest import SHARD_FILE, Manifest, Shard
from dualform.store.mark import ContinuedRun
from dualform.store.missing_files import deleted_meanwhile
from dualform.store.opening import at_one_moment
from dualform.store.others import FOLDER
from dualform.store.runs import opened
from dualform.store.segment_cache import SegmentCache
from dualform.store.shard_tables import ShardTables, read_only
from dualform.store.snapshot import Snapshot
from dualform.store.tables import OTHERS, TABLES
from dualform.store.writing_lock import FILE as WRITING, writing


@dataclass(frozen=True)
class StoredShard:
    """What a shard consists of at a moment, beside its files that never change."""

    manifest: Manifest
    """Of it alone, or of the whole memory where it is the first."""
    journal: bytes
    """Empty where there is none."""


@dataclass(frozen=True)
class StoredRun:
    """What one run of a memory consists of at a moment."""

    path: Path
    shards: Sequence[StoredShard]


def copy_memory(source: str | Path, target: str | Path, progress: Progress | None = None) -> Snapshot:
    """Copy the memory in a folder, as of its newest commit and frames, to one that is not there yet; returns the copy.

    Raises AlreadyExists where `target` is there, NotAMemory where `source` is none, Damaged where it is not sound,
    Locked where another process copies to the same place, OSError where there is no room: nothing is left then.
    """
    with unfinished(Path(source), Path(target)) as partial:
        for run in runs_at_one_moment(Path(source)):
            write_run(run, partial / run.path.relative_to(source), progress)
        check_copy(Path(source), partial, progress)
    return opened(target, SegmentCache(most_bytes=0))


@contextmanager
def unfinished(source: Path, target: Path) -> Iterator[Path]:
    """A folder to write into, which has the name of `target` once that is done, and is gone where it fails."""
    check_writable(target)
    if target.exists() or target.is_symlink():
        raise AlreadyExists(f"{target} already exists.", hint="Choose a folder that does not exist yet.")
    if target.resolve().is_relative_to(source.resolve()):
        raise BadInput(f"{target} is inside {source}.", hint="Choose a folder outside it.", field="target")
    partial = target.absolute().with_name(f".{target.name}.partial")
    make_folders(partial)
    busy = Locked(f"another process copies to {target}.", hint="Wait until it is done, or name another folder.")
    with held_alone(partial, busy):
        try:
            for left in partial.iterdir():  # by a process that was killed
                remove_all(left)
            yield partial
            for folder in [partial, *(path for path in partial.rglob("*") if path.is_dir())]:
                sync_folder(folder)
            rename(partial, target)
        except BaseException:
            remove_all(partial)
            raise
    sync_folder(target.absolute().parent)


def runs_at_one_moment(folder: Path) -> list[StoredRun]:
    """All runs of a memory, as they are when the last of them is read. Raises NotAMemory or Damaged."""
    while True:
        runs: list[ContinuedRun] = Manifest.read(folder).runs
        found = [_run(place) for place in (folder, *(folder / run.folder for run in runs))]
        if found[0].shards[0].manifest.runs == runs:  # no training was resumed meanwhile
            return found


def _run(folder: Path) -> StoredRun:
    state, journals = at_one_moment(folder, lambda own: _journal(folder, own.shards[0]))
    (first, _), *further = state
    parts = [first.shards[0], *(Shard(own.shards[0].folder) for own, _ in further)]
    manifests = [replace(first, shards=parts), *(own for own, _ in further)]
    return StoredRun(folder, [StoredShard(*each) for each in zip(manifests, journals, strict=True)])


def _journal(folder: Path, part: Shard) -> bytes:
    try:
        return read_regular(journal_path(folder / part.folder, part.commits))
    except FileNotFoundError:
        return b""


def write_run(
    run: StoredRun, target: Path, progress: Progress | None = None, *, linked: bool = False, ended: bool = False
) -> None:
    """Write a run to a folder, which is made where it is not there.

    `linked`: segments are given another name where the file system can. `ended`: nobody writes it any more, also where
    that cannot be told. Raises Damaged for a file that is missing.
    """
    if not target.exists():
        make_folder(target)
    files = list(run.shards[0].manifest.files)
    segments = [name for own in run.shards for name in _write_shard(own, run.path, target, ended)]
    for done, name in enumerate([*files, *segments]):
        if progress:
            progress(name, done, len(files) + len(segments))
        make_folders((target / name).parent)
        place = link_file if linked and done >= len(files) else copy_file
        try:
            place(run.path / name, target / name)
        except FileNotFoundError:
            missing = Damaged(f"{run.path / name} is missing.")
            raise deleted_meanwhile(run.path / name) or missing from None
    # memory.json comes last, as ever.
    for own in (*run.shards[1:], run.shards[0]):
        first = own is run.shards[0]
        own.manifest.write(*((target,) if first else (target / own.manifest.shards[0].folder, SHARD_FILE)))


def _write_shard(own: StoredShard, source: Path, target: Path, ended: bool) -> list[str]:
    """Write what of a shard is no segment; returns the names of its segments' files, within the run."""
    part = own.manifest.shards[0]
    old, new = source / part.folder, target / part.folder
    make_folders(new / "layers")
    for layer in own.manifest.layers:
        make_folder(new / "layers" / layer.folder)
    if own.manifest.others is not None:
        make_folder(new / FOLDER)
    if own.journal:
        write_new(journal_path(new, part.commits), [memoryview(own.journal)], durable=True)
    found = writing(old)
    if ended or found.going_on is not None:  # the copy has no writer, and says so
        said = json.dumps(asdict(found.by)) if found.by else ""
        write_new(new / WRITING, [memoryview(said.encode())], durable=True)
    _copy_tables(old / shard.FILE, new / shard.FILE)
    listed = {"segments": TABLES["segments"]}
    if own.manifest.others is not None:
        listed["other_segments"] = OTHERS["other_segments"]
    marks = {name: part.tables[name] for name in listed}
    tables = ShardTables(new / shard.FILE, listed, marks, {}, {}, ended=not own.manifest.recording)
    return [f"{part.folder}/{name}" for table in listed for name in tables.columns(table, ["file"])[0].to_pylist()]


def _copy_tables(old: Path, new: Path) -> None:
    """While nobody changes them. What was committed since the moment of the manifest is no part of the copy."""
    if not old.is_file():
        raise deleted_meanwhile(old) or Damaged(f"{old} is missing.")
    with read_only(old):
        copy_file(old, new)


def check_copy(source: Path, copy: Path, progress: Progress | None = None) -> None:
    """Hold what was written against every checksum. Raises Damaged, naming the file as the source has it."""
    if problems := what_is_wrong(copy, progress):
        raise Damaged(problems[0].replace(str(copy), str(source)))

"""Copies a memory, or makes a whole one of a damaged one.

Makes a whole memory of a damaged one, in another folder: as of the last commit of which everything is sound.

Only the last run of a training is rewound, shard by shard; the memory then ends where the first of them does, as where
a training was killed. What was dropped stands in memory.json of the copy.

Copies a memory as of one moment to a new folder, also while it is being written, and checks what it wrote.

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
from dualform.store.batch import ContinuedRun
from dualform.store.files.durable_files import (
    block_checksum,
    checksum_file,
    copy_file,
    deleted_meanwhile,
    link_file,
    make_folder,
    make_folders,
    open_regular,
    read_regular,
    remove_all,
    rename,
    sync_folder,
    write_new,
)
from dualform.store.files.segment import SegmentCache
from dualform.store.journal import Frames, check_begun, journal_path, read_frames
from dualform.store.locks import FILE as WRITING, being_written, held_alone, writing
from dualform.store.maintenance import attributions
from dualform.store.maintenance.check import Progress, what_is_wrong
from dualform.store.manifest import SHARD_FILE, FileMark, Manifest, Shard, TableMark
from dualform.store.query_sets import query_sets_until
from dualform.store.reading.opening import at_one_moment
from dualform.store.reading.runs import opened
from dualform.store.reading.shard_tables import ShardTables, read_only
from dualform.store.reading.snapshot import Snapshot
from dualform.store.rows import FOLDER
from dualform.store.shard import check_writable
from dualform.store.tables import OTHERS, TABLES


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


_BLOCK = 1 << 20
_FINAL = "weights/final.safetensors"


def repair(source: str | Path, target: str | Path, progress: Progress | None = None) -> tuple[list[str], Snapshot]:
    """Write what is whole of a damaged memory to a folder that is not there yet; returns what was dropped, one sentence
    each, and the new memory. Segments are the source's own files under another name where the file system can do that.

    Where nothing is wrong, nothing is dropped, and the copy is equal. Raises Damaged where what is damaged cannot be
    done without: weights from before the training, a slots.duckdb, memory.json, or what lies before a further run;
    where no step is left; and as `copy_memory` does.
    """
    folder = Path(source)
    runs = runs_at_one_moment(folder)
    for own in runs[-1].shards:
        place = runs[-1].path / own.manifest.shards[0].folder
        if (found := writing(place)).going_on:
            raise being_written(place, found)
    shown = list[str]()
    runs = [_without_damaged_preview_sets(run, shown) for run in runs]
    rewound, dropped = _rewound(runs[-1], folder)
    if dropped and runs[0].shards[0].manifest.deleted is not None:
        raise Damaged(
            f"{folder} cannot be repaired: {dropped[0]} Samples were deleted from it, so its steps cannot be cut.",
            hint="Restore a backup.",
        )
    with unfinished(folder, Path(target)) as partial:
        for run in (*runs[:-1], rewound):
            last = run is rewound and bool(dropped)
            write_run(run, partial / run.path.relative_to(folder), progress, linked=True, ended=last)
        if dropped:
            dropped += _keep_what_is_reached(rewound, partial / rewound.path.relative_to(folder))
        try:
            check_copy(folder, partial, progress)
        except Damaged as error:
            raise Damaged(f"{folder} cannot be repaired: {error.message}", hint="Restore a backup.") from None
        if dropped and not opened(partial, SegmentCache(most_bytes=0)).steps:
            raise Damaged(f"{folder} has no undamaged step. {dropped[0]}", hint="Restore a backup.")
    return [*shown, *dropped], opened(target, SegmentCache(most_bytes=0))


def _without_damaged_preview_sets(run: StoredRun, dropped: list[str]) -> StoredRun:
    """A run without the preview sets whose files are damaged: nothing else is lost with them."""
    manifest, said = run.shards[0].manifest, list[str]()
    preview_sets, query_sets, files = dict(manifest.preview_sets), dict(manifest.query_sets), dict(manifest.files)
    for name, entry in manifest.preview_sets.items():
        if not _is_whole(run.path / entry["file"], files[entry["file"]]):
            whose = f"dataset {name!r}" if name else "samples without a dataset"
            said.append(f"The preview set of {whose} was dropped: {entry['file']} is damaged.")
            del preview_sets[name], files[entry["file"]]
    for name, query_set in manifest.query_sets.items():
        file = query_set.get("gallery", {}).get("file", "")
        if file and not _is_whole(run.path / file, files[file]):
            said.append(f"The preview set of the query set {name!r} was dropped: {file} is damaged.")
            query_sets[name] = {key: own for key, own in query_set.items() if key != "gallery"}
            del files[file]
    if not said:
        return run
    dropped += said
    repaired = [*manifest.repaired, *said]
    manifest = replace(manifest, preview_sets=preview_sets, query_sets=query_sets, files=files, repaired=repaired)
    return replace(run, shards=[replace(run.shards[0], manifest=manifest), *run.shards[1:]])


def _is_whole(path: Path, mark: FileMark) -> bool:
    return path.is_file() and path.stat().st_size == mark.bytes and checksum_file(path) == mark.checksum


def _rewound(run: StoredRun, folder: Path) -> tuple[StoredRun, list[str]]:
    """A run without what is damaged, and what that is; the run itself where nothing is."""
    dropped, shards = list[str](), list[StoredShard]()
    for own in run.shards:
        shards.append(_sound_part(run, own, folder, dropped))
    manifest = shards[0].manifest
    files, query_sets = dict(manifest.files), dict(manifest.query_sets)
    for name, mark in manifest.files.items():
        path = run.path / name
        if _is_whole(path, mark):
            continue
        if name == _FINAL:
            dropped.append(f"The final weights were dropped: {path.relative_to(folder)} is damaged.")
        elif name.startswith("probes/"):
            query_set = name.split("/")[1]
            if query_sets.pop(query_set, None) is not None:
                dropped.append(f"The query set {query_set!r} was dropped: {path.relative_to(folder)} is damaged.")
            files = {other: known for other, known in files.items() if not other.startswith(f"probes/{query_set}/")}
        elif name.startswith(attributions.FOLDER):
            del files[name]
            dropped.append(f"{path.relative_to(folder)} was dropped: it is damaged.")
        else:
            raise Damaged(f"{path} is damaged, and nothing can be repaired without it.", hint="Restore a backup.")
    if not dropped:
        return run, []
    files.pop(_FINAL, None)
    manifest = replace(
        manifest,
        files=files,
        query_sets=query_sets,
        final={},
        buffers={},
        marks=[],
        repaired=[*manifest.repaired, *dropped],
    )
    ended = [replace(shards[0], manifest=manifest), *shards[1:]]
    return replace(run, shards=[replace(own, manifest=replace(own.manifest, recording=True)) for own in ended]), dropped


def _sound_part(run: StoredRun, own: StoredShard, folder: Path, dropped: list[str]) -> StoredShard:
    """A shard as of the last commit before the first damaged segment. Raises Damaged for its tables."""
    part, types = own.manifest.shards[0], own.manifest.tables()
    place = run.path / part.folder
    tables = ShardTables(place / shard.FILE, types, part.tables, {}, {}, ended=not own.manifest.recording)
    with tables.reading():
        for table, columns in types.items():
            tables.columns(table, list(columns))
    log = _log_of_commits(place / shard.FILE)
    commits, why = part.commits, ""
    for table in [name for name in ("segments", "other_segments") if name in part.tables]:
        for row, (file, size, blocks) in enumerate(
            zip(*(column.to_pylist() for column in tables.columns(table, ["file", "bytes", "blocks"])), strict=True)
        ):
            if not _is_sound(place / file, size, blocks):
                commit = min(number for number, name, _, rows, _ in log if name == table and rows > row)
                if commit < commits:
                    commits, why = commit, (place / file).relative_to(folder).as_posix()
    if commits < part.commits:
        dropped.append(
            f"{part.commits - commits} of {part.commits} commits of {part.folder} were dropped: {why} is damaged."
        )
        return StoredShard(
            replace(own.manifest, shards=[_at_commit(part, commits, log), *own.manifest.shards[1:]]), b""
        )
    try:
        check_begun(place, part.commits, part.journal, read_frames(place, part.commits, types) or Frames())
    except Damaged as error:
        dropped.append(f"The steps since the last commit of {part.folder} were dropped: {_within(error, folder)}")
        shards = [replace(part, journal=""), *own.manifest.shards[1:]]
        return StoredShard(replace(own.manifest, shards=shards), b"")
    return own


def _within(error: Damaged, folder: Path) -> str:
    return error.message.replace(f"{folder}/", "")


Log = Sequence[tuple[int, str, str, int, str]]
"""commit, table, column, rows, digest of each link of a column's chain."""


def _log_of_commits(database: Path) -> Log:
    with shard.opened(database) as connection:
        found = connection.execute('SELECT commit, "table", "column", "rows", digest FROM commits ORDER BY rowid')
        return found.fetchall()


def _at_commit(part: Shard, commits: int, log: Log) -> Shard:
    """What a shard's entry said after so many commits."""
    tables = {}
    for table, mark in part.tables.items():
        links = [(column, rows, digest) for commit, name, column, rows, digest in log if name == table]
        before = [rows for commit, name, _, rows, _ in log if name == table and commit < commits]
        rows = max(before, default=0)
        # The last link of each column that reaches as far; none where it came later, and is NULL.
        last = {column: digest for column, stop, digest in links if stop == rows}
        tables[table] = TableMark(rows, last if rows else dict.fromkeys(mark.digests, ""))
    return Shard(part.folder, commits, tables)


def _is_sound(path: Path, size: int, blocks: bytes) -> bool:
    """Whether a segment's file is what was committed: its size, and the checksum of each MiB."""
    if not path.is_file() or path.stat().st_size != size:
        return False
    with open_regular(path) as file:
        pieces = iter(lambda: file.read(_BLOCK), b"")
        return b"".join(map(block_checksum, pieces)) == bytes(blocks)


def _keep_what_is_reached(run: StoredRun, copy: Path) -> list[str]:
    """Moments at which the training may still be resumed, and query sets, are those that the copy reaches; returns
    which query sets were dropped, a sentence each.
    """
    steps = Snapshot.open(copy).steps
    manifest, held = Manifest.read(copy), run.shards[0].manifest.shards[0].tables
    known = Manifest.read(run.path).marks
    reached = {name: table.rows for name, table in held.items()}  # a mark says 0 of a table that there is not
    kept = [
        mark
        for mark in known
        if mark.step <= steps and all(reached.get(name, 0) >= rows for name, rows in mark.rows.items())
    ]
    query_sets = query_sets_until(manifest.query_sets, steps)
    behind = [name for name in manifest.query_sets if name not in query_sets]
    said = [f"The query set {name!r} was dropped: it was taken after the last step that is left." for name in behind]
    inside = tuple(f"probes/{name}/" for name in behind)
    files = {name: mark for name, mark in manifest.files.items() if not name.startswith(inside)}
    repaired = [*manifest.repaired, *said]
    replace(manifest, marks=kept, query_sets=query_sets, files=files, repaired=repaired).write(copy)
    for name in behind:
        remove_all(copy / "probes" / name)
    return said

"""Makes a whole memory of a damaged one, in another folder: as of the last commit of which everything is sound.

Only the last run of a training is rewound, shard by shard; the memory then ends where the first of them does, as where
a training was killed. What was dropped stands in memory.json of the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dualform.errors import Damaged
from dualform.store import attributions, shard
from dualform.store.check import Progress
from dualform.store.copying import StoredRun, StoredShard, check_copy, runs_at_one_moment, unfinished, write_run
from dualform.store.durable_files import block_checksum, checksum_file, open_regular, remove_all
from dualform.store.journal import Frames, check_begun, read_frames
from dualform.store.manifest import FileMark, Manifest, Shard, TableMark
from dualform.store.query_sets import query_sets_until
from dualform.store.runs import opened
from dualform.store.segment_cache import SegmentCache
from dualform.store.shard_tables import ShardTables
from dualform.store.snapshot import Snapshot
from dualform.store.writing_lock import being_written, writing

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
    with shard.opened(database, read_only=True) as connection:
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
    kept = [
        mark
        for mark in known
        if mark.step <= steps and all(name in held and held[name].rows >= rows for name, rows in mark.rows.items())
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

"""Opens the folder of a memory: manifests, journals, tables and matrix files of its shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dualform.errors import Damaged, NotAMemory
from dualform.store import shard
from dualform.store.batch import Cut
from dualform.store.files.durable_files import damaged
from dualform.store.files.segment import MatrixForm, Segment, SegmentCache
from dualform.store.journal import Frames, JournalMark, check_begun, journal_mark, journal_path, read_frames
from dualform.store.layer import Layer, ValueFormat
from dualform.store.manifest import SHARD_FILE, Manifest, joined_manifests
from dualform.store.query_sets import query_sets_until
from dualform.store.reading.merged_tables import MergedTables, types_for_slots
from dualform.store.reading.shard_tables import ShardTables, Tables, whole
from dualform.store.reading.space import PLAIN
from dualform.store.rows import OWNER
from dualform.store.sources import KeyFormat
from dualform.store.sources.key_format import HeldRows, KeySource, StoredRows
from dualform.store.sources.segment_rows import SegmentRows
from dualform.store.tables import OTHERS, TABLES, common_types, extents_table

Sources: TypeAlias = Mapping[tuple[str, str], Sequence[KeySource]]
"""Where rows come from, in order, by (layer, "keys" or "values")."""
Stored: TypeAlias = Mapping[tuple[str, str], Sequence[tuple[MatrixForm, StoredRows]]]
"""The same, as they are stored, each in its form."""


def stored_in_shard(
    place: Path, manifest: Manifest, tables: ShardTables, frames: Frames, cache: SegmentCache
) -> Stored:
    """The committed segments of each layer in the folder `place`, and behind them the rows of the journal.

    Raises Damaged, naming the file, for what no source of the layer can have written.
    """
    layers = {layer.name: layer for layer in manifest.layers}
    found: dict[tuple[str, str], list[tuple[MatrixForm, StoredRows]]] = {}
    for row in whole(tables, "segments").to_pylist():
        layer, kind = layers[row["layer"]], row["kind"]
        segment = Segment(place / row["file"], row["first_row"], row["rows"], row["bytes"], row["blocks"])
        form = form_of_file(layer, kind, segment.path)
        found.setdefault((layer.name, kind), []).append((form, SegmentRows(segment, form, cache)))
    if manifest.others is not None:
        for row in whole(tables, "other_segments").to_pylist():
            segment = Segment(place / row["file"], row["first_row"], row["rows"], row["bytes"], row["blocks"])
            form = manifest.others.form
            found.setdefault(OWNER, []).append((form, SegmentRows(segment, form, cache)))
    journal = journal_path(place, manifest.shards[0].commits)
    for (name, kind), parts in frames.matrices.items():
        before = found.setdefault((name, kind), [])
        for first, content in parts:
            of_others = (name, kind) == OWNER and manifest.others is not None
            forms = [manifest.others.form] if of_others and manifest.others else _format_of(layers[name], kind).forms
            held = _held((journal, frames.file_id, name, kind), first, content, forms)
            if held is None or first != row_count([rows for _, rows in before]):
                raise damaged(journal, f"was altered: its {kind} of layer {name!r} do not follow the committed ones")
            if held[1].rows:
                before.append(held)
    return found


def sources_of(manifest: Manifest, stored: Stored) -> Sources:
    """What stored rows stand for."""
    layers = {layer.name: layer for layer in manifest.layers}
    found: dict[tuple[str, str], list[KeySource]] = {}
    for owner, own in stored.items():
        name, kind = owner
        found[owner] = [rows if owner == OWNER else _format_of(layers[name], kind).source(rows) for _, rows in own]
    return found


def _format_of(layer: Layer, kind: str) -> KeyFormat | ValueFormat:
    return layer.key_format if kind == "keys" else layer.value_format


def form_of_file(layer: Layer, kind: str, file: Path) -> MatrixForm:
    """The name of a file tells its form. Raises Damaged for one that this kind of file has not."""
    for form in _format_of(layer, kind).forms:
        if file.name.endswith(f".{form.suffix}"):
            return form
    source = f"key source is {layer.source!r}" if kind == "keys" else f"values are stored as {layer.value_source!r}"
    raise damaged(file, f"cannot hold {kind} of layer {layer.name!r}, whose {source}")


def _held(
    whose: tuple[Hashable, ...], first: int, content: NDArray[Any], forms: Sequence[MatrixForm]
) -> tuple[MatrixForm, HeldRows] | None:
    """Rows [rows, width] of a journal, and the form that has their type; None where no form has."""
    for form in forms:
        if (form.dtype, form.width) == (content.dtype, content.shape[1]):
            rows = content.reshape(len(content), *form.shape)
            return form, HeldRows((*whose, first, len(rows)), first, rows)
    return None


def stacked(parts: Sequence[Mapping[tuple[str, str], Sequence[KeySource]]]) -> Sources:
    """The sources of several parts, each numbering its rows behind those of the parts before it."""
    found: dict[tuple[str, str], list[KeySource]] = {}
    for key in dict.fromkeys(key for own in parts for key in own):
        before = 0
        for own in parts:
            found.setdefault(key, []).extend(source.shifted(before) for source in own.get(key, []))
            before += row_count(own.get(key, []))
    return found


def row_count(sources: Sequence[KeySource | StoredRows]) -> int:
    """Rows of all the sources of a layer and kind."""
    return sources[-1].first_row + sources[-1].rows if sources else 0


_TRIES = 100
_Found = TypeVar("_Found")

State = list[tuple[Manifest, JournalMark]]
"""By shard, what its manifest says and how far its journal is."""


@dataclass(frozen=True, eq=False)
class ShardContents:
    """One shard by itself, with what of it is no part of the memory."""

    place: Path
    manifest: Manifest
    tables: ShardTables
    stored: Stored


@dataclass(frozen=True, eq=False)
class FolderContents:
    """What a snapshot is made of."""

    manifest: Manifest
    """Of all shards."""
    tables: Tables
    sources: Sources
    """Shard after shard."""
    rows: Mapping[tuple[str, str], Sequence[int]]
    """How many rows each shard has, by layer and kind."""
    frames: int
    torn: Sequence[Path]
    """Journals whose last frame is not whole."""
    journals: Sequence[str]
    """By shard, the checksum of its journal, as far as it is part of this."""
    state: State
    shards: Sequence[ShardContents] = ()
    last: int | None = None
    """The last step that is part of the memory; None for all of every shard."""
    told: Mapping[str, int] = field(default_factory=dict)
    """Of some tables, how many rows of the first shard are part of it."""
    whole: bool = True
    """Whether the memory ends where its first shard does, whose process writes the weights of the end."""


def open_folder(folder: Path, cache: SegmentCache, cut: Cut | None = None) -> FolderContents:
    """`cut`: what belongs to the memory, of a run from which another one went on; None for all.

    Raises NotAMemory where there is no memory, Damaged where a file is missing, cut short or altered, and where there
    are not as many steps.
    """
    state, frames = at_one_moment(
        folder,
        lambda own: read_frames(folder / own.shards[0].folder, own.shards[0].commits, own.tables()) or Frames(),
    )
    shards = list[ShardContents]()
    for (manifest, _), journal in zip(state, frames, strict=True):
        part = manifest.shards[0]
        check_begun(folder / part.folder, part.commits, part.journal, journal)
        first: dict[str, Sequence[str]] = {extents_table(space): PLAIN for space in manifest.spaces}
        first |= {name: list(TABLES[name]) for name in ("entries", "segments")}
        if manifest.others is not None:
            first["other_segments"] = list(OTHERS["other_segments"])
        place = folder / part.folder
        kept = (manifest.tables(), part.tables, first, journal.tables)
        table = ShardTables(place / shard.FILE, *kept, ended=not manifest.recording)
        stored = stored_in_shard(place, manifest, table, journal, cache)
        shards.append(ShardContents(place, manifest, table, stored))
    tables, sources = [own.tables for own in shards], [sources_of(own.manifest, own.stored) for own in shards]
    _check_spaces(folder, [manifest for manifest, _ in state])
    manifest = _of_all([manifest for manifest, _ in state])
    last = _last_of_all(tables, state)
    if cut is not None:
        _check_reaches(folder, cut.steps, tables, state)
        manifest = replace(manifest, recording=False, query_sets=query_sets_until(manifest.query_sets, cut.steps))
        last = cut.steps - 1
        if max(map(_last_step, tables)) < cut.steps and not _tells_more(tables[0], cut):
            cut, last = None, None
    rows = {key: [row_count(own.get(key, [])) for own in sources] for own in sources for key in own}
    found = FolderContents(
        manifest,
        tables[0] if len(tables) == 1 and last is None else _merged(tables, manifest, last, cut),
        sources[0] if len(sources) == 1 else stacked(sources),
        rows,
        sum(journal.count for journal in frames),
        [
            journal_path(folder / own.shards[0].folder, own.shards[0].commits)
            for (own, _), journal in zip(state, frames, strict=True)
            if journal.torn
        ],
        [journal.checksum for journal in frames],
        state,
        shards,
        last,
        cut.rows if cut else {},
        whole=cut is None and (last is None or last >= _last_step(tables[0])),
    )
    _check_sizes(folder, manifest, found.sources)
    return found


def read_state(folder: Path) -> State:
    """What the manifests of a memory's shards say at this moment. Raises NotAMemory or Damaged."""
    first = Manifest.read(folder)
    state = [_marked(folder, replace(first, shards=first.shards[:1]))]
    for part in first.shards[1:]:
        try:
            own = Manifest.read(folder / part.folder, SHARD_FILE)
        except NotAMemory:
            if not first.recording:
                raise damaged(folder / part.folder / SHARD_FILE, "is missing") from None
            raise NotAMemory(
                f"{folder} is incomplete: {part.folder} has not begun.",
                hint="Wait until every process of the training has taken its first step.",
            ) from None
        state.append(_marked(folder, own))
    return state


def at_one_moment(folder: Path, read: Callable[[Manifest], _Found]) -> tuple[State, list[_Found]]:
    """Manifests, and what is `read` of each shard's journal: a training that goes on may commit in between, and start
    another journal. Raises as `read_state` and `read` do.
    """
    for _ in range(_TRIES):
        state = read_state(folder)
        found = [read(own) for own, _ in state]
        # Frames may have been added to the same journals meanwhile: what was read of them is a moment, too.
        if [(own, journal.file_id) for own, journal in read_state(folder)] == [(own, j.file_id) for own, j in state]:
            return state, found
        time.sleep(0.01)
    raise Damaged(f"{folder} changed faster than it could be read.", hint="Open it again in a moment.")


def _marked(folder: Path, manifest: Manifest) -> tuple[Manifest, JournalMark]:
    part = manifest.shards[0]
    return manifest, journal_mark(folder / part.folder, part.commits)


def _check_spaces(folder: Path, manifests: Sequence[Manifest]) -> None:
    """Raises NotAMemory for a layer whose slots are those of one space in one shard and of another in another."""
    first: dict[str, tuple[str, str]] = {}
    for manifest in manifests:
        for layer in manifest.layers:
            here = layer.space, manifest.shards[0].folder
            space, shard_name = first.setdefault(layer.name, here)
            if space != layer.space:
                raise NotAMemory(
                    f"{folder} cannot be opened: layer {layer.name!r} is in space {space!r} in {shard_name}, but in "
                    f"{layer.space!r} in {here[1]}.",
                    hint=f"Record again with the same spaces={{{layer.name!r}: …}} on every rank.",
                )


def _of_all(manifests: Sequence[Manifest]) -> Manifest:
    """The manifest of the whole: what any shard has seen."""
    columns: dict[str, dict[str, str]] = {}
    for manifest in manifests:
        for table, types in manifest.columns.items():
            columns[table] = common_types(columns.get(table, {}), types)
    base = replace(manifests[0], recording=any(manifest.recording for manifest in manifests))
    return joined_manifests(manifests, base, types_for_slots(columns, manifests), itemgetter(0))


def _merged(tables: Sequence[ShardTables], manifest: Manifest, last: int | None, cut: Cut | None) -> MergedTables:
    spaces = {layer.name: layer.space for layer in manifest.layers}
    return MergedTables(tables, manifest.tables(), spaces, last, cut.rows if cut else {})


def _last_of_all(tables: Sequence[ShardTables], state: State) -> int | None:
    """While any shard is being recorded, or was cut off, the memory ends at the last step that all of those have on
    disk. None for a memory of one shard, and where all came to their end.
    """
    if len(tables) == 1:
        return None
    ends = [_last_step(own) for own, (part, _) in zip(tables, state, strict=True) if part.recording]
    return min(ends) if ends else None


def _tells_more(tables: ShardTables, cut: Cut) -> bool:
    """Whether a shard has rows that were told after the cut, of steps before it."""
    return any(tables.rows(name) > rows for name, rows in cut.rows.items())


def _check_reaches(folder: Path, stop: int, tables: Sequence[ShardTables], state: State) -> None:
    """Raises Damaged where a shard that was not closed ends before the steps that a later run follows."""
    for own, (manifest, _) in zip(tables, state, strict=True):
        if manifest.recording and _last_step(own) < stop - 1:
            raise Damaged(
                f"{folder / manifest.shards[0].folder} ends after step {_last_step(own)}, but the training was resumed "
                f"after step {stop - 1}.",
                hint="Record again, with recorder.flush() on every rank before each checkpoint.",
            )


def _last_step(tables: ShardTables) -> int:
    """The last step that a shard has rows of; extents stay where all rows of a step were deleted."""
    having = ["samples", *(name for name in tables.types if name.startswith("extents_"))]
    return max(int(np.asarray(tables.columns(name, ["step"])[0]).max(initial=-1)) for name in having)


def _check_sizes(folder: Path, manifest: Manifest, sources: Sources) -> None:
    files = [source.segment for each in sources.values() for source in each if source.segment is not None]
    expected = {file.path: file.size for file in files}
    expected |= {folder / name: mark.bytes for name, mark in manifest.files.items()}
    for path, size in expected.items():
        if not path.is_file():
            raise damaged(path, "is missing")
        if path.stat().st_size != size:
            raise damaged(path, f"has {path.stat().st_size} bytes instead of {size}")

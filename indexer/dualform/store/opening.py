"""Opens the folder of a memory: manifests, journals and tables of its shards, held against each other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import Damaged, NotAMemory
from dualform.store import shard
from dualform.store.extents import PLAIN
from dualform.store.journal import Frames, journal_path, read_frames
from dualform.store.layer import Layer
from dualform.store.manifest import SHARD_FILE, Manifest
from dualform.store.matrix_file import MatrixForm
from dualform.store.merged_tables import MergedTables
from dualform.store.segment import Segment
from dualform.store.segment_cache import SegmentCache
from dualform.store.shard_tables import ShardTables, Tables, whole
from dualform.store.sources.held_rows import HeldRows
from dualform.store.sources.key_source import KeySource, StoredRows
from dualform.store.sources.segment_rows import SegmentRows
from dualform.store.tables import TABLES, extents_table

_TRIES = 100

Sources = dict[tuple[str, str], list[KeySource]]
"""Where rows come from, in order, by (layer, "keys" or "values")."""
State = list[tuple[Manifest, int]]
"""By shard, what its manifest says and how long its journal is."""


@dataclass(frozen=True, eq=False)
class Opened:
    """What a snapshot is made of."""

    manifest: Manifest
    """Of all shards."""
    tables: Tables
    sources: Sources
    """Shard after shard."""
    rows: Mapping[tuple[str, str], Sequence[int]]
    """How many rows each shard has, by layer and kind."""
    frames: int
    torn: bool
    state: State


def open_folder(folder: Path, cache: SegmentCache) -> Opened:
    """Raises NotAMemory where there is no memory, Damaged where a file is missing, cut short or altered."""
    state, frames = _at_one_moment(folder)
    tables, sources = [], []
    for (manifest, _), journal in zip(state, frames, strict=True):
        part = manifest.shards[0]
        first: dict[str, Sequence[str]] = {extents_table(space): PLAIN for space in manifest.spaces}
        first |= {name: list(TABLES[name]) for name in ("entries", "segments")}
        place = folder / part.folder
        tables.append(ShardTables(place / shard.FILE, manifest.tables(), part.tables, first, journal.tables))
        sources.append(_sources(place, manifest, tables[-1], journal, cache))
    manifest = _joined([manifest for manifest, _ in state])
    rows = {key: [_count(own.get(key, [])) for own in sources] for own in sources for key in own}
    found = Opened(
        manifest,
        tables[0] if len(tables) == 1 else _merged(tables, manifest, state),
        sources[0] if len(sources) == 1 else stacked(sources),
        rows,
        sum(journal.count for journal in frames),
        any(journal.torn for journal in frames),
        state,
    )
    _check_sizes(folder, manifest, found.sources)
    return found


def read_state(folder: Path) -> State:
    """What the manifests of a memory's shards say at this moment. Raises NotAMemory or Damaged."""
    first = Manifest.read(folder)
    state = [(replace(first, shards=first.shards[:1]), _journal_bytes(folder, first))]
    for part in first.shards[1:]:
        try:
            own = Manifest.read(folder / part.folder, SHARD_FILE)
        except NotAMemory:
            if not first.recording:
                raise Damaged(f"{folder / part.folder} is missing, or has no {SHARD_FILE}.") from None
            raise NotAMemory(
                f"{folder} is not a whole memory yet: {part.folder} has not begun.",
                hint="Wait until every process of the training has taken its first step.",
            ) from None
        state.append((own, _journal_bytes(folder, own)))
    return state


def _at_one_moment(folder: Path) -> tuple[State, list[Frames]]:
    """Manifests and journals: a training that goes on may commit in between, and start another journal."""
    for _ in range(_TRIES):
        state = read_state(folder)
        frames = [
            read_frames(folder / own.shards[0].folder, own.shards[0].commits, own.tables()) or Frames()
            for own, _ in state
        ]
        if [manifest for manifest, _ in read_state(folder)] == [manifest for manifest, _ in state]:
            return state, frames
        time.sleep(0.01)
    raise Damaged(f"{folder}: its commits came faster than they could be read.")


def _journal_bytes(folder: Path, manifest: Manifest) -> int:
    part = manifest.shards[0]
    try:
        return journal_path(folder / part.folder, part.commits).stat().st_size
    except FileNotFoundError:
        return 0


def _joined(manifests: Sequence[Manifest]) -> Manifest:
    """The manifest of the whole: what any shard has seen."""
    first = manifests[0]
    layers = {layer.name: layer for manifest in reversed(manifests) for layer in manifest.layers}
    order = dict.fromkeys(layer.name for manifest in manifests for layer in manifest.layers)
    columns: dict[str, dict[str, str]] = {}
    for manifest in manifests:
        for table, types in manifest.columns.items():
            columns[table] = {**columns.get(table, {}), **types}
    return replace(
        first,
        layers=[layers[name] for name in order],
        spaces=list(dict.fromkeys(space for manifest in manifests for space in manifest.spaces)),
        columns=columns,
        shards=[manifest.shards[0] for manifest in manifests],
        recording=any(manifest.recording for manifest in manifests),
    )


def _merged(tables: Sequence[ShardTables], manifest: Manifest, state: State) -> MergedTables:
    """While any shard is being recorded, the memory ends at the last step that all of those have on disk."""
    ends = [_last_step(own) for own, (part, _) in zip(tables, state, strict=True) if part.recording]
    spaces = {layer.name: layer.space for layer in manifest.layers}
    return MergedTables(tables, manifest.tables(), spaces, min(ends) if ends else None)


def _last_step(tables: ShardTables) -> int:
    steps = np.asarray(tables.columns("samples", ["step"])[0])
    return int(steps.max(initial=-1))


def stacked(parts: Sequence[Mapping[tuple[str, str], Sequence[KeySource]]]) -> Sources:
    """The sources of several parts, each numbering its rows behind those of the parts before it."""
    found: Sources = {}
    for key in dict.fromkeys(key for own in parts for key in own):
        before = 0
        for own in parts:
            found.setdefault(key, []).extend(source.shifted(before) for source in own.get(key, []))
            before += _count(own.get(key, []))
    return found


def _count(sources: Sequence[KeySource]) -> int:
    return sources[-1].first_row + sources[-1].rows if sources else 0


def _sources(place: Path, manifest: Manifest, tables: ShardTables, frames: Frames, cache: SegmentCache) -> Sources:
    """The committed segments of each layer, and behind them the rows of the journal."""
    layers = {layer.name: layer for layer in manifest.layers}
    found: Sources = {}
    for row in whole(tables, "segments").to_pylist():
        layer, kind = layers[row["layer"]], row["kind"]
        segment = Segment(place / row["file"], row["first_row"], row["rows"], row["bytes"], row["blocks"])
        stored = SegmentRows(segment, _form_of_file(layer, kind, segment), cache)
        found.setdefault((layer.name, kind), []).append(_source(layer, kind, stored))
    journal = journal_path(place, manifest.shards[0].commits)
    for (name, kind), parts in frames.matrices.items():
        before = found.setdefault((name, kind), [])
        for first, content in parts:
            held = _held(journal, layers[name], kind, first, content)
            source = None if held is None else _source(layers[name], kind, held)
            if source is None or source.first_row != _count(before):
                raise Damaged(f"{journal} was altered: its {kind} of layer {name!r} do not follow the committed ones.")
            if source.rows:
                before.append(source)
    return found


def _forms(layer: Layer, kind: str) -> Sequence[MatrixForm]:
    return layer.key_format.forms if kind == "keys" else (layer.value_form,)


def _form_of_file(layer: Layer, kind: str, segment: Segment) -> MatrixForm:
    """The name of a file tells its form. Raises Damaged for one that this kind of file has not."""
    for form in _forms(layer, kind):
        if segment.path.suffix == f".{form.suffix}":
            return form
    raise Damaged(f"{segment.path} is no file of {kind} of layer {layer.name!r}, whose key source is {layer.source!r}.")


def _held(journal: Path, layer: Layer, kind: str, first: int, content: NDArray[Any]) -> HeldRows | None:
    """Rows [rows, width] of a journal in the form that has their type; None where no form has."""
    for form in _forms(layer, kind):
        if (form.dtype, form.width) == (content.dtype, content.shape[1]):
            rows = content.reshape(len(content), *form.shape)
            return HeldRows((journal, layer.name, kind, first, len(rows)), first, rows)
    return None


def _source(layer: Layer, kind: str, stored: StoredRows) -> KeySource:
    return layer.key_format.source(stored) if kind == "keys" else stored


def _check_sizes(folder: Path, manifest: Manifest, sources: Sources) -> None:
    files = [source.segment for each in sources.values() for source in each if source.segment is not None]
    expected = {file.path: file.size for file in files}
    expected |= {folder / name: mark.bytes for name, mark in manifest.files.items()}
    for path, size in expected.items():
        if not path.is_file():
            raise Damaged(f"{path} is missing.")
        if path.stat().st_size != size:
            raise Damaged(f"{path} has {path.stat().st_size} bytes where {size} were committed.")

"""Opens the folder of a memory: its manifest, its journal and its tables, held against each other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dualform.errors import Damaged
from dualform.store import shard
from dualform.store.dense_rows import DenseRows
from dualform.store.extents import PLAIN
from dualform.store.held_rows import HeldRows
from dualform.store.journal import Frames, journal_path, read_frames
from dualform.store.key_source import KeySource
from dualform.store.layer import Layer
from dualform.store.manifest import Manifest
from dualform.store.matrix_file import Header, flat_index_header, npy_header
from dualform.store.rows import SegmentCache
from dualform.store.segment import Segment
from dualform.store.shard_tables import ShardTables, whole
from dualform.store.tables import TABLES, extents_table

_TRIES = 100
_HEADERS: Mapping[str, Header] = {"keys": flat_index_header, "values": npy_header}


@dataclass(frozen=True, eq=False)
class Opened:
    """What a snapshot is made of."""

    manifest: Manifest
    tables: ShardTables
    sources: dict[tuple[str, str], list[KeySource]]
    """In order, by (layer, "keys" or "values")."""
    frames: Frames
    journal_bytes: int
    """Of the journal when it was read, or before."""


def open_folder(folder: Path, cache: SegmentCache) -> Opened:
    """Raises NotAMemory where there is no memory, Damaged where a file is missing, cut short or altered."""
    manifest, frames, journal_bytes = _manifest_and_journal(folder)
    part = manifest.shards[0]
    first: dict[str, Sequence[str]] = {extents_table(space): PLAIN for space in manifest.spaces}
    first |= {name: list(TABLES[name]) for name in ("entries", "segments")}
    place = folder / part.folder
    tables = ShardTables(place / shard.FILE, manifest.tables(), part.tables, first, frames.tables)
    sources = _sources(place, manifest, tables, frames, cache)
    _check_sizes(folder, manifest, sources)
    return Opened(manifest, tables, sources, frames, journal_bytes)


def _manifest_and_journal(folder: Path) -> tuple[Manifest, Frames, int]:
    """Both as of one moment: a training that goes on may commit in between, and start another journal."""
    for _ in range(_TRIES):
        manifest = Manifest.read(folder)
        if len(manifest.shards) != 1:
            raise Damaged(f"{folder} has {len(manifest.shards)} shards; this version reads memories of one.")
        part, size = manifest.shards[0], journal_bytes(folder, manifest)
        frames = read_frames(folder / part.folder, part.commits, manifest.tables())
        if Manifest.read(folder) == manifest:
            return manifest, frames or Frames(), size
        time.sleep(0.01)
    raise Damaged(f"{folder}: its commits came faster than they could be read.")


def journal_bytes(folder: Path, manifest: Manifest) -> int:
    """How long the journal of a memory's last commit is; 0 where there is none."""
    part = manifest.shards[0]
    try:
        return journal_path(folder / part.folder, part.commits).stat().st_size
    except FileNotFoundError:
        return 0


def _sources(
    place: Path, manifest: Manifest, tables: ShardTables, frames: Frames, cache: SegmentCache
) -> dict[tuple[str, str], list[KeySource]]:
    """The committed segments of each layer, and behind them the rows of the journal."""
    layers = {layer.name: layer for layer in manifest.layers}
    found: dict[tuple[str, str], list[KeySource]] = {}
    for row in whole(tables, "segments").to_pylist():
        layer, kind = row["layer"], row["kind"]
        segment = Segment(place / row["file"], row["first_row"], row["rows"], row["bytes"], row["blocks"])
        held = DenseRows(segment, _width(layers[layer], kind), _HEADERS[kind], cache)
        found.setdefault((layer, kind), []).append(held)
    journal = journal_path(place, manifest.shards[0].commits)
    for (layer, kind), (first, content) in frames.matrices.items():
        before = found.setdefault((layer, kind), [])
        last = before[-1].first_row + before[-1].rows if before else 0
        if first != last or content.shape[1] != _width(layers[layer], kind):
            raise Damaged(f"{journal} was altered: its {kind} of layer {layer!r} do not follow the committed ones.")
        if len(content):
            before.append(HeldRows((journal, layer, kind, len(content)), first, content))
    return found


def _width(layer: Layer, kind: str) -> int:
    return layer.d_in if kind == "keys" else layer.d_out


def _check_sizes(folder: Path, manifest: Manifest, sources: Mapping[tuple[str, str], Sequence[KeySource]]) -> None:
    dense = [source for each in sources.values() for source in each if isinstance(source, DenseRows)]
    expected = {source.segment.path: source.segment.size for source in dense}
    expected |= {folder / name: mark.bytes for name, mark in manifest.files.items()}
    for path, size in expected.items():
        if not path.is_file():
            raise Damaged(f"{path} is missing.")
        if path.stat().st_size != size:
            raise Damaged(f"{path} has {path.stat().st_size} bytes where {size} were committed.")

"""Where the rows of a shard's layers come from: its segments and its journal, and those of several shards or runs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from dualform.store.journal import Frames, journal_path
from dualform.store.layer import Layer
from dualform.store.manifest import Manifest
from dualform.store.matrix_file import MatrixForm
from dualform.store.missing_files import damaged
from dualform.store.others import OWNER
from dualform.store.segment import Segment
from dualform.store.segment_cache import SegmentCache
from dualform.store.shard_tables import ShardTables, whole
from dualform.store.sources import KeyFormat
from dualform.store.sources.held_rows import HeldRows
from dualform.store.sources.key_source import KeySource, StoredRows
from dualform.store.sources.segment_rows import SegmentRows
from dualform.store.value_format import ValueFormat

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

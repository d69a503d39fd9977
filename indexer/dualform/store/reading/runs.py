"""Several runs of one training as one memory.

Several runs of one training as one memory: a training that was resumed records into a folder of its own.

Steps and slots of a run follow those of the run before. The weights begin as those of the first run and end as those
of the last; whether a run began with the weights that the one before ended with is for the engine to ask.

The tables of several runs of one training as those of one: each run's rows follow those of the run before.

Steps, slots and datapoints of a run are numbered behind those of the runs before it. `samples` has one column more,
`run`: the number of each datapoint's run, from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dualform.errors import BadInput, NotFound
from dualform.store.batch import cuts
from dualform.store.files.segment import SegmentCache
from dualform.store.layer import PRECISIONS, Layer, joined_optimizers
from dualform.store.locks import Writing
from dualform.store.manifest import Manifest, joined_manifests
from dualform.store.previews.stored_previews import StoredPreviewSet
from dualform.store.query_sets import StoredQuerySet
from dualform.store.reading.merged_tables import missing_lists, types_for_slots
from dualform.store.reading.opening import stacked
from dualform.store.reading.shard_tables import Tables, taken
from dualform.store.reading.snapshot import Snapshot
from dualform.store.rows import Integers, Rows
from dualform.store.tables import SHARE, ColumnTypes, arrow_type, as_common, common_types, extents_table, joined
from dualform.store.weights import DeletedPart

RUN = "run"
"""The column of `samples` that names a datapoint's run, where the training recorded none of that name."""
_STEPS = ("step", "first_step")


class RunTables(Tables):
    """Tables (shard_tables.py)."""

    def __init__(
        self,
        parts: Sequence[Tables],
        first_steps: Sequence[int],
        types: Mapping[str, ColumnTypes],
        spaces: Mapping[str, str],
        folders: Sequence[str],
    ) -> None:
        """`first_steps`: the number of each run's first step. `spaces`: the space of each layer. `folders`: where the
        files of each run's segments lie."""
        self.types = types
        self._parts, self._first_steps, self._spaces, self._folders = parts, first_steps, spaces, folders
        self._held: dict[tuple[str, str], pa.ChunkedArray] = {}
        self._first_slots = {table: self._before(table, "slots") for table in types if table.startswith("extents_")}

    def rows(self, table: str) -> int:
        return len(self.columns(table, [next(iter(self.types[table]))])[0])

    def columns(self, table: str, names: Sequence[str]) -> list[pa.ChunkedArray]:
        return [self._column(table, name) for name in names]

    def some(self, table: str, name: str, rows: Integers) -> pa.Array:
        kind = self.types[table][name]
        if not pa.types.is_list(arrow_type(kind)):
            return taken(self._column(table, name), rows)
        starts = np.cumsum([0, *(self._rows(n, table) for n in range(len(self._parts)))])
        cuts = np.searchsorted(rows, starts)
        found = [pa.array([], type=arrow_type(kind))]
        for number, part in enumerate(self._parts):
            own = rows[cuts[number] : cuts[number + 1]] - starts[number]
            known = name in part.types.get(table, {})
            entries = part.some(table, name, own) if known else taken(missing_lists(part, table, name, kind), own)
            found.append(as_common(name, entries, kind))
        return joined(found, found[0].type)

    @contextmanager
    def reading(self) -> Iterator[None]:
        with ExitStack() as stack:
            for part in self._parts:
                stack.enter_context(part.reading())
            yield

    def _column(self, table: str, name: str) -> pa.ChunkedArray:
        if table == "labels":  # names are of the whole training: a run may tell them again
            return self._labels()[name]
        if (table, name) not in self._held:
            kind = self.types[table][name]
            chunks = list[pa.Array]()
            for number in range(len(self._parts)):
                chunks += as_common(name, self._of_run(number, table, name), kind).chunks
            self._held[table, name] = pa.chunked_array(chunks, arrow_type(kind))
        return self._held[table, name]

    def _of_run(self, number: int, table: str, name: str) -> pa.ChunkedArray:
        """A column of one run, numbered behind the runs before it."""
        part, rows = self._parts[number], self._rows(number, table)
        if name not in part.types.get(table, {}):
            return self._unsaid(number, table, name, rows)
        column = part.columns(table, [name])[0]
        if table == "segments" and name == "file":
            return pa.chunked_array(
                [pa.array([f"{self._folders[number]}/{file}" for file in column.to_pylist()], pa.string())]
            )
        shift = self._shift(number, table, name)
        return column if shift is None else pc.add(column, shift).cast(column.type)

    def _unsaid(self, number: int, table: str, name: str, rows: int) -> pa.ChunkedArray:
        """A column that a run does not have: where another one held a budget, this one kept every sample."""
        if (table, name) == ("samples", RUN) and not any(RUN in part.types["samples"] for part in self._parts):
            return pa.chunked_array([pa.array(np.full(rows, number))])
        if (table, name) == ("samples", SHARE) and "shares" in self.types:
            return pa.chunked_array([pa.array(np.ones(rows))])
        return missing_lists(self._parts[number], table, name, self.types[table][name])

    def _shift(self, number: int, table: str, name: str) -> Any:
        """What is added to the numbers of one run's column; None for nothing."""
        if name in _STEPS:
            return self._first_steps[number]
        if (table, name) == ("samples", "datapoint") or name == "first_datapoint":
            return sum(self._rows(before, "samples") for before in range(number))
        if table in ("entries", "products") and name == "first_slot":
            layers = self._parts[number].columns(table, ["layer"])[0].to_pylist()
            return pa.array(
                [int(self._first_slots[extents_table(self._spaces[layer])][number]) for layer in layers], pa.int64()
            )
        if name == "first_slot":
            return int(self._first_slots[table][number])
        return None

    def _before(self, table: str, name: str) -> Integers:
        """int64[runs]: the sum of a column over the runs before each."""
        own = [
            int(np.asarray(part.columns(table, [name])[0]).sum()) if table in part.types else 0 for part in self._parts
        ]
        return np.cumsum([0, *own[:-1]])

    def _rows(self, number: int, table: str) -> int:
        part = self._parts[number]
        return part.rows(table) if table in part.types else 0

    def _labels(self) -> pa.Table:
        names = list(self.types["labels"])
        parts = [pa.table(part.columns("labels", names), names=names) for part in self._parts]
        # A label has one name, or each slot that is joined with them would count twice: the last that was said.
        said = {(row["dataset"], row["label"]): tuple(row.values()) for part in parts for row in part.to_pylist()}
        columns = list(zip(*said.values(), strict=True)) if said else [()] * len(names)
        kinds = [arrow_type(kind) for kind in self.types["labels"].values()]
        return pa.table([pa.chunked_array([pa.array(c, k)]) for c, k in zip(columns, kinds, strict=True)], names=names)


class Runs(Snapshot):
    """One snapshot of each run, read as one memory."""

    def __init__(self, parts: Sequence[Snapshot], folders: Sequence[Path]) -> None:
        """`folders`: those of memories; where it is one alone, a run may have layers and spaces that another lacks, for
        it did not come so far.

        Raises BadInput where the runs are not of one network, or say things of one name and other types.
        """
        manifest = _of_all([part.manifest for part in parts], [part.path for part in parts], alone=len(folders) == 1)
        self._folders = folders
        first_steps = np.cumsum([0, *(part.steps for part in parts[:-1])]).tolist()
        spaces = {layer.name: layer.space for layer in manifest.layers}
        places = [str(part.path / part.manifest.shards[0].folder) for part in parts]
        tables = RunTables([part._tables for part in parts], first_steps, manifest.tables(), spaces, places)
        super().__init__(parts[0].path, manifest, tables, stacked([part.sources for part in parts]))
        self._parts, self.first_steps = list(parts), first_steps
        self.frames, self.torn = sum(part.frames for part in parts), any(part.torn for part in parts)

    @classmethod
    def of(cls, paths: Sequence[str | Path], cache: SegmentCache | None = None) -> Runs:
        """The runs in some folders, in the order of the training.

        Raises BadInput for no folder, for one that is named twice, and as `__init__`; else as `Snapshot.open`.
        """
        folders = [Path(path) for path in paths]
        if not folders:
            raise BadInput(
                "path must name at least one folder.", hint='For example dualform.open("runs/digits").', field="path"
            )
        resolved = [folder.resolve() for folder in folders]
        for number, folder in enumerate(resolved):
            if folder in resolved[:number]:
                raise BadInput(f"{folders[number]} is named twice.", hint="Name each run once.", field="path")
        segments = cache or SegmentCache()
        return cls([part for folder in folders for part in _runs_in(folder, segments)], folders)

    @property
    def runs(self) -> Sequence[Snapshot]:
        return self._parts

    @property
    def folders(self) -> Sequence[Path]:
        """Those of memories that they were opened from."""
        return self._folders

    def moved(self) -> bool:
        return any(part.moved() for part in self.runs)

    def _digests(self) -> list[str]:
        return [digest for part in self.runs for digest in part._digests()]

    @property
    def cut_off(self) -> str:
        """Where each recording stands that did not come to its end, in its own steps."""
        said = [f"{part.path}: {part.cut_off}" for part in self.runs if part.cut_off]
        return " ".join(said)

    @property
    def writers(self) -> list[Writing]:
        return [writer for part in self.runs for writer in part.writers]

    def initial(self) -> dict[str, NDArray[Any]]:
        """The weights before the first run's first step."""
        return self.runs[0].initial()

    def final(self) -> dict[str, NDArray[Any]] | None:
        """The weights after the last run's last step; None where it was cut off before its end."""
        return self.runs[-1].final()

    @property
    def ended(self) -> bool:
        return self.runs[-1].ended

    @cached_property
    def deleted(self) -> Sequence[DeletedPart]:
        parts = zip(self.runs, self.first_steps, strict=True)
        return [replace(part, before=part.before + first) for run, first in parts for part in run.deleted]

    def buffers(self) -> dict[str, dict[str, NDArray[Any]]]:
        """What the optimizer already kept when the first run began."""
        return self.runs[0].buffers()

    def query_set(self, name: str) -> StoredQuerySet:
        """The query set of the last run that has one of this name. Raises NotFound as `Snapshot.query_set`."""
        for part in reversed(self.runs):
            if name in part.manifest.query_sets:
                return part.query_set(name)
        known = ", ".join(self.manifest.query_sets) or "none"
        raise NotFound(f"There is no query set {name!r}.", hint=f"Query sets: {known}.", field="query_set")

    def preview_set(self, dataset: str) -> StoredPreviewSet:
        """The preview set of the last run that has one of this dataset. Raises as `Snapshot.preview_set`."""
        for part in reversed(self.runs):
            if dataset in part.manifest.preview_sets:
                return part.preview_set(dataset)
        raise self._no_preview_set(dataset)

    def shard_rows(self, layer: str, kind: str) -> Sequence[int]:
        return [rows for part in self.runs for rows in part.shard_rows(layer, kind)]

    def _row_of_entry(self, layer: Layer) -> NDArray[np.int64] | None:
        own = [part._row_of_entry(part.layers[layer.name]) for part in self._runs_of(layer)]
        return self._behind(layer, "keys", own)

    def _row_of_value(self, layer: Layer) -> NDArray[np.int64] | None:
        own = [part._row_of_value(part.layers[layer.name]) for part in self._runs_of(layer)]
        return self._behind(layer, "values", own)

    def _runs_of(self, layer: Layer) -> list[Snapshot]:
        return [part for part in self.runs if layer.name in part.layers]

    def _behind(self, layer: Layer, kind: str, own: Sequence[NDArray[np.int64] | None]) -> NDArray[np.int64] | None:
        """int64[H]: the row of each entry, among those of all runs; None where row and entry are the same."""
        if all(rows is None for rows in own):
            return None
        found, before = list[NDArray[np.int64]](), 0
        for part, rows in zip(self._runs_of(layer), own, strict=True):
            every = np.arange(part.entries(layer.name).count) if rows is None else rows
            found.append(every + before)
            before += Rows(part.sources.get((layer.name, kind), []), 0).rows
        return np.concatenate(found)


def opened(folder: str | PathLike[str], cache: SegmentCache | None = None) -> Snapshot:
    """The memory in a folder, whether its training was resumed there or not. Raises as `Snapshot.open`."""
    segments, path = cache or SegmentCache(), Path(folder)
    parts = _runs_in(path, segments)
    return parts[0] if len(parts) == 1 else Runs(parts, [path])


def opened_again(memory: Snapshot, cache: SegmentCache | None = None) -> Snapshot:
    """What the same place holds now: another run may have gone on there. Raises as `Snapshot.open`."""
    return Runs.of(memory.folders, cache) if isinstance(memory, Runs) else opened(memory.path, cache)


def _runs_in(folder: Path, cache: SegmentCache) -> list[Snapshot]:
    """Those of one training in its memory's folder: each up to the step from which the next one went on."""
    while True:
        runs = Manifest.read(folder).runs
        places = [folder, *(folder / run.folder for run in runs)]
        found = [Snapshot.open(place, cache, cut) for place, cut in zip(places, cuts(runs), strict=True)]
        if found[0].manifest.runs == runs:  # no training was resumed meanwhile
            return found


def _of_all(manifests: Sequence[Manifest], paths: Sequence[Path], alone: bool) -> Manifest:
    """What all runs have in common, and what any of them has seen."""
    first, last = manifests[0], manifests[-1]
    for manifest, path in zip(manifests[1:], paths[1:], strict=True):
        _check_alike(first, manifest, paths[0], path, alone)
    base = replace(
        last,
        optimizers=joined_optimizers([manifest.optimizers for manifest in manifests]),
        files={},
        deleted=None,
        sampling=next((manifest.sampling for manifest in reversed(manifests) if manifest.sampling), None),
        query_sets={name: query_set for manifest in manifests for name, query_set in manifest.query_sets.items()},
        preview_sets={name: entry for manifest in manifests for name, entry in manifest.preview_sets.items()},
    )
    return joined_manifests(manifests, base, _columns(manifests, paths, alone), _layer)


def _by_name(manifest: Manifest) -> dict[str, Layer]:
    return {layer.name: layer for layer in manifest.layers}


def _layer(runs: Sequence[Layer]) -> Layer:
    """A layer of all runs, of which each has its own way to store keys that repeat."""
    coarsest = min((layer.dtype for layer in runs), key=PRECISIONS.index)
    deleted = sum(layer.deleted for layer in runs)
    return replace(runs[0], repeats=any(layer.repeats for layer in runs), dtype=coarsest, deleted=deleted)


def _check_alike(first: Manifest, other: Manifest, path: Path, other_path: Path, alone: bool) -> None:
    """Raises BadInput where two runs do not have the same spaces and layers; `alone`: where they are not the same."""
    hint = "Open only runs of one network, recorded with the same layers and spaces."
    if not alone and set(first.spaces) != set(other.spaces):
        raise BadInput(
            f"{other_path} has the spaces {', '.join(other.spaces)}, but {path} has {', '.join(first.spaces)}.",
            hint=hint,
            field="path",
        )
    layers, others = _by_name(first), _by_name(other)
    for name in {**layers, **others}:
        if name not in layers or name not in others:
            if alone:
                continue
            lacking = path if name not in layers else other_path
            raise BadInput(f"{lacking} lacks layer {name!r}.", hint=hint, field="path")
        if _kind(layers[name]) != _kind(others[name]):
            raise BadInput(f"layer {name!r} of {other_path} differs from that of {path}.", hint=hint, field="path")


def _kind(layer: Layer) -> tuple[Any, ...]:
    shape = (layer.space, layer.d_in, layer.d_out, layer.parameters, layer.groups)
    # How keys are stored is each run's own affair: what is read are the same rows.
    return (*shape, layer.keys, layer.values)


def _columns(manifests: Sequence[Manifest], paths: Sequence[Path], alone: bool) -> dict[str, dict[str, str]]:
    """The types of all columns. Raises BadInput where one has several, but for runs of one folder: those of one
    training whose ranks said other types each time have one that holds them all.
    """
    found: dict[str, dict[str, str]] = {}
    for manifest, path in zip(manifests, paths, strict=True):
        for table, types in manifest.columns.items():
            own = found.setdefault(table, {})
            common = common_types(own, types)
            for name, kind in types.items():
                if not alone and own.get(name, kind) != kind:
                    raise BadInput(
                        f"column {name!r} is {kind} in {path}, but {own[name]} in an earlier run.",
                        hint="Open these runs one by one.",
                        field="path",
                    )
            own |= common
    budgeted = any(manifest.sampling for manifest in manifests)
    for manifest, path in zip(manifests, paths, strict=True):
        named = any(SHARE in manifest.columns.get(table, {}) for table in ("samples", *manifest.spaces))
        if budgeted and manifest.sampling is None and named:
            raise BadInput(
                f"column {SHARE!r} was passed to step() in {path}; in other runs it is the probability with which a "
                "budget kept a sample.",
                hint="Open these runs one by one.",
                field="path",
            )
    taken = any(name.lower() == RUN for table, types in found.items() if table != "steps" for name in types)
    said: Mapping[str, str] = {} if taken else {RUN: "BIGINT"}
    return types_for_slots({**found, "samples": {**found["samples"], **said}}, manifests)

"""A memory as its files say it is: one consistent snapshot, and its parts.

One shard of a memory, read as a memory that has its slots alone: they keep the numbers that they have in the whole.

Shapes: H entries of a layer in the whole memory, m of them in the shard.

Opening holds memory.json, the log of commits and the sizes of the segment files against each other, and reads where
slots lie and the tables of few rows, but no long column. What is missing or altered is an error that names the file,
never a shorter answer: columns are compared by their running digest when they are read, and segments by the checksum of
each block when it is first used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dualform.answers import QuerySetInfo
from dualform.errors import BadInput, Damaged, NotFound
from dualform.store.batch import Cut, Mark
from dualform.store.files.durable_files import checksum, damaged
from dualform.store.files.segment import SegmentCache
from dualform.store.layer import Layer, StoredOptimizer, names_of
from dualform.store.locks import Writing, writing
from dualform.store.manifest import FILE, Manifest
from dualform.store.previews.stored_previews import StoredPreviewSet
from dualform.store.query_sets import StoredQuerySet, examples_in
from dualform.store.reading.opening import FolderContents, Sources, open_folder, read_state
from dualform.store.reading.shard_tables import Samples, Tables, whole
from dualform.store.reading.space import Space
from dualform.store.reading.stored_layers import StoredLayers
from dualform.store.rows import OWNER, DroppedSlots, Entries, Integers, OtherRows, Rows, dropped_slots
from dualform.store.weights import DeletedPart, read_buffers, read_weights, weights_file


class Moment(NamedTuple):
    """Snapshots of one memory and one moment hold the same."""

    commits: int
    frames: int
    """Of journals, beyond the last commits."""
    steps: int
    content: str
    """Digest of what the shards' manifests say, checksums of all that is committed among it, and of their journals:
    another training that was recorded into the same folder may have as many commits, frames and steps."""


class Snapshot(StoredLayers):
    """One snapshot of a memory. Reads; never writes."""

    def __init__(
        self, path: Path, manifest: Manifest, tables: Tables, sources: Sources, contents: FolderContents | None = None
    ) -> None:
        """`contents`: what was found in a folder; None for a snapshot that memory holds."""
        super().__init__(path, manifest, tables, sources, contents)
        self.format = manifest.format
        self.skipped, self.aliases = manifest.skipped, manifest.aliases
        self.optimizer = names_of(manifest.optimizers)
        """What the optimizers are called."""
        self.spaces = list(manifest.spaces)
        self.frames = contents.frames if contents else 0
        """Frames of the journal that this snapshot holds beyond the last commit."""
        self.torn = bool(contents and contents.torn)
        """Whether the journal ends within a frame: the recording was cut off, or goes on at this moment."""
        self.first_steps = [0]
        """The number that each run's first step has here."""
        self._samples = Samples(tables)
        self._spaces = {name: Space(name, tables, self._samples, manifest.columns[name]) for name in self.spaces}

    @classmethod
    def open(cls, path: str | Path, cache: SegmentCache | None = None, cut: Cut | None = None) -> Snapshot:
        """The memory in a folder, as of its last commit and what its journal holds beyond: of one run, which is
        `cut` where another one went on from a mark of it.

        Raises NotAMemory where there is none, Damaged where a file is missing, cut short or altered.
        """
        folder = Path(path)
        found = open_folder(folder, cache or SegmentCache(), cut)
        snapshot = cls(folder, found.manifest, found.tables, found.sources, found)
        snapshot.check_counts()
        return snapshot

    @property
    def runs(self) -> Sequence[Snapshot]:
        """The recordings that the memory consists of, in the order of the training (runs.py)."""
        # Were it to hold itself, its keys would stay in memory until the garbage collector looks.
        return [self]

    @property
    def commits(self) -> int:
        """Number of commits that this snapshot holds."""
        return sum(part.commits for part in self.manifest.shards)

    @cached_property
    def moment(self) -> Moment:
        return Moment(self.commits, self.frames, self.steps, checksum("".join(self._digests()).encode()))

    @property
    def tables_digest(self) -> str | None:
        """Of all that the manifests say, the digests of all columns among it; None while those grow, and where the
        memory is several runs, or a part of one.
        """
        whole = self._contents is not None and self._contents.last is None and not self.recording
        return self.moment.content if whole else None

    def _digests(self) -> list[str]:
        """Of the manifests and journals of all shards."""
        if self._contents is None:
            return [self.manifest.digest]
        return [manifest.digest for manifest, _ in self._contents.state] + list(self._contents.journals)

    @property
    def recording(self) -> bool:
        """False once the recorder has left in good order."""
        return self.manifest.recording

    @property
    def final_digests(self) -> Mapping[str, str]:
        """Parameter or buffer -> checksum of it as the training ended; empty where that is not known."""
        return self.runs[-1].manifest.final

    @cached_property
    def deleted(self) -> Sequence[DeletedPart]:
        """What was taken out of the memory: nothing, or one part for each folder that had samples deleted."""
        entry = self.manifest.deleted
        return [DeletedPart(entry, self.path, self.manifest)] if entry else []

    @cached_property
    def dropped(self) -> Mapping[str, DroppedSlots]:
        """By space, what it lacks because its slots were sampled; empty where none does."""
        return dropped_slots(self.table("shares")) if self.manifest.sampling else {}

    def share(self, spaces: Iterable[str], at_step: int | None = None) -> float:
        """Of the slots that a training had in some spaces in all of its steps, the share that the memory was given; 1.0
        of none, and where all were kept until `at_step` steps were taken. Those that were deleted since had been
        given to it.
        """
        chosen = list(spaces)
        lacking = [self.dropped[space] for space in chosen if space in self.dropped]
        if not lacking or (at_step is not None and at_step <= min(own.first_step for own in lacking)):
            return 1.0
        given = sum(self.count(space) + sum(p.entry.slots.get(space, 0) for p in self.deleted) for space in chosen)
        return given / (given + sum(own.slots for own in lacking))

    @property
    def contents(self) -> FolderContents:
        """What was found in the folder; of one run that was opened from one."""
        assert self._contents is not None
        return self._contents

    @cached_property
    def steps(self) -> int:
        """Recorded steps: 1 + the last step that a slot or a log names."""
        last = [-1]
        for space in self._spaces.values():
            last.append(int(space.extents.step.max(initial=-1)))
        logged = self._tables.columns("steps", ["step"])[0]
        if len(logged):
            last.append(int(np.asarray(logged).max()))
        return 1 + max(last)

    @property
    def cut_off(self) -> str:
        """Where the recording stands if it did not come to its end, in a sentence; empty if it did. Whether it goes on
        is that of this moment. What a repair dropped comes behind it.
        """
        if not self.recording:
            return ""
        after = f"after step {self.steps - 1}" if self.steps else "before its first step"
        writers = self.writers
        if living := [writer for writer in writers if writer.going_on]:
            named = " and ".join(dict.fromkeys(str(writer) for writer in living))
            upto = f"up to step {self.steps - 1}" if self.steps else "before its first step"
            return f"still recorded, by {named}; read here {upto}{self._unended()}."
        doubt = ", or still runs" if any(writer.going_on is None for writer in writers) else ""
        repaired = "".join(f" {sentence}" for sentence in self.manifest.repaired)
        return f"the recording was cut off {after}{doubt}{self._unended()}.{repaired}"

    @property
    def writers(self) -> list[Writing]:
        """Of each shard that did not come to its end, who writes it at this moment (locks.py)."""
        if self._contents is None:
            return [Writing(None)]
        return [writing(self.path / part.shards[0].folder) for part, _ in self._contents.state if part.recording]

    def _unended(self) -> str:
        """Of several shards, those that did not come to their end: the memory ends where the first of them does."""
        shards = [part for part, _ in self._contents.state] if self._contents else []
        open_ones = [part.shards[0].folder for part in shards if part.recording]
        if len(shards) < 2 or not open_ones:
            return ""
        if len(open_ones) == len(shards):
            return f": none of its {len(shards)} shards came to its end"
        return f": {', '.join(open_ones)} did not come to {'their' if len(open_ones) > 1 else 'its'} end"

    def moved(self) -> bool:
        """Whether the memory on disk holds more by now."""
        return self._contents is not None and read_state(self.path) != self._contents.state

    def space(self, name: str) -> Space:
        """Raises NotFound, listing the spaces that exist."""
        if name not in self._spaces:
            raise NotFound(f"There is no space {name!r}.", hint=f"Spaces: {', '.join(self.spaces)}.", field="space")
        return self._spaces[name]

    def optimizer_of(self, block: str) -> StoredOptimizer:
        """The one that updates a parameter block, by the block's name."""
        first, *others = self.manifest.optimizers
        return next((optimizer for optimizer in others if block in optimizer.blocks), first)

    @property
    def spaces_of_layers(self) -> list[str]:
        """In the order of the layers that use them."""
        return list(dict.fromkeys(layer.space for layer in self.layers.values()))

    def count(self, space: str) -> int:
        """Slots of a space."""
        return self._spaces[space].count

    def columns(self, space: str) -> dict[str, str]:
        """Slot columns and their DuckDB types."""
        return dict(self._spaces[space].columns)

    def datasets(self) -> dict[str, int]:
        """Slots by dataset over all spaces of layers; slots without one are left out."""
        counts: dict[str, int] = {}
        for name in self.spaces_of_layers:
            for dataset, slots in self._spaces[name].slots_by_dataset().items():
                counts[dataset] = counts.get(dataset, 0) + slots
        return dict(sorted(counts.items()))

    def column(self, space: str, name: str) -> NDArray[Any]:
        """One slot column in slot order: an array, masked where it has NULLs; texts as objects, NULL as None."""
        return self._spaces[space].column(name)

    def table(self, name: str) -> pa.Table:
        """A table other than slots, for example steps, factors or defects."""
        return whole(self._tables, name)

    def reading(self) -> AbstractContextManager[None]:
        """A moment in which many columns are read, through one connection, by one thread."""
        return self._tables.reading()

    def whole_tables(self, names: Iterable[str]) -> dict[str, pa.Table]:
        """Several tables, read at once."""
        with self._tables.reading():
            return {name: self.table(name) for name in names}

    @cached_property
    def others(self) -> OtherRows | None:
        """What was kept of parameters and buffers that no slot explains, by how many steps were taken; None where the
        recorder kept nothing. Raises Damaged where there are not as many rows as moments.
        """
        if self.manifest.others is None:
            return None
        moments = np.asarray(self._tables.columns("other_rows", ["at_step"])[0], dtype=np.int64)
        rows = Rows(self.sources.get(OWNER, []), self.manifest.others.form.width)
        if rows.rows != len(moments):
            shard = self.path / self.manifest.shards[0].folder
            raise damaged(shard, f"has {rows.rows} rows of other parameters for {len(moments)} updates")
        return OtherRows(self.manifest.others, moments, rows, self.steps)

    def check_tables(self) -> list[str]:
        """What is wrong with any table, one sentence each: every column is read."""
        problems = []
        with self._tables.reading():
            for table, types in self._tables.types.items():
                try:
                    self._tables.columns(table, list(types))
                except (Damaged, BadInput) as error:
                    problems.append(error.message)
        return problems

    def initial(self) -> dict[str, NDArray[Any]]:
        """Raises Damaged, also where a layer has a parameter that does not have its shape."""
        found = read_weights(self.path, "initial", self.manifest.files) or {}
        for layer in self.layers.values():
            for block in layer.parameters:
                shape = (layer.d_out,) if block in layer.biases else (layer.d_out, block.stop - block.start)
                if block.name not in found or block.shape_within(found[block.name].shape) != shape:
                    known = f"of shape {list(found[block.name].shape)}" if block.name in found else "not there"
                    raise damaged(
                        self.path / FILE,
                        f"was altered: {block.block_name!r} of layer {layer.name!r} does not fit "
                        f"{weights_file('initial')}, where {block.name!r} is {known}",
                    )
        return found

    def final(self) -> dict[str, NDArray[Any]] | None:
        """None where the training was cut off before its end, and where shards end before those weights."""
        return read_weights(self.path, "final", self.manifest.files) if self.ended else None

    @property
    def ended(self) -> bool:
        """Whether there are weights of the training's end."""
        return weights_file("final") in self.manifest.files and (self._contents is None or self._contents.whole)

    def buffers(self) -> dict[str, dict[str, NDArray[Any]]]:
        """What the optimizer already kept when recording began, by parameter and its own name for it."""
        return read_buffers(self.path, self.manifest.files)

    @property
    def query_sets(self) -> dict[str, QuerySetInfo]:
        return {name: _query_set_info(name, entry) for name, entry in self.manifest.query_sets.items()}

    @property
    def preview_sets(self) -> Mapping[str, str]:
        """By dataset, the kind of its preview set; "" stands for samples without a dataset."""
        return {name: entry["kind"] for name, entry in self.manifest.preview_sets.items()}

    def preview_set(self, dataset: str) -> StoredPreviewSet:
        """What the samples of a dataset looked like. Raises NotFound, listing the datasets that have a preview set, and
        Damaged, naming the file.
        """
        if dataset not in self.manifest.preview_sets:
            raise self._no_preview_set(dataset)
        return StoredPreviewSet.of(self.path, self.manifest.preview_sets[dataset], self.manifest.files)

    def _no_preview_set(self, dataset: str) -> NotFound:
        known = ", ".join(own or "samples without a dataset" for own in self.manifest.preview_sets) or "none"
        whose = f"dataset {dataset!r}" if dataset else "samples without a dataset"
        return NotFound(f"There is no preview set for {whose}.", hint=f"Preview sets: {known}.", field="dataset")

    def query_set(self, name: str) -> StoredQuerySet:
        """Raises NotFound, listing the query sets that exist."""
        if name not in self.manifest.query_sets:
            known = ", ".join(self.manifest.query_sets) or "none"
            raise NotFound(f"There is no query set {name!r}.", hint=f"Query sets: {known}.", field="query_set")
        return StoredQuerySet(self.path, name, self.manifest)


def _query_set_info(name: str, entry: Mapping[str, Any]) -> QuerySetInfo:
    preview_set = entry.get("gallery", {}).get("kind", "")
    return QuerySetInfo(name, entry["rows"], tuple(entry["layers"]), preview_set, examples_in(entry))


def why_misplaced(runs: Sequence[Snapshot], mark: Mark) -> str:
    """What the record holds otherwise than the weights of a mark at the end of the last of these runs, which are all
    up to it; empty where both agree.

    Of several optimizers, marks that do not tell how many factors were logged by then are taken at their word.
    """
    run = runs[-1]
    if not any(layer.values for layer in run.layers.values()):
        return ""  # no gradient was measured, and no weights are rebuilt
    if "factors" in mark.rows:
        made, held = mark.rows["factors"], run.table("factors").num_rows
        what = "gradient factors of updates"
    elif len(mark.updates) == 1:
        made, held = mark.updates[0], sum(pc.sum(own.table("steps")["updated"]).as_py() or 0 for own in runs)
        what = "updates"
    else:
        return ""
    return "" if made == held else f"the weights that were saved had {made} {what} behind them, and {held} are recorded"


class Part(Snapshot):
    """The rows of one shard; tables, columns and spaces are those of the whole. No other shard's rows are read."""

    def __init__(self, whole: Snapshot, number: int) -> None:
        """`number`: of the shard, among those that `shard_names` lists."""
        sources = {}
        for layer in whole.layers.values():
            for kind in ("keys", "values"):
                start, stop = _rows_of(whole, layer, kind, number)
                own = [one for one in whole.sources.get((layer.name, kind), []) if start <= one.first_row < stop]
                sources[layer.name, kind] = [one.shifted(-start) for one in own]
        super().__init__(whole.path, whole.manifest, whole._tables, sources)
        self._whole, self.number = whole, number
        self._places: dict[str, Integers] = {}
        self._orders: dict[tuple[str, str], Integers | None] = {}
        """By layer and kind, the row of each entry: to order those of the whole memory takes long."""

    def places(self, layer: str) -> Integers:
        """int64[m], ascending: the entries of the whole that are the shard's."""
        name = self.layer(layer).stored.name
        if name not in self._places:
            self._places[name] = np.flatnonzero(shard_of_entries(self._whole, name) == self.number)
        return self._places[name]

    def own(self, layer: str, entries: Integers) -> tuple[Integers, NDArray[np.bool_]]:
        """Of some entries of the whole: those of the shard, numbered within it, and which of the given they are."""
        places = self.places(layer)
        found = np.searchsorted(places, entries)
        there = found < len(places)
        there[there] = places[found[there]] == entries[there]
        return found[there], there

    def entries(self, layer: str) -> Entries:
        found = self.layer(layer).stored
        if found.name not in self._entries:
            slots = self._whole.entries(found.name).slots_of(self.places(found.name))
            begins = np.flatnonzero(np.r_[True, np.diff(slots) != 1]) if len(slots) else np.empty(0, np.int64)
            lengths = np.diff(begins, append=len(slots))
            self._entries[found.name] = Entries(slots[begins], lengths, self.count(found.space))
        return self._entries[found.name]

    def _row_of_entry(self, layer: Layer) -> Integers | None:
        return self._order(layer, "keys", self._whole._row_of_entry)

    def _row_of_value(self, layer: Layer) -> Integers | None:
        return self._order(layer, "values", self._whole._row_of_value)

    def _order(
        self, layer: Layer, kind: Literal["keys", "values"], of_whole: Callable[[Layer], Integers | None]
    ) -> Integers | None:
        if (layer.name, kind) not in self._orders:
            places, rows = self.places(layer.name), of_whole(layer)
            start, stop = _rows_of(self._whole, layer, kind, self.number)
            own = (places if rows is None else rows[places]) - start
            in_order = len(own) == stop - start and np.array_equal(own, np.arange(len(own)))
            self._orders[layer.name, kind] = None if in_order else own
        return self._orders[layer.name, kind]


def shard_names(memory: Snapshot) -> list[str]:
    """The folders of a memory's shards, as seen from the folder that all of its runs are in: no two have one name."""
    runs = [(os.path.abspath(run.path), run.manifest.shards) for run in memory.runs]
    common = os.path.commonpath([path for path, _ in runs])
    return [Path(path, part.folder).relative_to(common).as_posix() for path, shards in runs for part in shards]


def shard_of_entries(memory: Snapshot, layer: str) -> NDArray[np.int64]:
    """int64[H]: the number of the shard that each entry of a layer is in."""
    stored = memory.layer(layer).stored
    kind: Literal["keys", "values"] = "keys" if stored.keys else "values"
    rows = memory._row_of_entry(stored) if stored.keys else memory._row_of_value(stored)
    if rows is None:
        rows = np.arange(memory.entries(layer).count)
    return np.searchsorted(np.cumsum(memory.shard_rows(stored.name, kind)), rows, side="right")


def _rows_of(memory: Snapshot, layer: Layer, kind: str, number: int) -> tuple[int, int]:
    """Where a shard's rows begin and end among those of all shards."""
    rows = memory.shard_rows(layer.name, kind)
    start = sum(rows[:number])
    return start, start + rows[number]

"""A memory as its files say it is: one consistent snapshot, read and let go.

Opening holds memory.json, the log of commits and the sizes of the segment files against each other, and reads where
slots lie and the tables of few rows, but no long column. What is missing or altered is an error that names the file,
never a shorter answer: columns are compared by their running digest when they are read, and segments by the checksum of
each block when it is first used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.answers import QuerySetInfo
from dualform.errors import BadInput, Damaged, NotFound
from dualform.store.deleted_sums import DeletedPart
from dualform.store.dropped_slots import DroppedSlots, dropped_slots
from dualform.store.durable_files import checksum
from dualform.store.manifest import FILE, Manifest
from dualform.store.mark import Cut
from dualform.store.missing_files import damaged
from dualform.store.moment import Moment
from dualform.store.opening import FolderContents, open_folder, read_state
from dualform.store.others import OWNER, OtherRows
from dualform.store.previews.stored_previews import StoredPreviewSet
from dualform.store.query_sets import StoredQuerySet, examples_in
from dualform.store.rows import Rows
from dualform.store.samples import Samples
from dualform.store.segment_cache import SegmentCache
from dualform.store.shard_sources import Sources
from dualform.store.shard_tables import Tables, whole
from dualform.store.space import Space
from dualform.store.stored_layers import StoredLayers
from dualform.store.stored_optimizer import StoredOptimizer, names_of
from dualform.store.weights import read_buffers, read_weights, weights_file
from dualform.store.writing_lock import Writing, writing


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
        """Of each shard that did not come to its end, who writes it at this moment (writing_lock.py)."""
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

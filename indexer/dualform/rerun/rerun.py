"""A second run of a training, as the source of its keys.

Keys of a training that is run again, gathered until they are worth asking, and then let go.

Shapes: d_in of a layer, m entries of a window that a mask leaves.

The k best slots of each query, or of each group, over the windows seen so far.

Shapes: n queries, G groups, h hits. The best of all windows are among the best of each, and every window is asked as a
memory of its own, so the ids and scores are those of a stored memory, to the last bit.

The summed attention weight of each group, over the windows seen so far.

Shapes: n queries, G groups, d dimensions.

Sums of a linear score have the bits of a stored memory's: windows begin where a block of key sums does, and where there
are so many groups that scores are added instead (grouping.py), they are added in slot order to the sums so far. Sums of
any other score add the canonical scores in slot order. A stored memory adds absolute values of matrix products, in
float32 or, where there are so many groups, in float64, so that the two may differ by as much as it allows itself, 1e-6
relative. Where the sum of scores is the score of the sum of keys, both take that, and the bits are the same again.
A score that depends on more than the inner product makes its own sums of each window, and these are added.

Ledgers of a training that is run again: what it has is recorded meanwhile, and goes once they are made.

What a slot did to a loss takes its error signal, its key and what the optimizer made of both in every later update. So
the second training is written as any other, with keys and values, to a temporary folder, and is walked through there
(influence/ledger.py): the ledgers are those of a memory that had stored the keys, bit for bit.

A training run a second time, to answer questions about it without ever storing a key (paper, appendix D).

with dualform.Recorder(model, optimizer, "runs/lm", keys=False) as recorder: …      # once, with recorder.step(…)
questions = [dualform.TopK("lstm", queries), dualform.GroupSum("lstm", queries, by=("position",))]
with dualform.Rerun(model, optimizer, "runs/lm", questions) as rerun: …           # again, with rerun.step(…)
hits, sums = rerun.answers()

An Influence among the questions is answered by a ledger, which does take keys for as long.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from shutil import disk_usage, rmtree
from tempfile import gettempdir, mkdtemp
from typing import Any, Protocol, TypeAlias
from weakref import finalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from dualform.answers import GroupSums, Hits, Ledger, Scan
from dualform.errors import BadInput, NotFound, RecordingError
from dualform.influence.ledger import Influence, check_room, count_examples, groups_of_layers, ledger
from dualform.query.engine import CACHE_BYTES
from dualform.query.groups import Groups, Members
from dualform.query.resolved import Resolved, resolve
from dualform.query.score import backends
from dualform.query.score.backends import Backend
from dualform.query.score.canonical import as_float32, score_every, score_rows
from dualform.query.score.key_rows import key_rows
from dualform.query.search.scan import Search, best_of_cells
from dualform.query.search.top_k import best
from dualform.query.sums.grouping import Grouping, many, one_sign
from dualform.query.sums.key_sums import BLOCK, KeySummer
from dualform.query.view import View, never
from dualform.query.where.mask import Selection
from dualform.questions import GroupSum, TopK
from dualform.record.layout import KeyForm
from dualform.record.ranks import whole_model
from dualform.record.recorder import Recorder
from dualform.record.taps import Tap
from dualform.store.batch import Batch, Ending, Header
from dualform.store.files.ram_budget import readable
from dualform.store.layer import Layer
from dualform.store.previews.preview_set import PreviewSet
from dualform.store.query_sets import QuerySetArrays
from dualform.store.reading.runs import opened
from dualform.store.reading.shard_tables import HeldTables
from dualform.store.reading.snapshot import Snapshot
from dualform.store.rows import Keys
from dualform.store.sources.key_format import HeldRows
from dualform.store.tables import SAMPLES, SETTINGS, extents_table, rows_table
from dualform.store.writing.slot_rows import Digest, digests
from dualform.store.writing.writer import Writer

_HINT = (
    "Run the same script with the same seeds, data, batch order, machine and number of threads; on a GPU also with "
    "torch.use_deterministic_algorithms(True)."
)


Shape: TypeAlias = tuple[str, int, int, str]
"""Name, d_in, d_out and space of a layer."""


class FirstTraining:
    """What a memory without keys says of its training, step by step."""

    def __init__(self, memory: Snapshot) -> None:
        """Raises BadInput for a memory that needs no rerun, or whose training did not come to its end."""
        if any(layer.keys for layer in memory.layers.values()):
            raise BadInput(
                f"{memory.path} stores its keys, so it needs no rerun.",
                hint="Call dualform.open(path), or dualform.ledger(path, model, influence).",
                field="path",
            )
        if memory.deleted:
            raise BadInput(
                f"{memory.path} cannot be rerun: samples were deleted, and a rerun would bring them back.",
                hint="Record the training again without them.",
                field="path",
            )
        if len(memory.manifest.shards) > 1:
            raise BadInput(
                f"{memory.path} was recorded by {len(memory.manifest.shards)} processes; a rerun takes one.",
                hint="Record with keys=True, or train in one process.",
                field="path",
            )
        if memory.recording:
            raise BadInput(
                f"The training recorded in {memory.path} did not end, or still runs.",
                hint="Record it to its end, then rerun it.",
                field="path",
            )
        self._memory, self._steps = memory, memory.steps
        self._spaces = {layer.name: layer.space for layer in memory.layers.values()}
        self._table = memory.table("digests")
        self._step_of_row = self._table["step"].to_numpy()
        self._seen = 0
        self._missing = {_shape(layer) for layer in memory.layers.values()}
        """Layers that the second run has not reached yet."""

    def check_start(self, header: Header) -> None:
        """Raises RecordingError where the second run begins with other layers, or starts from other weights."""
        reached = self._expected(0)
        self._join(header.layers, "step 0", {shape for shape in self._missing if shape[0] in reached})
        first = self._memory.initial()
        for name in [*header.initial, *(name for name in first if name not in header.initial)]:
            if name not in header.initial or name not in first or not np.array_equal(first[name], header.initial[name]):
                raise RecordingError(
                    f"step 0: {name!r} differs from its value at the start of the first training.", hint=_HINT
                )

    def check(self, batch: Batch) -> None:
        """Raises RecordingError, naming step and layer, where a step was not fed what it was fed the first time."""
        self._join(batch.joined, f"step {batch.step}")
        if batch.step >= self._steps:
            raise RecordingError(f"step {batch.step}: the first training ended after {self._steps} steps.", hint=_HINT)
        self._seen = max(self._seen, batch.step + 1)
        if not batch.layers:
            return  # late news of the optimizer
        first, again = self._expected(batch.step), digests(batch, self._spaces)
        for name in self._spaces:
            one, other = first.get(name), again.get(name)
            if one != other:
                raise RecordingError(f"step {batch.step}, layer {name!r}: {_difference(one, other)}.", hint=_HINT)

    def check_end(self, ending: Ending | None = None) -> None:
        """Raises RecordingError where the second run stopped early, or never reached a layer; and where it ended with
        other weights: what a last update is made of stands in no digest. `ending`: None where weights do not count.
        """
        if self._seen < self._steps:
            raise RecordingError(
                f"The second training stopped after {self._seen} of {self._steps} steps.",
                hint="Run all steps inside `with rerun`.",
            )
        self._require(sorted(self._missing), "the end")
        first, again = self._memory.final(), None if ending is None else ending.final
        if first is None or again is None:
            return
        for name in sorted(first.keys() | again.keys()):
            if name not in first or name not in again or not np.array_equal(first[name], again[name], equal_nan=True):
                raise RecordingError(f"The second training ended with a different {name!r}.", hint=_HINT)

    def _join(self, layers: Iterable[Layer], when: str, expected: Set[Shape] = frozenset()) -> None:
        """Take note of layers that the second run reaches.

        Raises RecordingError where the first has no such layer, or where one of those `expected` is not among them.
        """
        joined = {_shape(layer) for layer in layers}
        self._require(sorted((joined - self._missing) | (expected - joined)), when)
        self._missing -= joined

    def _require(self, without: Iterable[Shape], when: str) -> None:
        """Raises RecordingError for the first of some layers that only one run has."""
        for name, d_in, d_out, space in without:
            raise RecordingError(
                f"{when}: layer {name!r} ({d_in} to {d_out}, by {space}) is recorded in only one of the two runs.",
                hint="Rerun the model that was recorded.",
            )

    def _expected(self, step: int) -> dict[str, Digest]:
        low, high = np.searchsorted(self._step_of_row, [step, step + 1])
        rows = self._table.slice(low, high - low).to_pylist()
        return {row["layer"]: Digest(row["keys"], row["columns"]) for row in rows}


def _shape(layer: Layer) -> Shape:
    return layer.name, layer.d_in, layer.d_out, layer.space


def _difference(first: Digest | None, again: Digest | None) -> str:
    if first is None or again is None:
        return "it ran in only one of the two trainings"
    if first.columns != again.columns:
        return "the columns of its slots differ from the first training"
    return "its inputs differ from the first training"


_CACHE_BYTES = 256 << 20
"""For what the questions about one window share: norms and masks."""


@dataclass(frozen=True, eq=False)
class Window:
    """Consecutive entries of one layer, to be asked as a memory of their own, in which they count from 0."""

    view: View
    layer: Layer
    start: int
    stop: int

    @classmethod
    def of(cls, memory: Snapshot, layer: Layer, start: int, keys: NDArray[np.float32], backend: Backend) -> Window:
        """The window of float32[entries, d_in] keys that begin at entry `start` of a memory that holds none.

        What is said of the slots is settled before a window is asked, so that it has none of their columns.
        """
        held = Layer(layer.name, layer.space, layer.d_in, layer.d_out, layer.parameters, values=layer.values)
        columns = {"samples": dict(SAMPLES), "steps": dict(SETTINGS), layer.space: dict[str, str]()}
        manifest = replace(memory.manifest, layers=[held], spaces=[layer.space], columns=columns)
        extent = (0, 0, 0, len(keys), len(keys), None, 0, None, None)
        rows: dict[str, list[tuple[Any, ...]]] = {extents_table(layer.space): [extent]}
        rows["entries"] = [(layer.name, 0, len(keys))]
        types = manifest.tables()
        tables = HeldTables({name: rows_table(own, types[name]) for name, own in rows.items()}, types)
        # A window's memory is written to again once it was asked: what is derived from it is nobody else's.
        sources = {(layer.name, "keys"): [HeldRows(object(), 0, keys)]}
        snapshot = Snapshot(memory.path, manifest, tables, sources)
        return cls(View(snapshot, backend, _CACHE_BYTES), held, start, start + len(keys))

    @property
    def keys(self) -> Keys:
        return self.view.snapshot.keys(self.layer.name)

    def selection(self, whole: Selection) -> Selection:
        """The window's part of a mask."""
        return Selection(whole.identity, whole.stays[self.start : self.stop])

    def members(self, groups: Groups) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """int64[m] each: the window's entries among those of some groups, and the number of each one's group."""
        part = slice(*np.searchsorted(groups.entries, [self.start, self.stop]).tolist())
        return groups.entries[part] - self.start, groups.numbers[part]

    def groups(self, groups: Groups) -> tuple[Groups, NDArray[np.int64]]:
        """The groups that the window has entries of, and the number of each among all groups."""
        entries, numbers = self.members(groups)
        present, own, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        return Groups.of(groups.by, tuple(present.tolist()), Members(entries, own), counts), present


class RunningAnswer(Protocol):
    """An answer that grows window by window."""

    seconds: float
    """Spent on it so far."""

    def add(self, window: Window) -> None:
        """Take the next entries into account."""


class KeyBuffer:
    """Holds one layer's keys until there is a window of them, which begins where a block of sums does, and hands it to
    the answers that wait for it.
    """

    def __init__(
        self, memory: Snapshot, layer: Layer, answers: Sequence[RunningAnswer], backend: Backend, most_bytes: int
    ) -> None:
        """`most_bytes`: of keys held at once; one block of entries is held in any case."""
        self.stored = layer.stored.name
        """The layer that is run again."""
        self._memory, self._layer, self._answers, self._backend = memory, layer, answers, backend
        blocks = max(1, most_bytes // (4 * max(1, layer.d_in) * BLOCK))
        size = min(blocks * BLOCK, max(1, memory.entries(layer.name).count))
        self._keys = np.empty((size, layer.d_in), dtype=np.float32)
        self._start, self._held = 0, 0

    def append(self, keys: NDArray[np.float32]) -> None:
        """The keys of the next entries of the stored layer, float32[n, d_in], of which a view has some columns."""
        keys = keys[:, self._layer.own_keys]
        while len(keys):
            part = keys[: len(self._keys) - self._held]
            self._keys[self._held : self._held + len(part)] = part
            self._held += len(part)
            keys = keys[len(part) :]
            if self._held == len(self._keys):
                self.finish()

    def finish(self) -> None:
        """Ask what is held."""
        if not self._held:
            return
        window = Window.of(self._memory, self._layer, self._start, self._keys[: self._held], self._backend)
        for answer in self._answers:
            began = time.perf_counter()
            answer.add(window)
            answer.seconds += time.perf_counter() - began
        self._start, self._held = window.stop, 0


_PENDING = 1 << 16
"""Hits that wait at least before they are merged. With many groups they wait until they are as many as those kept, so
that merging costs a few sorts of the answer, however many windows there are."""


@dataclass(frozen=True, eq=False)
class _Hits:
    """Hits that may still be part of the answer."""

    cells: NDArray[np.int64]
    """int64[h]: query * G + group."""
    entries: NDArray[np.int64]
    """int64[h]: of the layer."""
    scores: NDArray[np.float64]
    """float64[h]: canonical, not yet rounded."""


class RunningBest:
    """Hits by cell: query after query, and in each group after group."""

    def __init__(self, resolved: Resolved[TopK]) -> None:
        self.resolved, self._k = resolved, resolved.question.k
        self._groups = 1 if resolved.groups is None else len(resolved.groups.counts)
        self._kept = _Hits(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))
        self._pending: list[_Hits] = []
        self.seconds = 0.0

    def add(self, window: Window) -> None:
        resolved, k, layer = self.resolved, self._k, self.resolved.layer.name
        selection = window.selection(resolved.selection)
        if not selection.count:
            return
        groups, numbers = None, np.zeros(1, dtype=np.int64)
        counts = np.array([selection.count])
        if resolved.groups is not None:
            groups, numbers = window.groups(resolved.groups)
            counts = groups.counts
        rows = key_rows(window.view, layer, selection, never)
        ranked = best(Search.of(resolved.score, window.view, layer, rows, groups, k, resolved.queries, never))
        of_hit = np.repeat(numbers, np.minimum(counts, k))
        for query, (entries, scores) in enumerate(ranked):
            self._pending.append(_Hits(query * self._groups + of_hit, entries + window.start, scores))
        if sum(len(found.cells) for found in self._pending) >= max(_PENDING, len(self._kept.cells)):
            self._merge()

    def _merge(self) -> None:
        parts = [self._kept, *self._pending]
        cells = np.concatenate([part.cells for part in parts])
        entries = np.concatenate([part.entries for part in parts])
        scores = np.concatenate([part.scores for part in parts])
        kept = best_of_cells(cells, scores, entries, self._k)
        self._kept, self._pending = _Hits(cells[kept], entries[kept], scores[kept]), []

    def answer(self, scan: Scan) -> Hits:
        self._merge()
        resolved, groups = self.resolved, self.resolved.groups
        there = np.array([resolved.selection.count]) if groups is None else groups.counts
        counts = np.tile(np.minimum(there, self._k), (len(resolved.queries), 1))
        names = None if groups is None else groups.keys
        scan = replace(scan, slots_matching=resolved.selection.count, seconds=self.seconds)
        ids = resolved.view.snapshot.entries(resolved.layer.name).slots_of(self._kept.entries)
        return Hits(ids, as_float32(self._kept.scores), counts, names, resolved.question.by, scan, resolved.layer.space)


_BATCH = 16
"""Queries whose scores of a window are held at once."""


class RunningSums:
    def __init__(self, resolved: Resolved[GroupSum]) -> None:
        assert resolved.groups is not None
        self.resolved, self._groups = resolved, resolved.groups
        count, width = len(resolved.groups.counts), resolved.layer.d_in
        score = resolved.score
        self._keys = None if score.weighted or many(width, count) else KeySummer(count, width)
        # Absolute scores may be needed one by one, and keys do not come twice.
        alone = self._keys is not None and not score.absolute
        self._sums = None if alone else np.zeros((len(resolved.queries), count))
        self.seconds = 0.0

    def add(self, window: Window) -> None:
        entries, numbers = window.members(self._groups)
        if not len(entries):
            return
        if self.resolved.score.weighted:
            self._add_own(window)
            return
        if self._keys is not None:
            self._keys.add(window.keys, entries, numbers, never)
        if self._sums is None:
            return
        for start in range(0, len(self._sums), _BATCH):
            batch = slice(start, start + _BATCH)
            products = score_every(window.keys, entries, self.resolved.queries[batch], never)
            if self.resolved.score.absolute:
                np.abs(products, out=products)
            for own, scores in zip(self._sums[batch], products, strict=True):
                # One after the other, as a sum over all slots at once would add them.
                np.add.at(own, numbers, scores)

    def _add_own(self, window: Window) -> None:
        """What the score itself makes of the window's groups."""
        assert self._sums is not None
        groups, numbers = window.groups(self._groups)
        own = Grouping(window.view, window.layer, groups, window.selection(self.resolved.selection), never)
        self._sums[:, numbers] += self.resolved.score.sums(own, self.resolved.queries)

    def answer(self, scan: Scan) -> GroupSums:
        scan = replace(scan, slots_matching=self.resolved.selection.count, seconds=self.seconds)
        groups, k = self._groups, self.resolved.question.k
        found = GroupSums(groups.keys, self._added(), groups.counts, groups.by, scan, self.resolved.layer.space)
        return found if k is None else found.of_largest(k)

    def _added(self) -> NDArray[np.float64]:
        if self._keys is None:
            assert self._sums is not None
            return self._sums
        queries, known = self.resolved.queries, self._keys.sums()
        of_keys = score_rows(known.sums, queries)
        if self._sums is None:
            return of_keys
        return np.where(one_sign(known, queries), np.abs(of_keys), self._sums)


class RerunSink:
    """Stands where the store's writer does."""

    def __init__(
        self,
        header: Header,
        first: FirstTraining,
        buffers: Sequence[KeyBuffer],
        forms: Mapping[str, KeyForm],
        writer: Writer | None,
    ) -> None:
        """`buffers`: of the layers and views that are asked; `forms`: how the keys of each layer lie. `writer`: of a
        second recording, where one is made; else nothing is written.

        Raises RecordingError where another training starts.
        """
        first.check_start(header)
        self._first, self._buffers, self._forms, self._writer = first, buffers, forms, writer
        self.complete = False
        """Whether the whole training was run again."""

    def append(self, batch: Batch) -> None:
        """Raises RecordingError for a step that is not the first training's."""
        self._first.check(batch)
        for name, calls in batch.layers.items():
            buffers = [buffer for buffer in self._buffers if buffer.stored == name]
            for rows in calls if buffers else ():
                for _, keys in self._forms[name].blocks(torch.from_numpy(rows.keys)):
                    for buffer in buffers:
                        buffer.append(keys.numpy())
        if self._writer is not None:
            self._writer.append(batch)

    def tick(self) -> None:
        """Nothing falls due: what is written need not outlive a crash."""

    def commit(self) -> None:
        """There is nothing to make durable."""

    def add_query_set(self, query_set: QuerySetArrays) -> None:
        """The first run has stored it."""

    def add_preview_set(self, dataset: str | None, preview_set: PreviewSet, most_bytes: int | None = None) -> None:
        """As of query sets."""

    def close(self, ending: Ending) -> None:
        """Raises RecordingError where the second run stopped early."""
        if not ending.finished:
            self.abandon()
            return
        self._first.check_end(ending if self._writer is not None else None)
        for buffer in self._buffers:
            buffer.finish()
        if self._writer is not None:
            self._writer.close(ending)
        self.complete = True

    def abandon(self) -> None:
        """What a second recording wrote is of no use."""
        if self._writer is not None:
            self._writer.abandon()


class SecondRecording:
    """Of the whole training, for the influences that are followed through it."""

    def __init__(
        self, view: View, model: nn.Module, influences: Sequence[Influence], folder: str | PathLike[str] | None
    ) -> None:
        """`view`: of the memory of the first training. `folder`: where there is room for keys and values; the system's
        own for temporary files where None.

        Raises BadInput for a model, labels, a loss or columns that do not fit, for sums that the machine has no memory
        for, and where the disk has no room for keys and values.
        """
        self._model, self._influences = whole_model(model), influences
        for influence in influences:
            examples = count_examples(self._model, influence)
            groups, *_ = groups_of_layers(view, view.snapshot.layers, tuple(influence.by), never)
            check_room(len(groups), examples, influence)
        self._folder = Path(gettempdir() if folder is None else folder)
        _check_disk(view.snapshot, self._folder)
        self._path = Path()
        self._ledgers: list[Ledger] | None = None

    def writer(self, header: Header) -> Writer:
        """What takes the batches. Its folder goes with the ledgers, or with this object."""
        place = mkdtemp(dir=self._folder, prefix="dualform-rerun-")
        self._remove = finalize(self, rmtree, place, ignore_errors=True)
        self._path = Path(place) / "memory"
        return Writer(replace(header, path=self._path))

    def ledgers(self) -> list[Ledger]:
        """One for each influence, once the training has come to its end. What was recorded goes with the first call.

        Raises Inexact where a layer cannot be rebuilt from what was recorded.
        """
        if self._ledgers is None:
            try:
                self._ledgers = [ledger(self._path, self._model, influence) for influence in self._influences]
            finally:
                self._remove()
        return self._ledgers


def _check_disk(memory: Snapshot, folder: Path) -> None:
    if not folder.is_dir():
        raise BadInput(
            f"{folder} is not a folder.", hint="Pass an existing folder: Rerun(…, folder=…).", field="folder"
        )
    needed = sum(4 * memory.entries(layer.name).count * (layer.d_in + layer.d_out) for layer in memory.layers.values())
    free = disk_usage(folder).free
    if needed > free:
        raise BadInput(
            f"An Influence needs up to {readable(needed)} for keys and values, but {folder} has {readable(free)} free.",
            hint="Pass a folder with enough room: Rerun(…, folder=…).",
            field="folder",
        )


WINDOW_BYTES = 128 << 20

Question: TypeAlias = TopK | GroupSum | Influence
Answer: TypeAlias = Hits | GroupSums | Ledger


class Rerun(Recorder):
    """Answers queries during a second run of a training that was recorded with keys=False.

    Use it in place of the `Recorder`, in the same training from its start. The memory does not change.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        path: str | PathLike[str],
        questions: Sequence[Question],
        *,
        spaces: Mapping[str, str] | None = None,
        routed: str | Sequence[str] = (),
        taps: Sequence[Tap] = (),
        window_bytes: int = WINDOW_BYTES,
        folder: str | PathLike[str] | None = None,
    ) -> None:
        """Choose the queries before the second run.

        - `path`: a memory recorded with keys=False.
        - `questions`: `TopK`, `GroupSum` and `Influence` values. The queries of `TopK` and `GroupSum` are vectors or
          examples of the memory's query sets.
        - `spaces`, `routed`, `taps`: as passed to the Recorder.
        - `window_bytes`: bytes of keys held at once, over all queried layers.
        - `folder`: where keys and values for `Influence` are written until `answers`; None for a temporary folder.

        Raises BadInput for a memory that cannot be rerun, RecordingError if the model lacks its layers, and the errors
        of each query. `step` raises RecordingError, with step and layer, if the inputs differ from the first run.
        """
        memory = opened(path)
        self._first = FirstTraining(memory)
        backend = backends.choose("numpy")
        view = View(memory, backend, CACHE_BYTES)
        self._questions = list(questions)
        self._running = [_running(view, asked) for asked in questions if not isinstance(asked, Influence)]
        influences = [asked for asked in questions if isinstance(asked, Influence)]
        self._again = SecondRecording(view, model, influences, folder) if influences else None
        resolved = [running.resolved for running in self._running]
        self._scan = Scan(memory.commits, backend=f"rerun, {backend.name}")
        self._slots = [memory.entries(one.layer.name).count for one in resolved]
        asked = {one.layer.name: one.layer for one in resolved}
        self._buffers = [
            KeyBuffer(
                memory,
                layer,
                [running for one, running in zip(resolved, self._running, strict=True) if one.layer.name == name],
                backend,
                window_bytes // len(asked),
            )
            for name, layer in asked.items()
        ]
        self._reran: RerunSink | None = None
        try:
            own = {tap.name for tap in taps}
            layers = [name for name in memory.layers if name not in own]
            super().__init__(
                model, optimizer, path, layers, keys=bool(influences), spaces=spaces, routed=routed, taps=taps,
                quiet=True, sink=self._open_rerun,
            )  # fmt: skip
        except NotFound as error:
            raise RecordingError(
                f"This is not the model that was recorded: {error.message}", hint="Pass the model that was recorded."
            ) from None

    def _open_rerun(self, header: Header) -> RerunSink:
        forms = {tap.name: tap.key_form for tap in self._controller.plan.taps}
        writer = None if self._again is None else self._again.writer(header)
        self._reran = RerunSink(header, self._first, self._buffers, forms, writer)
        return self._reran

    def _tell_empty(self) -> None:
        """`answers` does."""

    def answers(self) -> list[Answer]:
        """The results, in the order of the queries, as if the memory had stored its keys.

        Raises RecordingError before the training has been rerun to its end, and for `Influence` the errors of
        `dualform.ledger`.
        """
        if self._reran is None or not self._reran.complete:
            raise RecordingError(
                "The training has not been rerun to its end.",
                hint="Call rerun.answers() after `with rerun:` has ended without an error.",
            )
        ledgers = iter(self._again.ledgers() if self._again is not None else [])
        running = iter(zip(self._running, self._slots, strict=True))
        return [
            next(ledgers) if isinstance(asked, Influence) else self._ran(*next(running)) for asked in self._questions
        ]

    def _ran(self, running: RunningBest | RunningSums, slots: int) -> Hits | GroupSums:
        return running.answer(Scan(self._scan.snapshot, slots, backend=self._scan.backend))


def _running(view: View, question: TopK | GroupSum) -> RunningBest | RunningSums:
    """The answer to a question, to grow with the training. Slots and their columns stand in the first run's tables, so
    mask and groups are settled before a key is seen. Raises what an engine raises, and BadInput for another kind.
    """
    if isinstance(question, TopK | GroupSum) and question.target is not None:
        raise BadInput(
            'A rerun cannot answer score="contribution": contributions are known only at the end of a training.',
            hint="Record the training with keys=True and values=True, and call dualform.open(path).",
            field="questions",
        )
    if isinstance(question, TopK):
        return RunningBest(resolve(view, question))
    if isinstance(question, GroupSum):
        return RunningSums(resolve(view, question))
    raise BadInput(
        f"A rerun cannot answer {type(question).__name__}.",
        hint="Pass TopK, GroupSum or Influence. Outputs need a memory with keys and values.",
        field="questions",
    )

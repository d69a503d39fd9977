"""Deletes samples from a memory.

Which samples a mask picks to be deleted, and what that means for the memory.

Shapes: D datapoints of the memory, shard after shard and run after run; H entries of a layer.

Which query sets hold an input that was deleted: a layer's query there is a key that no slot that stays has.

Inputs of the network tell, for they stay the same. Those of deeper layers change with the weights, those behind dropout
or of normalised batches were others in training, and without keys there is nothing to compare: so that every query set
that stays is named.

What slots brought to the parameters, run once through the update rule from zero: the sum that is kept of them.

Only of linear rules, whose states add up: that of all slots is that of some and that of the others.

Writes a memory anew without the samples that were picked, and takes it in place of the old one.

Shapes: D datapoints of the memory, shard after shard and run after run.

Delete samples from a memory: dualform.delete, and a preview of what it will do.

    RUN/memory.json      names shard-00000     ->     shard-00000-1, by one atomic rename
    RUN/shard-00000      as it was             ->     removed, once the new memory has passed every check

If it is cut off at any time, the memory is whole: the old one or the new one. The next attempt removes leftover files,
and `check` reports them.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from dualform.errors import BadInput, Damaged, EmptyMask, RecordingError
from dualform.query.score import backends
from dualform.query.view import Check, View
from dualform.query.weights.coefficients import BlockRules, rule_of, updates
from dualform.query.weights.missing_terms import why_scores_only
from dualform.query.weights.slot_products import block_size, outer_product
from dualform.query.where import mask
from dualform.query.where.expression import Expression
from dualform.questions.filters import Filter
from dualform.rules import State, advanced
from dualform.rules.half_precision import UNIT_ROUNDOFF, rounded
from dualform.rules.update_rule import Doubles
from dualform.store.files.durable_files import (
    make_folder,
    make_folders,
    read_regular,
    remove_all,
    sync_folder,
    write_whole,
)
from dualform.store.files.segment import SegmentCache
from dualform.store.layer import Layer, Parameter
from dualform.store.locks import folder_lock
from dualform.store.maintenance import attributions
from dualform.store.maintenance.check import check_no_links, leftovers, next_name, what_is_wrong
from dualform.store.maintenance.shard_rewrite import Removal, Stays, early_rows, manifest_of, rewrite_shard
from dualform.store.manifest import SHARD_FILE, DeletedSamples, FileMark, Manifest, Shard
from dualform.store.previews.stored_previews import StoredPreviewSet, free_name
from dualform.store.reading.runs import opened
from dualform.store.reading.snapshot import Snapshot
from dualform.store.reading.space import Space
from dualform.store.rows import Integers
from dualform.store.shard import check_writable
from dualform.store.tables import quoted
from dualform.store.weights import BlockSum, write_sums


def remove_leftovers(folder: Path) -> None:
    """Raises NotAMemory or Damaged as reading its manifest does."""
    found = leftovers(folder)
    for path in found:
        _remove(path)
    for parent in {path.parent for path in found}:
        if parent.is_dir():
            sync_folder(parent)


def _remove(path: Path) -> None:
    """A folder once more, where a process that has the memory open put a file of codes there while it was removed."""
    try:
        remove_all(path)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        remove_all(path)


@dataclass(frozen=True, eq=False)
class Targets:
    """What is to go."""

    datapoints: NDArray[np.bool_]
    """bool[D]."""
    entries: Mapping[str, Integers]
    """By layer, ascending; layers that have none of them are missing."""
    slots: Mapping[str, int]
    """By slot space, how many."""
    steps: int
    """How many steps have any of them."""
    alone: int
    """How many of those had nothing else."""
    first_step: int
    """The first of them."""
    labels: frozenset[tuple[str | None, int | None]]
    """(dataset, label) that no other sample has."""
    datasets: frozenset[str | None]
    """Datasets of which no other sample is: the names of all of their labels go."""
    shown: Mapping[str, NDArray[np.int64]]
    """By dataset, "" for none, numbers of samples that nothing else in the memory has: they go from preview sets."""
    unnumbered: frozenset[str]
    """Datasets, likewise, of which some have no number: which of a preview set they are cannot be told."""

    @property
    def samples(self) -> int:
        return int(self.datapoints.sum())


def targets_of(view: View, where: str | Filter) -> Targets:
    """The samples that `where` picks.

    Raises BadInput for a mask that names more than columns of the sample, for one that picks every sample, or some only
    by NaN, and where slots are of rows that are not known; EmptyMask where it picks none; as `mask.checked_expression`
    for what cannot be evaluated.
    """
    with view.snapshot.reading():
        return _targets_of(view, where)


def _targets_of(view: View, where: str | Filter) -> Targets:
    datapoints = _datapoints(view, where)
    if not datapoints.any():
        raise EmptyMask(f"where matches no sample: {where}", hint="Nothing was deleted.", field="where")
    if datapoints.all():
        raise BadInput("where matches every sample.", hint="Remove the folder of the memory instead.", field="where")
    snapshot = view.snapshot
    stays_of_space = {name: snapshot.space(name).spread(datapoints) for name in snapshot.spaces}
    entries = {}
    for layer in snapshot.layers.values():
        slots, own = stays_of_space[layer.space], snapshot.entries(layer.name).slots
        found = np.flatnonzero(slots if own is None else slots[own])
        if len(found):
            entries[layer.name] = found
    steps = np.asarray(snapshot.space(snapshot.spaces[0]).samples.column("step"), dtype=np.int64)
    sampled = [own.steps for own in snapshot.dropped.values()]  # which had others, that are not here
    having, others = np.unique(steps[datapoints]), np.unique(np.concatenate([steps[~datapoints], *sampled]))
    return Targets(
        datapoints,
        entries,
        {name: int(own.sum()) for name, own in stays_of_space.items()},
        len(having),
        len(np.setdiff1d(having, others)),
        int(having[0]),
        *_labels(view, datapoints),
        *_shown(view, datapoints),
    )


def _datapoints(view: View, where: str | Filter) -> NDArray[np.bool_]:
    spaces = [view.snapshot.space(name) for name in view.snapshot.spaces]
    for space in spaces:
        if space.extents.unknown_datapoints or len(space.samples.unknown()[0]):
            raise BadInput(
                f"samples cannot be deleted: the rows of slots in space {space.name!r} are unknown.",
                hint="Record the training again, without the samples.",
                field="where",
            )
    expression = mask.checked_expression(spaces[0], spaces, where, view.datasets)
    for space in spaces:
        if beyond := [name for name in expression.columns if name not in space.sample_columns]:
            raise BadInput(
                f"{beyond[0]!r} is a column of single slots in space {space.name!r}, but delete removes whole samples.",
                hint=f"Use columns of the sample: {', '.join(sorted(space.sample_columns))}.",
                field="where",
            )
    mask.require_one_dataset(spaces[0], expression)
    found = mask.select_datapoints(spaces[0], expression)
    _require_meant(spaces[0], expression, found, where)
    return found


def _require_meant(space: Space, expression: Expression, found: NDArray[np.bool_], where: str | Filter) -> None:
    """Raises BadInput for samples that a mask picks only because NaN is above every number, and not by isnan(…)."""
    unsaid = [
        name
        for name in expression.columns
        if pa.types.is_floating(space.samples.column(name).type) and f'"isnan"({quoted(name)})' not in expression.sql
    ]
    count = int((found & ~mask.select_datapoints(space, expression, unsaid)).sum()) if unsaid else 0
    if not count:
        return
    nan = " OR ".join(f"isnan({quoted(name)})" for name in unsaid)
    raise BadInput(
        f"where matches {count} of {int(found.sum())} samples only because {', '.join(unsaid)} is NaN, which SQL "
        "ranks above every number.",
        hint=f"To keep them, write ({where}) AND NOT ({nan}). To delete them, write ({where}) OR ({nan}).",
        field="where",
    )


def _labels(
    view: View, datapoints: NDArray[np.bool_]
) -> tuple[frozenset[tuple[str | None, int | None]], frozenset[str | None]]:
    """`labels` and `datasets` of Targets."""
    samples = view.snapshot.space(view.snapshot.spaces[0]).samples
    columns = [samples.column(name) for name in ("dataset", "label")]

    def pairs(which: NDArray[np.bool_]) -> set[tuple[str | None, int | None]]:
        return set(zip(*(column.filter(pa.array(which)).to_pylist() for column in columns), strict=True))

    theirs, others = pairs(datapoints), pairs(~datapoints)
    return frozenset(theirs - others), frozenset({own for own, _ in theirs} - {own for own, _ in others})


def _shown(view: View, datapoints: NDArray[np.bool_]) -> tuple[Mapping[str, NDArray[np.int64]], frozenset[str]]:
    """`shown` and `unnumbered` of Targets."""
    samples = view.snapshot.space(view.snapshot.spaces[0]).samples
    datasets, numbers = (samples.column(name) for name in ("dataset", "sample"))
    named = np.array([name or "" for name in datasets.to_pylist()], dtype=object)
    number = np.asarray(numbers.fill_null(0)).astype(np.int64)
    numbered = ~np.asarray(numbers.is_null())
    found, unnumbered = dict[str, NDArray[np.int64]](), set[str]()
    for dataset in set(named[datapoints].tolist()):
        own = named == dataset
        found[dataset] = np.setdiff1d(number[own & datapoints & numbered], number[own & ~datapoints & numbered])
        if (own & datapoints & ~numbered).any():
            unnumbered.add(dataset)
    return found, frozenset(unnumbered)


def touched_blocks(view: View, layers: Mapping[str, Integers]) -> set[str]:
    """The names of the parameter blocks that some layers hold."""
    return {block.block_name for name in layers for block in view.snapshot.layer(name).parameters}


def kept_sums(view: View, layers: Mapping[str, Integers]) -> Mapping[str, bool]:
    """By name of the layers that hold a block of those that lose slots: whether a sum is kept of what they brought,
    so that weights still add up; of others, which could be rebuilt, scores are left.
    """
    blocks, found = touched_blocks(view, layers), dict[str, bool]()
    for layer in view.snapshot.layers.values():
        own = {block.block_name for block in layer.parameters}
        if not own.isdisjoint(blocks) and not why_scores_only(view, layer):
            found[layer.name] = is_linear(view, layer)
    return found


def is_linear(view: View, layer: Layer) -> bool:
    """Whether every block of a layer is moved by a rule that gives slots coefficients."""
    return all(BlockRules(view.snapshot, block).linear for block in layer.parameters)


def removed_preview_sets(view: View, targets: Targets) -> tuple[str, ...]:
    """Datasets whose preview sets go as a whole: none of their samples is left, or some that go have no number by which
    the preview set would tell them apart.
    """
    every = {name for run in view.snapshot.runs for name in run.manifest.preview_sets}
    return tuple(sorted(every & _whole(targets)))


def shown(view: View, targets: Targets) -> Mapping[str, int]:
    """By dataset, of how many samples the preview sets that stay lose what they looked like."""
    found = dict[str, int]()
    for run in view.snapshot.runs:
        for dataset in run.manifest.preview_sets.keys() - _whole(targets):
            gone = targets.shown.get(dataset)
            count = 0 if gone is None else int((run.preview_set(dataset).rows(gone) >= 0).sum())
            if count:
                found[dataset] = max(count, found.get(dataset, 0))
    return found


def write_preview_sets(run: Snapshot, manifest: Manifest, targets: Targets, folder: Path, made: list[Path]) -> None:
    """Write those of a run that lose something anew, in a folder, and have the manifest say so: the files before are no
    part of the run any more. `made`: what was written, as far as it came.
    """
    preview_sets, files = dict(manifest.preview_sets), dict(manifest.files)
    for dataset, entry in manifest.preview_sets.items():
        gone = targets.shown.get(dataset)
        preview_set = StoredPreviewSet.of(run.path, entry, manifest.files)
        if dataset in _whole(targets):
            del preview_sets[dataset]
        elif gone is not None and (preview_set.rows(gone) >= 0).any():
            name = free_name(entry["file"].rpartition("/")[0], manifest.files)
            made.append(folder / name)
            files[name] = preview_set.write_without(gone, folder / name)
            left = len(preview_set.samples) - int((preview_set.rows(gone) >= 0).sum())
            preview_sets[dataset] = entry | {"file": name, "samples": left}
        else:
            continue
        del files[entry["file"]]
    manifest.preview_sets, manifest.files = preview_sets, files


def _whole(targets: Targets) -> set[str]:
    return {dataset or "" for dataset in targets.datasets} | targets.unnumbered


def query_sets_that_hold(view: View, entries: dict[str, Integers], check: Check) -> set[str]:
    """The names of query sets, of any run, with a key of some entries that no other entry of the layer has."""
    found = set[str]()
    names = dict.fromkeys(name for run in view.snapshot.runs for name in run.manifest.query_sets)
    for name in names:
        for layer, own in entries.items():
            if name not in found and view.snapshot.layer(layer).keys:
                rows = _queries(view, name, view.snapshot.layer(layer))
                if rows and _alone(view, layer, own, rows, check):
                    found.add(name)
    return found


def _queries(view: View, query_set: str, layer: Layer) -> set[bytes]:
    """The queries of a layer in a query set, of all runs that have one of the name, stored and in the key's type."""
    found = set[bytes]()
    for run in view.snapshot.runs:
        if query_set not in run.manifest.query_sets:
            continue
        for queries in run.query_set(query_set).keys(layer.name):
            found |= set(_digests(queries))
            if half := next((name for name in UNIT_ROUNDOFF if name in (layer.source, layer.dtype)), None):
                found |= set(_digests(rounded(queries.astype(np.float64), half).astype(np.float32)))
    return found


def _alone(view: View, layer: str, entries: Integers, rows: set[bytes], check: Check) -> bool:
    """Whether one of some rows is a key of those entries, and of no other."""
    theirs = rows & {digest for part in _keys(view, layer, entries, check) for digest in part}
    if not theirs:
        return False
    others = np.setdiff1d(np.arange(view.snapshot.entries(layer).count), entries, assume_unique=True)
    for part in _keys(view, layer, others, check):
        theirs -= set(part)
        if not theirs:
            return False
    return True


def _keys(view: View, layer: str, entries: Integers, check: Check) -> Iterator[list[bytes]]:
    """Digests of the distinct keys of some entries, piece by piece."""
    keys = view.snapshot.keys(layer)
    rows = entries if keys.row_of_entry is None else np.unique(keys.row_of_entry[entries])
    size = block_size(keys.width)
    for start in range(0, len(rows), size):
        check()
        yield _digests(keys.take(rows[start : start + size]))


def _digests(rows: NDArray[np.float32]) -> list[bytes]:
    return [xxhash.xxh3_128_digest(row.tobytes()) for row in rows + np.float32(0)]  # -0.0 is 0.0


def sums_of(view: View, targets: Targets, check: Check) -> dict[str, BlockSum]:
    """By block, what the picked slots brought up to the end of the memory, with what was deleted before.

    Of blocks that can be rebuilt, and will be.
    """
    found = dict[str, BlockSum]()
    for part in view.snapshot.deleted:  # of one folder there is one at most, as of the same end
        found |= part.sums
    blocks = touched_blocks(view, targets.entries)
    for layer in view.snapshot.layers.values():
        if why_scores_only(view, layer) or not is_linear(view, layer):
            continue
        for block in layer.parameters:
            if block.block_name in blocks:
                blocks.remove(block.block_name)
                own = _brought(view, block, targets.entries, check)
                before = found.get(block.block_name)
                found[block.block_name] = own if before is None else _added(own, before)
    return found


def _added(one: BlockSum, other: BlockSum) -> BlockSum:
    return BlockSum(one.weight + other.weight, {kind: own + other.buffers[kind] for kind, own in one.buffers.items()})


def _brought(view: View, block: Parameter, entries: Mapping[str, Integers], check: Check) -> BlockSum:
    holders = [
        _TargetTerms(view, layer, place, entries[layer.name])
        for layer in view.snapshot.layers.values()
        if layer.name in entries
        for place in layer.parameters
        if place.block_name == block.block_name
    ]
    rule = rule_of(view.snapshot, block.block_name)
    shape = block.stored_block_of(view.stored_weights("initial")[block.name]).shape
    held = view.snapshot.buffers().get(block.name, {})
    state = State(np.zeros(shape), {kind: np.zeros(shape) for kind in rule.buffers if kind in held})
    for update in updates(view.snapshot, block.block_name, view.snapshot.steps):
        check()
        gradient = np.zeros(shape)
        for terms in holders:
            terms.add(gradient, update.first_step, update.last_step)
        gradient *= update.factor
        state = advanced(rule, state, gradient, update.settings, None)
    return BlockSum(state.weight, dict(state.buffers))


@dataclass(frozen=True, eq=False)
class _TargetTerms:
    """What some entries of a layer bring to one of its blocks."""

    view: View
    layer: Layer
    place: Parameter
    entries: Integers
    """Ascending, and so are their steps."""

    def add(self, gradient: Doubles, first_step: int, last_step: int) -> None:
        """Add the gradient of their slots of some steps, both ends included, the way round that a block is stored."""
        steps = self.view.slot_steps(self.layer)[self.entries]
        low, high = np.searchsorted(steps, [first_step, last_step + 1]).tolist()
        size = block_size(max(self.layer.d_in, self.layer.d_out))
        for start in range(low, high, size):
            gradient += self._product(self.entries[start : min(start + size, high)])

    def _product(self, entries: Integers) -> Doubles:
        snapshot, layer, place = self.view.snapshot, self.layer, self.place
        values = snapshot.values(layer.name).take(entries).astype(np.float64)
        if place in layer.biases:
            summed: Doubles = values.sum(0)
            return summed
        keys = snapshot.keys(layer.name).of_entries(entries).astype(np.float64)
        whole = outer_product(values, keys, layer.groups)[:, place.start : place.stop]
        return whole.T if place.transposed else whole


_SUMS = "forgotten-{:05d}"


def rewrite(view: View, targets: Targets, query_sets: frozenset[str], check: Check) -> None:
    """The memory has none of the picked samples on return; what is left of the old one is leftovers (store/).

    `query_sets`: names of those that go. Raises Damaged where a file is not what was committed, RecordingError where
    the memory changed meanwhile, OSError where there is no room for it twice: it is as before then.
    """
    snapshot, made = view.snapshot, list[Path]()
    old = Manifest.read(snapshot.path)
    try:
        new = _written(view, targets, query_sets, check, made)
        sync_folder(snapshot.path)
        if snapshot.moved() or Manifest.read(snapshot.path) != old:
            raise RecordingError(
                f"{snapshot.path} was written to during the deletion: it is still being recorded.",
                hint="Call dualform.delete after the training has ended.",
            )
    except BaseException:
        _remove_shard(made)
        raise
    new.write(snapshot.path)  # from here on what was made is the memory, whatever happens
    if problems := what_is_wrong(snapshot.path):
        old.write(snapshot.path)
        _remove_shard(made)
        raise Damaged(
            f"The memory without these samples did not pass its check, so the old one was kept: {problems[0]}",
            hint=f"Run 'dualform check {snapshot.path}' to see whether the old one is damaged.",
        )


def _remove_shard(made: Iterable[Path]) -> None:
    for path in made:
        with suppress(OSError):  # what stays of it is leftovers, which are said where they are looked for
            remove_all(path)


def _written(view: View, targets: Targets, query_sets: frozenset[str], check: Check, made: list[Path]) -> Manifest:
    """Everything but memory.json; returns what that is to say. `made`: what was written, as far as it came."""
    snapshot = view.snapshot
    first, *further = _parts(view, targets)
    runs = []
    for part, run in zip(further, snapshot.runs[0].manifest.runs, strict=True):
        place = snapshot.path / next_name(run.folder)
        made.append(place)
        make_folder(place)
        _run(part, targets, query_sets, place, check, made).write(place)
        runs.append(replace(run, folder=place.name))
    manifest = _run(first, targets, query_sets, snapshot.path, check, made)
    before = manifest.deleted
    name = _SUMS.format(int(before.sums.rpartition("-")[2]) + 1 if before and before.sums else 0)
    made.append(snapshot.path / "weights" / f"{name}.safetensors")
    file, mark = write_sums(snapshot.path, name, sums_of(view, targets, check))
    files = {own: known for own, known in manifest.files.items() if not own.startswith("weights/forgotten-")}
    entry = DeletedSamples(targets.samples, targets.first_step, snapshot.steps, name, targets.slots)
    return replace(manifest, runs=runs, files={**files, file: mark}, deleted=entry.and_before(before))


@dataclass(frozen=True)
class _Part:
    """One run."""

    run: Snapshot
    stays: list[Stays]
    """By shard, bool[datapoints]: which stay, of all that it has on disk."""
    deleted: Mapping[str, int]
    """By layer, how many slots go."""
    removal: Removal


def _parts(view: View, targets: Targets) -> Iterator[_Part]:
    first, entries = 0, dict.fromkeys(targets.entries, 0)
    blocks = frozenset(touched_blocks(view, targets.entries))
    for run, before in zip(view.snapshot.runs, view.snapshot.first_steps, strict=True):
        stays = []
        for number in range(len(run.contents.shards)):
            own = early_rows(run.contents, number, "samples")
            count = int(own.sum())
            own[own] = ~targets.datapoints[first : first + count]
            first += count
            stays.append(own)
        gone = {}
        for layer in run.layers:
            if layer in targets.entries:
                start = entries[layer]
                entries[layer] += run.entries(layer).count
                low, high = np.searchsorted(targets.entries[layer], [start, entries[layer]]).tolist()
                gone[layer] = high - low
        first_step, end = targets.first_step - before, view.snapshot.steps - before
        yield _Part(run, stays, gone, Removal(targets.labels, targets.datasets, blocks, first_step, end))


def _run(
    part: _Part, targets: Targets, query_sets: frozenset[str], folder: Path, check: Check, made: list[Path]
) -> Manifest:
    """Write a run's shards, weights, query sets and previews to a folder, its own or another one."""
    run, shards = part.run, list[Shard]()
    for number, stays in enumerate(part.stays):
        old = run.contents.shards[number].manifest
        place = folder / next_name(old.shards[0].folder)
        if folder == run.path:
            made.append(place)
        shards.append(rewrite_shard(run.contents, number, place, stays, part.removal, check))
        if number:
            manifest_of(old, shards[-1:], part.deleted).write(place, SHARD_FILE)
    first, *others = shards
    listed = [first, *(Shard(other.folder) for other in others)]
    manifest = manifest_of(run.contents.shards[0].manifest, listed, part.deleted)
    write_preview_sets(run, manifest, targets, folder, made)
    kept = {name: entry for name, entry in manifest.query_sets.items() if name not in query_sets}
    files = {
        name: mark
        for name, mark in manifest.files.items()
        if not (_of_query_set(name, query_sets) or name.startswith(attributions.FOLDER))
    }
    if folder != run.path:
        _take_along(run.path, folder, {name: mark for name, mark in files.items() if not (folder / name).exists()})
    # A digest of a network would confirm a guess. That of where the run ends is of weights that stay, and a run behind
    # is held against it.
    marks = [mark for mark in manifest.marks if mark.step == run.steps]
    return replace(manifest, query_sets=kept, files=files, marks=marks)


def _take_along(old: Path, new: Path, files: Mapping[str, FileMark]) -> None:
    for name in files:
        make_folders((new / name).parent)
        write_whole(new / name, read_regular(old / name))


def _of_query_set(file: str, query_sets: frozenset[str]) -> bool:
    place, _, rest = file.partition("/")
    return place == "probes" and rest.partition("/")[0] in query_sets


CACHE_BYTES = 1 << 28


@dataclass(frozen=True)
class Deletion:
    """What is deleted, and what remains of it."""

    samples: int
    """Rows of batches."""
    slots: dict[str, int]
    """Slots by slot space."""
    steps: int
    """Steps that contain any of the samples."""
    alone: int
    """Steps that contain no other samples, so that data of the step is data of these samples."""
    summed: tuple[str, ...]
    """Layers for which one sum of the deleted terms is kept, so that weights at the end still add up."""
    scores_only: tuple[str, ...]
    """Layers that cannot be rebuilt from the first of these steps on; only scores remain."""
    first_step: int
    """The first of these steps."""
    query_sets: tuple[str, ...]
    """Query sets that are removed."""
    unsure: tuple[str, ...]
    """Query sets that are kept but may contain an input of the samples. This cannot be checked if the layer's inputs
    differ in training (dropout, normalised batches, deeper layers) or its keys are not stored."""
    others: tuple[str, ...]
    """Parameters and buffers outside the recorded layers. Their values between the first of these steps and the end are
    removed."""
    span: int
    """The number of steps from the first of these to the end."""
    removed: tuple[str, ...]
    """Other files in the folder that are removed, too: replaced runs, and leftovers of an attempt that was cut off."""
    shown: dict[str, int]
    """By dataset, the number of previews that are removed; "" stands for samples without a dataset."""
    preview_sets: tuple[str, ...]
    """Datasets whose previews are all removed: no sample is left, or samples were recorded without numbers."""
    few: bool
    """Whether a layer with a kept sum is wider than the number of its deleted slots: the sum then spans their keys."""


def delete(path: str | Path, where: str, *, query_sets: tuple[str, ...] = (), cut_off: bool = False) -> Deletion:
    """Delete the samples that `where` matches from the memory in a folder: their keys, values and columns.

    - `where`: an SQL condition over columns of the sample.
    - `query_sets`: query sets to remove, too. Query sets with an input that only these samples had are always removed.
    - `cut_off`: pass True for a recording that was cut off and will not continue.

    This changes the record, not the model, and is not unlearning. Traces remain: W_T minus W_0 minus the other terms is
    the sum of the deleted terms, and tells much if few slots were deleted. If a batch was normalised, the keys of its
    other rows can reveal a single missing one. Copies of the folder, and processes that have it open, still have the
    samples.

    Raises BadInput or EmptyMask for `where`, NotFound for a column or query set, BadInput if a file of the memory is a
    symbolic link, Locked while another process deletes, and Damaged for a damaged memory. In each case the memory is
    unchanged.
    """
    folder = Path(path)
    with folder_lock(folder):
        try:
            view, found = _prepared(folder, where, cut_off)
        except EmptyMask:
            if Manifest.read(folder).deleted:  # it may be what an attempt that was cut off did
                remove_leftovers(folder)
            raise
        told = _told(view, found, query_sets)
        remove_leftovers(folder)
        rewrite(view, found, frozenset(told.query_sets), _never)
        remove_leftovers(folder)
    return told


def planned_deletion(
    path: str | Path, where: str, *, query_sets: tuple[str, ...] = (), cut_off: bool = False
) -> Deletion:
    """What `delete` would do. Raises as it does, and changes nothing."""
    view, found = _prepared(Path(path), where, cut_off)
    return _told(view, found, query_sets)


def _prepared(folder: Path, where: str, cut_off: bool) -> tuple[View, Targets]:
    check_writable(folder)
    snapshot = opened(folder, SegmentCache())
    check_no_links(folder)
    if any(writer.going_on for writer in snapshot.writers) or (snapshot.recording and not cut_off):
        raise BadInput(
            snapshot.cut_off[0].upper() + snapshot.cut_off[1:],
            hint="If the recording has ended, pass cut_off=True.",
            field="path",
        )
    view = View(snapshot, backends.choose("numpy"), CACHE_BYTES)
    return view, targets_of(view, where)


def _told(view: View, found: Targets, query_sets: tuple[str, ...]) -> Deletion:
    for name in query_sets:
        view.snapshot.query_set(name)
    sums = kept_sums(view, found.entries)
    layers = [view.snapshot.layer(name) for name, kept in sums.items() if kept]
    removed = {*query_sets, *query_sets_that_hold(view, dict(found.entries), _never)}
    every = {name for run in view.snapshot.runs for name in run.manifest.query_sets}
    kept_by_step = {name for run in view.snapshot.runs for name in (run.others.names if run.others else ())}
    return Deletion(
        found.samples,
        dict(found.slots),
        found.steps,
        found.alone,
        tuple(name for name, kept in sums.items() if kept),
        tuple(name for name, kept in sums.items() if not kept),
        found.first_step,
        tuple(sorted(removed)),
        tuple(sorted(every - removed)),
        tuple(sorted(kept_by_step)),
        view.snapshot.steps - found.first_step,
        tuple(path.relative_to(view.snapshot.path).as_posix() for path in leftovers(view.snapshot.path)),
        dict(shown(view, found)),
        removed_preview_sets(view, found),
        any(len(found.entries.get(layer.name, ())) < layer.d_in for layer in layers),
    )


def _never() -> None:
    """Nobody asks it to stop."""

"""What a recording will take, estimated before it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from inspect import signature
from math import ceil
from os import PathLike
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from dualform.answers.table import percent
from dualform.errors import BadInput
from dualform.record.ranks import unwrapped_model
from dualform.record.recorder import Recorder, Step
from dualform.record.setup.budget import Budget, BudgetPlan, Bytes, bytes_of_logs, bytes_of_slots, is_whole
from dualform.record.setup.optimizers import optimizers_of
from dualform.record.setup.summary import listed
from dualform.store import shard
from dualform.store.batch import Batch, Header
from dualform.store.files.ram_budget import readable
from dualform.store.layer import Layer
from dualform.store.manifest import Manifest
from dualform.store.previews.preview_set import PreviewSet
from dualform.store.reading.opening import form_of_file
from dualform.store.reading.shard_tables import TABLE as SAMPLES
from dualform.store.reading.snapshot import Snapshot
from dualform.store.sources import FORMATS
from dualform.store.tables import arrow_type
from dualform.store.weights import WEIGHTS, weights_file
from dualform.store.writing.writer import Writer

_DISTINCT = 0.9
"""From this share of a column's entries on, each has a text of its own."""
_MOST_LETTERS = 20_000_000
"""Of a trial's column, were its texts all as long as the longest; one of more is written again as it is."""
_SPARE = 100
"""So many times as many texts as are made could be: few of them are made twice."""


def go_on(column: pa.ChunkedArray) -> bool:
    """Whether the rows to come will have texts that these do not have."""
    entries = len(column) - column.null_count
    if not pa.types.is_string(column.type) or entries < 2:
        return False
    longest = pc.max(pc.utf8_length(column)).as_py()
    return bool(0 < longest * len(column) <= _MOST_LETTERS and pc.count_distinct(column).as_py() >= _DISTINCT * entries)


def more_texts(column: pa.ChunkedArray, count: int, distinct: int | None, rng: np.random.Generator) -> pa.Array:
    """The column so many times after one another, with new texts of the same lengths each time; no more of them than
    `distinct`, where that is known, which come again then in any order.
    """
    missing = np.tile(np.asarray(column.is_null()), count)
    texts = np.asarray(column.drop_null().to_pylist(), dtype=np.str_)
    letters = texts.view(np.uint32).reshape(len(texts), -1)
    places = _places(letters, len(texts) * count)
    used = np.unique(letters[:, places])
    made = [texts.astype(object)]
    wanted = len(texts) * count
    most = wanted if distinct is None else min(max(distinct, len(texts)), wanted)
    while len(made) * len(texts) < most:
        other = letters.copy()
        drawn = rng.choice(used[used > 0], (len(texts), len(places)))
        other[:, places] = np.where(letters[:, places] > 0, drawn, 0)
        made.append(other.view(texts.dtype).reshape(-1).astype(object))
    every = np.concatenate(made)[:most]
    if most < wanted:
        every = np.concatenate([made[0], every[rng.integers(0, most, wanted - len(texts))]])
    rows = np.full(len(missing), None)
    rows[~missing] = every
    return pa.array(rows, type=column.type)


def _places(letters: NDArray[np.uint32], wanted: int) -> NDArray[np.int64]:
    """Where texts differ, and as many places before, from the right to the left, as new ones need to differ: digits
    before those that a counter has reached.
    """
    differs = np.array([len(np.unique(place[place > 0])) > 1 for place in letters.T])
    first = int(np.argmax(differs))
    alphabet = len(np.unique(letters[:, differs]))
    enough = int(np.ceil(np.log(_SPARE * wanted) / np.log(max(alphabet, 2))))
    further = max(enough - int(differs.sum()), 0)
    differs[max(first - further, 0) : first] = True
    return np.flatnonzero(differs)


def share_of_others(memory: Snapshot, layer: Layer) -> float | None:
    """Of the inputs of a layer, stored once each, that came with samples which had come before: the share that had not
    come before, as augmentation and dropout make them. None where no sample and no input came twice.
    """
    space, entries, per_row = memory.space(layer.space), memory.entries(layer.name), layer.key_format.per_row
    of_entry = memory.keys(layer.name).row_of_entry
    if of_entry is None:
        return None
    inputs = of_entry[::per_row] // per_row
    datapoints = space.spread(np.arange(space.samples.count))[entries.slots_of(np.arange(0, entries.count, per_row))]
    samples = space.samples.numbers()[1][datapoints]
    known = samples >= 0
    first_datapoint = np.full(space.samples.count, space.samples.count)
    np.minimum.at(first_datapoint, samples[known], datapoints[known])
    again = known & (datapoints > first_datapoint[samples])
    new = np.zeros(len(inputs), dtype=bool)
    new[np.unique(inputs, return_index=True)[1]] = True
    if not again.any():
        return None if new.all() else 0.0
    return float(new[again].mean())


_GOES_ON = frozenset(
    {"step", "first_step", "at_step", "datapoint", "first_datapoint", "first_slot", "first_entry", "slot"}
)
"""Columns that count."""
_FIXED = frozenset({"labels", "segments", "other_segments", "defects"})
"""Tables that do not grow with each step."""
_MOST_ROWS, _MOST_ENTRIES = 200_000, 2_000_000
"""Of one table, and of its lists, that are written to see what they take."""


@dataclass(frozen=True)
class Repeats:
    """Of a layer whose inputs repeat."""

    distinct: int
    """Stored rows of keys, at the end."""
    again: bool
    """Whether inputs come again."""
    per_row: int
    """Keys of a stored row."""


def grown_bytes(
    memory: Snapshot, scratch: Path, times: float, repeats: Mapping[str, Repeats], samples: int | None
) -> int:
    """Bytes of the tables' file once the training is so many times as long; `scratch`: a folder to write to;
    `repeats`: by layer; `samples`: how many distinct ones there are, where that is known.
    """
    types = memory.manifest.tables()
    seen = memory.whole_tables(types)
    growing = {name: rows for name, rows in seen.items() if rows.num_rows and _grows(name, rows, len(memory.layers))}
    tiles = max(2, min([ceil(times), *(_most_tiles(rows) for rows in growing.values())]))
    sizes = []
    for count in (1, tiles):
        more = {name: _tiled(name, rows, count, repeats, samples) for name, rows in growing.items()}
        path = scratch / f"{count}-{shard.FILE}"
        shard.append(path, 0, seen | more, shard.create(path, types, []))
        sizes.append(path.stat().st_size)
    once, several = sizes
    return round(once + (several - once) * max(times - 1, 0) / (tiles - 1))


def _grows(name: str, rows: pa.Table, layers: int) -> bool:
    """A layer that is called in every step has one range of slots, however many there are."""
    return name not in _FIXED and (name != "entries" or rows.num_rows > layers)


def _most_tiles(rows: pa.Table) -> int:
    lists = [column for column in rows.columns if pa.types.is_list(column.type)]
    entries = max((pc.sum(pc.list_value_length(column)).as_py() or 0 for column in lists), default=0)
    return int(min(_MOST_ROWS // rows.num_rows, _MOST_ENTRIES // max(entries, 1)))


def _tiled(name: str, rows: pa.Table, count: int, repeats: Mapping[str, Repeats], samples: int | None) -> pa.Table:
    """The rows so many times after one another."""
    whole = pa.concat_tables([rows] * count).combine_chunks()
    for place, column in enumerate(whole.column_names):
        if column in _GOES_ON:
            whole = whole.set_column(place, column, _going_on(rows[column], count))
    rng = np.random.default_rng(0)
    if name == "digests":  # which no column holds twice
        for column in ("keys", "columns"):
            width = max(len(rows[column][0].as_py() or "") // 2, 1)
            digests = pa.array([rng.bytes(width).hex() for _ in range(whole.num_rows)])
            whole = whole.set_column(whole.column_names.index(column), column, digests)
    if name == SAMPLES:
        for column in filter(lambda column: go_on(rows[column]), rows.column_names):
            more = more_texts(rows[column], count, samples, rng)
            whole = whole.set_column(whole.column_names.index(column), column, more)
    if name == "key_rows":
        whole = whole.set_column(whole.column_names.index(name), name, _key_rows(whole, rng, repeats))
    return whole


def _going_on(column: pa.ChunkedArray, count: int) -> pa.Array:
    missing = np.tile(column.is_null().to_numpy(), count)
    numbers = column.fill_null(0).to_numpy()
    span = int(numbers.max()) - int(numbers.min()) + 1
    added = np.repeat(np.arange(count, dtype=np.int64) * span, len(numbers))
    return pa.array((np.tile(numbers, count) + added).astype(numbers.dtype), mask=missing)


def _key_rows(rows: pa.Table, rng: np.random.Generator, repeats: Mapping[str, Repeats]) -> pa.Array:
    """Rows of keys as they come where inputs repeat: in any order; else one after another."""
    lists, next_row = [], dict.fromkeys(repeats, 0)
    for layer, entries in zip(
        rows["layer"].to_pylist(), pc.list_value_length(rows["key_rows"]).to_pylist(), strict=True
    ):
        own = repeats[layer]
        number = entries // own.per_row
        first = rng.integers(0, max(own.distinct, 1), number) if own.again else next_row[layer] + np.arange(number)
        next_row[layer] += number
        lists.append((first[:, None] * own.per_row + np.arange(own.per_row)).reshape(-1))
    return pa.array(lists, type=arrow_type("BIGINT[]"))


@dataclass(frozen=True)
class LayerBytes:
    """One layer."""

    keys: int
    values: int
    numbers: int
    """Of keys that a question reads."""
    entries: int
    """Slots."""
    d_in: int
    number_bytes: int | None
    """Of one number of its keys, where it is as long as those that the training computes with; else None."""
    value_number_bytes: int | None
    """The same of its values: an error signal has the type of what the layer gives."""

    def bytes_in(self, number_bytes: int) -> int:
        """Of keys and values, where the training computes in a type of so many bytes."""
        sizes = (self.keys, self.number_bytes), (self.values, self.value_number_bytes)
        return sum(size if own is None else size * number_bytes // own for size, own in sizes)


@dataclass(frozen=True)
class Stored:
    """A memory, by what takes its bytes."""

    layers: Mapping[str, LayerBytes]
    tables: int
    others: int
    """Of parameters and buffers that no slot explains."""
    weights: int
    """Initial and final ones, what the optimizer kept before, and query sets that were taken."""
    slots: Mapping[str, int]
    """By space."""
    told_once: tuple[str, ...]
    """Layers whose raw inputs are stored once each, and were not said to repeat."""
    altered: Mapping[str, float]
    """Layers whose samples came again with other inputs, and in what share of the times they came again."""
    unproven: tuple[str, ...]
    """Layers whose inputs are told to come again, as none of those that were tried did."""

    @property
    def total(self) -> int:
        own = sum(layer.keys + layer.values for layer in self.layers.values())
        return own + self.tables + self.others + self.weights


def stored_after(folder: Path, scratch: Path, steps: int, samples: int | None) -> Stored:
    """The memory in `folder` if it had `steps` steps, of as many distinct `samples`, where that is known. `scratch`: a
    folder to write to.
    """
    memory = Snapshot.open(folder)
    times = steps / memory.steps
    segments = memory.table("segments")
    rows_a_sample = _rows_a_sample(memory)
    layers, repeats, once = dict[str, LayerBytes](), dict[str, Repeats](), list[str]()
    altered, unproven = dict[str, float](), list[str]()
    for layer in memory.layers.values():
        own = segments.filter(pc.equal(segments["layer"], layer.name))
        sizes = {kind: _size(layer, kind, own) for kind in ("keys", "values")}
        entries = round(memory.entries(layer.name).count * times)
        rows, size = sizes["keys"]
        stored = rows * times
        if layer.repeats:
            drawn = entries / layer.key_format.per_row
            most = _most_rows(layer, samples, rows_a_sample.get(layer.name, 0.0))
            if most is not None and drawn > most and layer.key_format.most_rows is None:
                others = share_of_others(memory, layer)
                unproven += [layer.name] * (others is None)
                altered |= {layer.name: others} if others else {}
                most += (others or 0.0) * (drawn - most)
            stored = min(drawn, most) if most is not None else stored
            repeats[layer.name] = Repeats(round(stored), drawn > stored, layer.key_format.per_row)
            once += [layer.name] * (most is None)
        keys = round(size / rows * stored) if rows else 0
        values = round(sizes["values"][1] * times)
        numbers = round(stored * layer.key_format.numbers_a_row)
        of_values = FORMATS[layer.value_source].number_bytes if layer.key_format.multiplied else None
        layers[layer.name] = LayerBytes(
            keys, values, numbers, entries, layer.d_in, layer.key_format.number_bytes, of_values
        )
    kept = memory.manifest.others
    return Stored(
        layers=layers,
        tables=grown_bytes(memory, scratch, times, repeats, samples),
        others=0 if kept is None else kept.form.width * (steps // kept.every + 1),
        weights=sum(mark.bytes for mark in memory.manifest.files.values()),
        slots={space: round(memory.count(space) * times) for space in memory.spaces},
        told_once=tuple(once),
        altered=altered,
        unproven=tuple(unproven),
    )


def _size(layer: Layer, kind: str, segments: pa.Table) -> tuple[int, int]:
    """Rows of a kind and their bytes, without those of the files' headers."""
    rows, size = 0, 0
    for own in segments.filter(pc.equal(segments["kind"], kind)).select(["file", "rows"]).to_pylist():
        rows += own["rows"]
        size += own["rows"] * form_of_file(layer, kind, Path(own["file"])).row_bytes
    return rows, size


def _rows_a_sample(memory: Snapshot) -> dict[str, float]:
    """By layer, stored rows that one row of a batch brings, before any is left out because it came before."""
    samples = memory.table("samples")
    count = samples.num_rows - samples["row"].null_count
    return {
        layer.name: memory.entries(layer.name).count / layer.key_format.per_row / max(count, 1)
        for layer in memory.layers.values()
    }


def _most_rows(layer: Layer, samples: int | None, rows_a_sample: float) -> float | None:
    """How many distinct inputs a layer may have; None where nobody knows."""
    most = layer.key_format.most_rows
    known = [] if most is None else [float(most)]
    known += [] if samples is None else [samples * rows_a_sample]
    return min(known, default=None)


_MOST_STEPS = 20_000
"""How many steps are gone through; of longer trainings, several as one."""


@dataclass(frozen=True)
class StepBytes:
    """What one step was, or would be, to a budget."""

    slots: Bytes
    logs: Bytes

    def times(self, count: int) -> StepBytes:
        return StepBytes(_times(self.slots, count), _times(self.logs, count))


@dataclass(frozen=True)
class Forecast:
    """What a budget keeps of one training."""

    share: float
    """The share of all slots that is kept."""
    first_step: int | None
    """The first step that lacks slots. Outputs and weights are exact up to it. None if all slots are kept."""
    steps: int
    """The number of steps that are recorded before even their logs do not fit."""

    def __str__(self) -> str:
        if self.first_step is None:
            return "all slots"
        whole = f", all of them before step {self.first_step:,}" if self.first_step else ", from the first step on"
        return f"{percent(self.share)} of the slots{whole}"


@dataclass(frozen=True)
class TriedSteps:
    """A trial's steps, as a budget sees them."""

    first: StepBytes
    """Of the first one, by which a share is planned."""
    later: StepBytes
    """Of each further one, on average."""
    others: int
    """Bytes of parameters of no layer, a step."""
    begun: int
    """Bytes that files take before the first step."""
    ending: int
    """Bytes that are written as the training ends."""

    @classmethod
    def of(cls, batches: Sequence[StepBytes], manifest: Manifest) -> TriedSteps:
        """`batches`: of all that was written to the memory of this manifest, of which the first one has the first
        step's slots; those of logs alone have none.
        """
        first, *rest = batches
        count = max(1, sum(own.slots.whole > 0 for own in rest))
        rest = rest or [first]
        slots, logs = sum((own.slots for own in rest), Bytes()), sum((own.logs for own in rest), Bytes())
        kept = manifest.others
        others = 0 if kept is None else kept.form.width // kept.every
        weights = {name: mark.bytes for name, mark in manifest.files.items() if name.startswith(WEIGHTS)}
        ending = weights.pop(weights_file("final"), 0)
        return cls(first, StepBytes(_over(slots, count), _over(logs, count)), others, sum(weights.values()), ending)


def forecast(tried: TriedSteps, stored: Stored, limit: int, steps: int, planned: bool) -> Forecast:
    """Of a training of `steps` steps that takes what is `stored` without a budget; `limit`: of its bytes; `planned`:
    whether the recorder is told how many steps there are.
    """
    at_once = ceil(steps / _MOST_STEPS)
    count = ceil(steps / at_once)
    first, later = tried.first.times(at_once), tried.later.times(at_once)
    disk = _Disk(tried.begun, stored, first.slots + first.logs, later.slots + later.logs, count)
    budget = Budget(limit, disk.measure, tried.ending, count if planned else None, 1.0, tried.others * at_once)
    kept, lacking, done = 0.0, None, 0
    for step in range(count):
        if budget.used_up:
            break
        own = later if step else first
        share = budget.share_of(own.slots, own.logs)
        others = tried.others * at_once if budget.keeps_others else 0
        slots = _times(own.slots, share)
        slots_fit, others_fit = budget.admits(slots + own.logs, Bytes(others))
        others *= others_fit
        if not slots_fit:
            share, slots = 0.0, Bytes()
        budget.charge(slots + own.logs + Bytes(others), others)
        disk.add(slots + own.logs, others)
        if lacking is None and share < 1:
            lacking = step * at_once
        kept, done = kept + share, step + 1
    return Forecast(kept / done if done else 0.0, lacking, min(steps, done * at_once))


class _Disk:
    """What files come to take: of rows and tables, as much of what was charged for them as all of `stored` is of it."""

    def __init__(self, begun: int, stored: Stored, first: Bytes, later: Bytes, steps: int) -> None:
        rows, tables = (first.rows + later.rows * (steps - 1), first.tables + later.tables * (steps - 1))
        own = sum(layer.keys + layer.values for layer in stored.layers.values())
        self._rows, self._tables = own / max(rows, 1), stored.tables / max(tables, 1)
        self._taken: float = begun

    def add(self, recorded: Bytes, others: int) -> None:
        self._taken += recorded.rows * self._rows + recorded.tables * self._tables + others

    def measure(self) -> int:
        return round(self._taken)


def _times(size: Bytes, count: float) -> Bytes:
    return Bytes(round(size.rows * count), round(size.tables * count), round(size.files * count))


def _over(size: Bytes, count: int) -> Bytes:
    return _times(size, 1 / count)


_INSTEAD = {"quiet": True, "resume": False}
"""Arguments of the recorder that a trial does not take from the training."""


_MOST_BYTES = 2 << 30
"""Of a trial, as far as its first step tells."""
_FEWEST = 3
"""Steps that are tried however many bytes they take: the first one is not like the others."""


class _Enough(BaseException):
    """The training is stopped: no error, so that what catches errors lets it pass."""


class Trial:
    """A training's first steps."""

    def __init__(
        self,
        folder: Path,
        steps: int,
        check: Callable[[nn.Module, Sequence[Optimizer]], None] | None = None,
        **instead: Any,
    ) -> None:
        """`folder`: of the memory, not there yet; `check`: raises where a network and its optimizers cannot be recorded
        as planned; `instead`: further arguments of the recorder, in place of the training's own.
        """
        self.wanted = steps
        """How many steps are to be recorded."""
        self.batches: list[StepBytes] = []
        """What was written, as a budget sees it."""
        self._check, self._instead = check, {**_INSTEAD, **instead, "path": folder, "sink": self._writer}
        self._recorder: Recorder | None = None
        self._times: list[float] = []
        """When each step began, and when the trial was over, in seconds."""

    def run(self, train: Callable[..., object]) -> None:
        """Train until enough steps are recorded. Raises BadInput for a training that records none, or not by what it is
        given, and whatever the training raises.
        """
        with suppress(_Enough):
            train(self._record)
        if self._recorder is None:
            raise BadInput(
                "The training function did not make a recorder with its argument.",
                hint="Write `def train(record): …`, and in it `with record(model, optimizer) as recorder:`, as with "
                "dualform.Recorder.",
                field="train",
            )
        if not self.steps:
            raise BadInput(
                "The training function did not record any step.",
                hint="Put each batch into `with recorder.step(...)`.",
                field="train",
            )

    @property
    def steps(self) -> int:
        """How many steps were recorded."""
        return 0 if self._recorder is None else self._recorder.steps

    @property
    def step_seconds(self) -> float:
        """From the beginning of a step to that of the next one, as half of them had it; the first ones of a process are
        slow.
        """
        between = [after - before for before, after in zip(self._times, self._times[1:], strict=False)]
        return median(between[len(between) // 4 :] or [0.0])

    def _record(self, *arguments: Any, **named: Any) -> Recorder:
        """In place of dualform.Recorder. Raises what it raises, and BadInput for what cannot be tried."""
        given = signature(Recorder).bind_partial(*arguments, **named).arguments
        if given.get("ranks", 1) != 1:
            raise BadInput(
                "estimate cannot run one of several ranks.",
                hint="Train in one process with the rows of one rank; each rank takes as much.",
                field="ranks",
            )
        if self._recorder is not None:
            raise BadInput(
                "The training function made a second recorder.", hint="Train one network in it, once.", field="train"
            )
        for name in ("sink", "budget", "keep", "steps", "seed"):  # a trial keeps every slot of its few steps
            given.pop(name, None)
        if self._check is not None and {"model", "optimizer"} <= given.keys():  # else the recorder says what is missing
            self._check(unwrapped_model(given["model"]), optimizers_of(given["optimizer"]))
        self._recorder = _TrialRecorder(self._begin, **{**given, **self._instead})
        return self._recorder

    def _writer(self, header: Header) -> _NotedWriter:
        return _NotedWriter(header, self.batches)

    def _begin(self) -> None:
        """Another step is about to begin."""
        self._times.append(time.perf_counter())
        if self.steps == 1 and self._recorder is not None:
            most = _MOST_BYTES // max(self._recorder.summary.bytes_a_step or 0, 1)
            self.wanted = min(self.wanted, max(most, _FEWEST))
        if self.steps >= self.wanted:
            raise _Enough


class _NotedWriter(Writer):
    def __init__(self, header: Header, batches: list[StepBytes]) -> None:
        self._seen_batches = batches
        super().__init__(header)

    def append(self, batch: Batch) -> None:
        self._seen_batches.append(StepBytes(bytes_of_slots(batch), bytes_of_logs(batch)))
        super().append(batch)

    def add_preview_set(self, dataset: str | None, preview_set: PreviewSet, most_bytes: int | None = None) -> None:
        """What samples look like is not tried: encoding it takes as long as in the training itself."""


class _TrialRecorder(Recorder):
    def __init__(self, begin: Callable[[], None], **arguments: Any) -> None:
        self._begin_trial_step = begin
        super().__init__(**arguments)

    @contextmanager
    def step(self, *arguments: Any, **named: Any) -> Iterator[Step]:
        self._begin_trial_step()
        with super().step(*arguments, **named) as step:
            yield step


TRIED = 20
"""Steps."""
_LISTED = 10
"""Layers that the text has."""


@dataclass(frozen=True)
class RecordingCost:
    """The cost of one way to record."""

    bytes: int
    """Bytes on disk at the end of the training. Derived files of later queries add one byte for each number of a key.
    """
    bytes_a_second: float
    """Bytes written in a second of training."""
    question_seconds: float
    """Seconds to score every key of every layer against one query: by reading the keys from RAM or, without stored
    keys, by training again."""


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of recording one training, in bytes on disk and seconds. `str(estimate)` is a table."""

    steps: int
    tried: int
    """The number of steps that were recorded for the estimate."""
    step_seconds: float
    """Seconds for one step of the training, recorded."""
    stored: Stored
    """The parts of the bytes of the way `stored`."""
    ways: Mapping[str, RecordingCost]
    """Costs by way of recording. `stored`: as the training computes. `float32`, `bfloat16`: with layers that compute in
    this type, as under autocast. `digests`: with keys=False."""
    notes: Sequence[str]
    """Limits of the estimate, one sentence each."""
    budget: int | None = None
    """The budget in bytes; None without one."""
    planned: Forecast | None = None
    """The forecast for the budget if you pass the number of steps: Recorder(budget=…, steps=…)."""
    unplanned: Forecast | None = None
    """The forecast for the budget without `steps`."""

    def to_json(self) -> dict[str, Any]:
        """The attributes as plain values, by name."""
        own = self.stored
        layers = {name: {"keys": layer.keys, "values": layer.values} for name, layer in own.layers.items()}
        beside = {"tables": own.tables, "others": own.others, "weights": own.weights}
        return {
            "steps": self.steps,
            "tried": self.tried,
            "step_seconds": self.step_seconds,
            "slots": dict(own.slots),
            "ways": {name: vars(way) for name, way in self.ways.items()},
            "layers": layers,
            **beside,
            "notes": list(self.notes),
            **self._budget_json(),
        }

    def _budget_json(self) -> dict[str, Any]:
        if self.planned is None or self.unplanned is None:
            return {}
        return {"budget": {"bytes": self.budget, "planned": vars(self.planned), "unplanned": vars(self.unplanned)}}

    def __str__(self) -> str:
        slots = ", ".join(f"{count:,} slots of {space}" for space, count in self.stored.slots.items())
        lines = [f"{self.steps:,} steps of {_time(self.step_seconds)}: {slots}"]
        stored = self.ways["stored"]
        lines.append(f"  {'':10}{'on disk':>10}{'written':>14}{'a question':>14}")
        for name, way in self.ways.items():
            if name == "stored" or way.bytes != stored.bytes:
                speed = f"{readable(way.bytes_a_second)}/s"
                lines.append(f"  {name:10}{readable(way.bytes):>10}{speed:>14}{_time(way.question_seconds):>14}")
        by_size = sorted(self.stored.layers.items(), key=lambda own: -own[1].keys - own[1].values)
        width = max((len(name) for name, _ in by_size[:_LISTED]), default=0)
        lines.append("of what is stored:")
        for name, layer in by_size[:_LISTED]:
            lines.append(f"  {name:{width}}  keys {readable(layer.keys)}, values {readable(layer.values)}")
        rest = sum(layer.keys + layer.values for _, layer in by_size[_LISTED:])
        lines += [f"  {len(by_size) - _LISTED} more layers: {readable(rest)}"] if rest else []
        own = self.stored
        others = f", other parameters {readable(own.others)}" if own.others else ""
        lines.append(f"  tables {readable(own.tables)}, weights {readable(own.weights)}{others}")
        return "\n".join([*lines, *self._budget_lines(), *self.notes])

    def _budget_lines(self) -> list[str]:
        if self.planned is None or self.unplanned is None:
            return []
        lines = [f"within {readable(self.budget or 0)}:"]
        for said, found in ((f"steps={self.steps}", self.planned), ("without steps=", self.unplanned)):
            ends = f"; recording ends after {found.steps:,} steps" if found.steps < self.steps else ""
            lines.append(f"  {said}: {found}{ends}")
        return lines


def estimate(
    train: Callable[..., object],
    steps: int,
    *,
    samples: int | None = None,
    layers: str | Sequence[str] | None = None,
    tried: int = TRIED,
    folder: str | PathLike[str] | None = None,
    budget: int | str | None = None,
) -> Estimate:
    """Estimate the disk space and time that recording `steps` steps of a training will take.

    It runs a few steps of the training twice, with keys and without.

    - `train`: a function `train(record)` that trains. It calls `record` as it would call `dualform.Recorder`, with or
      without a path. It is stopped after `tried` steps, or earlier if these would take gigabytes.
    - `steps`: the number of steps of the whole training. Later batches are assumed to be like the first.
    - `tried`: the number of steps to run.
    - `samples`: the number of distinct inputs in the training, over all epochs. Inputs that repeat bit for bit are
      stored once. Without it, every input counts as new, which is true of augmented data.
    - `layers`: patterns that replace the `layers` of the training.
    - `folder`: where the trials are written and then removed; None for a temporary folder.
    - `budget`: bytes on disk, as in `Recorder`, to learn which share of the slots would be kept.

    Raises BadInput for counts below 1, for a training that does not record with `record`, and for a budget that
    `Recorder` rejects.
    """
    steps, tried = _count("steps", steps), _count("tried", tried)
    samples = None if samples is None else _count("samples", samples)
    chosen: dict[str, Any] = {} if layers is None else {"layers": layers}
    with TemporaryDirectory(dir=folder, prefix="dualform-estimate-") as place:
        stored = Path(place) / "stored"
        plan = None if budget is None else BudgetPlan.of(budget, "samples", steps, 0, stored, None)
        chosen |= {} if plan is None else {"check": plan.check}
        kept, trial = _tried(train, stored, min(tried, steps), steps, samples, keys=True, **chosen)
        seen = TriedSteps.of(trial.batches, Manifest.read(stored))
        none, again = _tried(train, Path(place) / "digests", min(tried, steps), steps, samples, keys=False, **chosen)
    seconds, rate = trial.step_seconds, _numbers_a_second()
    read = sum(layer.numbers for layer in kept.layers.values()) / rate
    made = sum(layer.entries * layer.d_in for layer in kept.layers.values()) / rate

    def way(total: int, a_step: float, question: float) -> RecordingCost:
        return RecordingCost(total, total / max(steps * a_step, 1e-9), question)

    ways = {"stored": way(kept.total, seconds, read)}
    for name, number_bytes in (("float32", 4), ("bfloat16", 2)):
        changed = sum(layer.bytes_in(number_bytes) - layer.keys - layer.values for layer in kept.layers.values())
        ways[name] = way(kept.total + changed, seconds, read)
    ways["digests"] = way(none.total, again.step_seconds, steps * again.step_seconds + made)
    found = Estimate(steps, trial.steps, seconds, kept, ways, _notes(kept, trial))
    if plan is None:
        return found
    planned, unplanned = (forecast(seen, kept, plan.rule.budget, steps, told) for told in (True, False))
    return replace(found, budget=plan.rule.budget, planned=planned, unplanned=unplanned)


def _count(name: str, number: object) -> int:
    """Raises BadInput for what is none."""
    if not is_whole(number) or number < 1:
        raise BadInput(f"{name} must be a whole number from 1 on, not {number!r}.", field=name)
    return int(number)


def _notes(kept: Stored, trial: Trial) -> list[str]:
    notes = []
    if kept.told_once:
        notes.append(
            f"Each distinct input of {listed(kept.told_once)} is stored once: say how many samples there are "
            "(samples=, --samples), or each is taken for another."
        )
    if kept.altered:
        shares = ", ".join(f"{name} ({share:.0%} of the times)" for name, share in kept.altered.items())
        notes.append(
            f"Samples came again with other inputs, as augmentation and dropout make them, in {shares}: samples= "
            "(--samples) holds for inputs that come again bit for bit, and so many of these are taken for others."
        )
    if kept.unproven:
        notes.append(
            f"No input of {listed(kept.unproven)} came again in {trial.steps} steps: samples= (--samples) holds for "
            "inputs that come again bit for bit. Augmented ones do not, and take as much as if it were not said."
        )
    if trial.steps < trial.wanted:
        notes.append(f"The training ended after {trial.steps} steps: the estimate is made of these.")
    return notes


def _tried(
    train: Callable[..., object], folder: Path, tried: int, steps: int, samples: int | None, **instead: Any
) -> tuple[Stored, Trial]:
    trial = Trial(folder, tried, **instead)
    trial.run(train)
    scratch = folder.with_name(f"{folder.name}-tables")
    scratch.mkdir()
    return stored_after(folder, scratch, steps, samples), trial


def _numbers_a_second() -> float:
    """How many numbers of keys this machine multiplies by a query's in a second."""
    keys, query = np.ones((1 << 13, 1 << 10), dtype=np.float32), np.ones(1 << 10, dtype=np.float32)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        keys @ query
        seconds.append(time.perf_counter() - start)
    return keys.size / min(seconds)


def _time(seconds: float) -> str:
    """A span of time, for people."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"

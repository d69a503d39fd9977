"""Recording within a budget: how much of the disk may be used, and which samples are kept.

What a budget keeps of a step: whole samples, with all of their slots in all layers.

Rows are numbered anew, in their order, so that what is left lies as if the batch had had no others.

How much of the disk a recording may take, and the share of its slots that fits.

    left  =  budget  -  what its files take  -  what was recorded since they were measured  -  what is held back

The share begins at 1. Where the number of steps is planned, it is set at the first one to what fits. From then on it
is only halved, for the steps that follow: whenever half of what was left when it was last set has been used; of a
planned training, where the steps to come would take more than is left. What stands is never written again. A step whose
slots do not fit all the same is kept without any, and once there is no room for what is logged of a step beside them,
recording ends.

Before the first slot is dropped, parameters of no layer are no longer kept step by step, and what they took until then
is no reason to drop slots.

Until files are measured again, rows count twice, since they may stand in a journal and in segments at one time, and
what becomes rows of tables four times, for DuckDB's log and its copies. They are measured before the share is halved,
and before anything is left out for want of room, so that these estimates never add up.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from dualform.errors import BadInput
from dualform.record.ranks import TrainingShard
from dualform.store.batch import Array, Batch, Extent, LayerRows, SpaceShare
from dualform.store.files.durable_files import is_derived
from dualform.store.files.ram_budget import bytes_of, readable
from dualform.store.layer import KEEPS, ROWS_OF_A_RANK, Keep, Layer, Sampling
from dualform.store.manifest import shard_folder
from dualform.store.query_sets import QuerySetArrays
from dualform.store.tables import SHARE

TABLES_BYTES = 6 << 20
"""What tables come to take before long, whatever is in them: DuckDB gives each column a block of its own."""
_COMMIT_BYTES, _COMMIT_SHARE = 8 << 20, 64
"""Held back for one commit, in which DuckDB writes the last rows of its tables again, and one part in so many of the
budget."""
_PLANNED = 0.9
"""Of what is left, what a planned training is to fill: later batches may be larger than the first."""
_SMALLEST = 2.0**-40


@dataclass(frozen=True)
class Bytes:
    """What something takes once it stands in the memory, about."""

    rows: int = 0
    """Of keys, values and other parameters, which lie in files of their own."""
    tables: int = 0
    """Of what is said of them."""
    files: int = 0
    """Of files that are written at once, as a query set's."""

    @property
    def whole(self) -> int:
        return self.rows + self.tables + self.files

    @property
    def most(self) -> int:
        """Until it is measured."""
        return 2 * self.rows + 4 * self.tables + self.files

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(self.rows + other.rows, self.tables + other.tables, self.files + other.files)


class Budget:
    """That of one process. Used on the training's own thread."""

    def __init__(
        self, limit: int, measure: Callable[[], int], ending: int, steps: int | None, share: float, others: int = 0
    ) -> None:
        """`limit`: how many bytes; `measure`: makes what was recorded durable, and tells the bytes that all files take;
        `ending`: bytes that are written as the training ends; `steps`: how many are planned; `share`: to begin with;
        `others`: bytes that parameters of no layer take a step, on average.
        """
        self.share = share
        self._room, self._measure, self._steps = limit - held_back(limit) - ending, measure, steps
        self._begun = self._measured = measure()
        self._rows, self._tables = 0, TABLES_BYTES
        """Bytes of rows that were recorded since, and of what tables come to take, how much is yet to come."""
        self._since = 0
        """What was recorded since then takes so many bytes at most."""
        self._when_set: int | None = None
        """What was left when the share was set; None before the first step."""
        self._logs, self._slots, self._seen = 0, 0, 0
        """Over all steps: bytes of logs, bytes that all slots would have taken, and how many steps."""
        self._most_logs = 0
        self._others, self._others_kept = others, 0
        """Bytes of other parameters: a step, 0 once they are no longer kept, and so far."""

    @property
    def left(self) -> int:
        return self._room - self._measured - self._tables - self._since

    @property
    def spare(self) -> int:
        """What is left beside what is logged of another step."""
        return self.left - 2 * self._most_logs

    @property
    def used_up(self) -> bool:
        """Whether there is no room for what is logged of another step. Raises what went wrong with writing."""
        if self._since and self.spare < 0:
            self.measure()
        return self.spare < 0

    @property
    def keeps_others(self) -> bool:
        """Whether parameters of no layer are kept step by step."""
        return self.share == 1 and self._others > 0

    def stop_others(self) -> None:
        """Parameters of no layer are not kept any more, and what they took does not count against slots."""
        self._others = 0
        if self._when_set is not None:
            self._when_set -= self._others_kept

    def measure(self) -> None:
        """Everything recorded so far becomes durable, and is measured in place of being estimated."""
        self._measured, self._since = self._measure(), 0
        grown = self._measured - self._begun - self._rows
        self._tables = min(self._tables, max(0, TABLES_BYTES - grown))

    def share_of(self, slots: Bytes, logs: Bytes) -> float:
        """The share of the next step, which has such slots, and of which so much is logged. Raises what went wrong with
        writing.
        """
        self._seen += 1
        self._slots, self._logs = self._slots + slots.whole, self._logs + logs.whole
        self._most_logs = max(self._most_logs, logs.most)
        if self._when_set is None:
            self._when_set = self.left
            if self._to_come > 0 and slots.whole:
                self._plan(slots.whole)
        while self.share > _SMALLEST and self.left > 0 and self._too_large(slots):
            if self._since:
                self.measure()
            elif self.keeps_others:
                self.stop_others()
            else:
                self.share, self._when_set = self.share / 2, self.left
        return self.share

    def _plan(self, slots: int) -> None:
        """Set the share to what fits of a planned training, a step of which has so many bytes of slots; where there is
        no room for what is logged of its steps, it is not reached anyway.
        """
        if self.keeps_others and _PLANNED * self._for_slots < self._to_come * slots:
            self.stop_others()
        if self._for_slots > 0:
            self.share = min(self.share, max(_PLANNED * self._for_slots / (self._to_come * slots), _SMALLEST))

    def _too_large(self, slots: Bytes) -> bool:
        """Whether the share is."""
        assert self._when_set is not None
        if self.share * slots.most > self.left / 2:  # this step would take half of it, or more
            return True
        if self._to_come > 0 and self._for_slots > 0:
            return self.share * self._slots / self._seen * self._to_come > self._for_slots
        return self.left < self._when_set / 2

    @property
    def ends_at(self) -> int | None:
        """The step at which the logs of a planned training alone would fill what is left; None where they do not."""
        if self._to_come <= 0 or self._for_slots > 0:
            return None
        return self._seen + max(0, int(self.left // (self._logs / self._seen)))

    @property
    def _to_come(self) -> int:
        """How many of the planned steps, this one among them."""
        return 0 if self._steps is None else self._steps - self._seen + 1

    @property
    def _for_slots(self) -> float:
        """Of what is left, what the planned steps do not need beside their slots."""
        others = self._others if self.keeps_others else 0
        return self.left - (self._logs / self._seen + others) * self._to_come

    def fits(self, recorded: Bytes) -> bool:
        """Raises what went wrong with writing."""
        if recorded.most > self.left and self._since:
            self.measure()
        return recorded.most <= self.left

    def admits(self, recorded: Bytes, others: Bytes) -> tuple[bool, bool]:
        """Whether there is room for a step's slots, and for its parameters of no layer, which go first.

        `recorded`: the step beside these `others`. Raises what went wrong with writing.
        """
        if self.fits(recorded + others):
            return True, True
        if others.whole:
            self.stop_others()
        return self.fits(recorded), False

    def charge(self, recorded: Bytes, others: int = 0) -> None:
        """This is being recorded; `others`: bytes of it that are of parameters of no layer."""
        self._since += recorded.most
        self._rows += recorded.rows + recorded.files
        self._others_kept += others


def held_back(limit: int) -> int:
    """What of a budget is never filled."""
    return _COMMIT_BYTES + limit // _COMMIT_SHARE


_ROW = 160
"""About the bytes that a row of a table takes, beside its texts and lists."""


def bytes_of_batch(batch: Batch) -> Bytes:
    return bytes_of_slots(batch) + bytes_of_others(batch) + bytes_of_logs(batch)


def bytes_of_others(batch: Batch) -> Bytes:
    """Of parameters of no layer."""
    return Bytes(sum(row.content.nbytes for row in batch.others))


def bytes_of_slots(batch: Batch) -> Bytes:
    """Of the slots and what is said of them."""
    parts = [part for parts in batch.layers.values() for part in parts]
    rows = sum(part.keys.nbytes + (0 if part.values is None else part.values.nbytes) for part in parts)
    lists = [array for extent in batch.extents for array in (extent.row, extent.position, *extent.columns.values())]
    said = sum(_bytes(array) for array in (*batch.samples.values(), *lists) if array is not None)
    entries = sum(len(part.keys) for part in parts)  # where inputs repeat, which row each of them is
    samples = len(next(iter(batch.samples.values()), ()))
    return Bytes(rows, said + 8 * entries + 16 * samples)


def bytes_of_logs(batch: Batch) -> Bytes:
    """Of all else that becomes rows of tables."""
    factors = [factor for log in batch.logs for factor in log.factors]
    groups = sum(1 + len(log.groups) for log in batch.logs)
    alone = sum(factor.alone.rows.nbytes + factor.alone.gradient.nbytes for factor in factors if factor.alone)
    rows = len(factors) + groups + len(batch.defects) + len(batch.watch) + len(batch.extents) + len(batch.layers)
    random = sum(len(state) for state in batch.random_states.values())
    return Bytes(tables=alone + random + _ROW * (rows + 2 * len({extent.space for extent in batch.extents})))


def _bytes(array: NDArray[Any]) -> int:
    """Of a column, with its texts."""
    texts = sum(len(str(text).encode()) for text in np.ma.getdata(array)) if array.dtype.kind == "O" else 0
    return array.nbytes + texts


_SHARD = re.compile(r"shard-\d{5,}")
_SECTOR = 512
"""What st_blocks counts, whatever the file system's own blocks are."""


def disk_use(memory: Path, shard: str | None = None) -> int:
    """Bytes that a memory's files and folders take: of all; or of one `shard` by the name of its folder, whose first
    one counts weights, query sets and whatever else is not a shard's.
    """
    total = 0
    for folder, folders, files in os.walk(memory):
        for name in (*folders, *(own for own in files if not is_derived(own))):
            path = Path(folder, name)
            whose = next(filter(_SHARD.fullmatch, path.relative_to(memory).parts), shard_folder(0))
            if shard in (None, whose):
                with suppress(FileNotFoundError):  # what was temporary went meanwhile
                    total += _taken(path.lstat())
    return total


def _taken(state: os.stat_result) -> int:
    """What a file system that compresses takes less may have to be taken once it is copied."""
    return max(state.st_size, getattr(state, "st_blocks", 0) * _SECTOR)


@dataclass(frozen=True)
class BudgetPlan:
    """What a recorder was asked to keep to."""

    rule: Sampling
    steps: int | None
    """How many are planned, of all runs."""
    memory: Path
    """The folder that the budget is of, which a further run's own lies in."""
    rank: int = 0
    ranks: int = 1
    """Processes that share the budget, each with as much."""

    @classmethod
    def of(
        cls, budget: int | str, keep: Keep, steps: int | None, seed: int, memory: Path, ranks: TrainingShard | None
    ) -> BudgetPlan:
        """Of a recorder's arguments; of processes that say how many they are, each gets an equal part. Raises BadInput
        for what they cannot be.
        """
        if keep not in KEEPS:
            raise BadInput(f"Unknown keep {keep!r}.", hint=f"Choose {' or '.join(map(repr, KEEPS))}.", field="keep")
        if not (is_whole(seed) and -(2**63) <= seed < 2**64):
            raise BadInput(
                f"seed must be a whole number of 64 bits, not {seed!r}.",
                hint="Pass -2**63 to 2**64 - 1, for example seed=0.",
                field="seed",
            )
        count = int(getattr(ranks, "count", 1))
        rule = Sampling(keep, int(seed), bytes_of(budget) // count)
        return cls(rule, whole_steps(steps), memory, ranks.number if ranks else 0, count)

    def check(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Raises BadInput where the budget does not hold what every memory of a model has, and what the optimizers kept
        before; of a further run, beside what the earlier ones take.
        """
        weights = _bytes_of_tensors([*model.parameters(), *model.buffers()])
        kept = [own for optimizer in optimizers for state in optimizer.state.values() for own in state.values()]
        need = held_back(self.rule.budget) + TABLES_BYTES + self.taken()
        need += (2 * weights + _bytes_of_tensors(kept)) * (self.rank == 0)
        if self.rule.budget < need:
            whose = f", {readable(self.rule.budget)} for each of {self.ranks} ranks," if self.ranks > 1 else ""
            raise BadInput(
                f"budget={readable(self.rule.budget * self.ranks)}{whose} is too small: weights, optimizer state, "
                f"tables and earlier runs take {readable(need)} before the first slot.",
                hint=f'Pass at least budget="{readable(2 * need * self.ranks)}".',
                field="budget",
            )

    def taken(self) -> int:
        """Bytes that all files of this process's part take by now."""
        return disk_use(self.memory, shard_folder(self.rank) if self.ranks > 1 else None)

    def __str__(self) -> str:
        what = "samples" if self.rule.keep == "samples" else "whole steps"
        whose = f", {readable(self.rule.budget)} for each of {self.ranks} ranks" if self.ranks > 1 else ""
        planned = f" in {self.steps:,} steps" if self.steps else ""
        return (
            f"at most {readable(self.rule.budget * self.ranks)} on disk{whose}{planned}. If that is too little, a "
            f"share of the {what} is kept; outputs and weights need all of them"
        )


def whole_steps(steps: int | None) -> int | None:
    """How many are planned, as an int. Raises BadInput for what is no such number."""
    if steps is not None and not (is_whole(steps) and steps >= 1):
        raise BadInput(
            f"steps must be a whole number of at least 1, or None, not {steps!r}.",
            hint="Pass the number of planned steps, for example steps=10_000.",
            field="steps",
        )
    return None if steps is None else int(steps)


def is_whole(number: object) -> TypeGuard[int]:
    return isinstance(number, Integral) and not isinstance(number, bool)


def _bytes_of_tensors(tensors: Iterable[Any]) -> int:
    return sum(own.numel() * own.element_size() for own in tensors if isinstance(own, Tensor))


Stays: TypeAlias = NDArray[np.bool_]
UNKNOWN_ROW = -1


def with_share(batch: Batch, share: float) -> Batch:
    """The batch, its samples with the probability that they were kept with."""
    count = len(next(iter(batch.samples.values())))
    unknown = None if batch.unknown is None else {**batch.unknown, SHARE: share}
    return replace(batch, samples={**batch.samples, SHARE: np.full(count, share)}, unknown=unknown)


def sampled(batch: Batch, spaces: Mapping[str, str], rule: Sampling, share: float, step: int, rank: int) -> Batch:
    """The slots whose lots lie under a share, 0.0 for none. `spaces`: that of each layer; `step`: of all runs."""
    rows = np.arange(len(next(iter(batch.samples.values()))))
    drawn = rule.lots(step, np.append(rows + rank * ROWS_OF_A_RANK, UNKNOWN_ROW)) < share
    stays, unknown = drawn[:-1], bool(drawn[-1])
    chosen = {(extent.space, extent.call): _slots_of(extent, stays, unknown) for extent in batch.extents}
    shares: dict[str, SpaceShare] = {}
    for extent in batch.extents:
        before = shares.get(extent.space, SpaceShare(extent.space, share, 0, 0))
        kept = int(chosen[extent.space, extent.call].sum())
        shares[extent.space] = replace(before, slots=before.slots + extent.slots, kept=before.kept + kept)
    return replace(
        batch,
        samples={name: column[stays] for name, column in batch.samples.items()},
        extents=[_extent(extent, chosen[extent.space, extent.call], stays) for extent in batch.extents],
        layers={
            name: [_rows(part, chosen[spaces[name], part.call]) for part in parts]
            for name, parts in batch.layers.items()
        },
        unknown=batch.unknown if unknown else None,
        shares=list(shares.values()),
    )


def _slots_of(extent: Extent, stays: Stays, unknown: bool) -> Stays:
    """bool[n]: which of an extent's slots stay."""
    if extent.row is None:
        return np.repeat(stays[: extent.rows], 1 if extent.length is None else extent.length)
    return np.append(stays, unknown)[extent.row]  # row -1 is the last


def _extent(extent: Extent, chosen: Stays, stays: Stays) -> Extent:
    row = None if extent.row is None else extent.row[chosen]
    if row is not None:
        numbers = np.append(np.cumsum(stays) - stays, UNKNOWN_ROW).astype(np.int32)
        row = numbers[row]
    return replace(
        extent,
        rows=int(stays[: extent.rows].sum()),
        row=row,
        position=None if extent.position is None else extent.position[chosen],
        columns={name: column[chosen] for name, column in extent.columns.items()},
    )


def _rows(part: LayerRows, chosen: Stays) -> LayerRows:
    values = None if part.values is None else part.values[chosen]
    return replace(part, keys=_keys(part.keys, chosen), values=values)


def _keys(keys: Array, chosen: Stays) -> Array:
    """A stored key stands for as many slots as any other, those that follow one another."""
    found: Array = keys[chosen if len(keys) == len(chosen) else chosen.reshape(len(keys), -1)[:, 0]]
    return found


def check_keys(batch: Batch, spaces: Mapping[str, str]) -> None:
    """Raises BadInput where one stored key stands for slots of several samples. `spaces`: that of each layer."""
    extents = {(extent.space, extent.call): extent for extent in batch.extents}
    for layer, parts in batch.layers.items():
        for part in parts:
            extent = extents[spaces[layer], part.call]
            if len(part.keys) != extent.slots and not _of_single_rows(len(part.keys), extent):
                raise BadInput(
                    f"layer {layer!r} stores one key for several samples, so single samples cannot be kept.",
                    hint='Keep whole steps: Recorder(…, keep="steps").',
                    field="keep",
                )


def _of_single_rows(keys: int, extent: Extent) -> bool:
    """Whether each of so many stored keys, which stand for an extent's slots in their order, is of one row alone."""
    if extent.row is None:
        return extent.rows == 0 or keys % extent.rows == 0
    rows = extent.row.reshape(keys, -1) if keys else extent.row[None]
    return bool((rows == rows[:, :1]).all())


_FILE = 8192
"""What a file takes beside its numbers at most: its header, the rest of its last block, and what the manifest says."""


class Sampler:
    """Used on the training's own thread."""

    def __init__(
        self,
        plan: BudgetPlan,
        flush: Callable[[], None],
        weights: int,
        first_step: int = 0,
        share: float = 1.0,
        others: int = 0,
    ) -> None:
        """The sink is there. `flush`: makes everything durable that it got; `weights`: bytes of the network's; the
        run's `first_step` among those of the training, and the `share` that it begins with; `others`: bytes that
        parameters of no layer take a step, on average.
        """
        self._plan, self._first_step = plan, first_step

        def measure() -> int:
            flush()
            return plan.taken()

        ending = weights * (plan.rank == 0)
        steps = None if plan.steps is None else plan.steps - first_step
        self._budget = Budget(plan.rule.budget, measure, ending, steps, share, others)
        self._begun = False

    @property
    def used_up(self) -> bool:
        """Whether there is no room for another step, even without its slots. Raises what went wrong with writing."""
        return self._budget.used_up

    @property
    def keeps_others(self) -> bool:
        """Whether parameters of no layer are kept step by step."""
        return self._budget.keeps_others

    def flush(self) -> None:
        """Everything so far becomes durable, and what it takes is measured."""
        self._budget.measure()

    def sample(self, batch: Batch, layers: Iterable[Layer]) -> Batch:
        """What the sink gets of a batch; it is charged. Raises BadInput as `sampled` and `with_share` do."""
        layers = list(layers)
        spaces = {layer.name: layer.space for layer in layers}
        if self._plan.rule.keep == "samples":
            check_keys(batch, spaces)
        share = self._budget.share_of(bytes_of_slots(batch), bytes_of_logs(batch))
        if not self._begun and (end := self._budget.ends_at) is not None:
            warnings.warn(
                f"a budget of {readable(self._plan.rule.budget)} is too small for the logs of "
                f"{self._plan.steps:,} steps: recording ends after about {self._first_step + end:,} of them.",
                RuntimeWarning,
                stacklevel=2,
            )
        self._begun = True
        found, has_room = self._admitted(self._sampled(batch, spaces, share))
        if not has_room:
            found = self._sampled(replace(batch, others=[]), spaces, 0.0)
        return self._charged(found)

    def _sampled(self, batch: Batch, spaces: Mapping[str, str], share: float) -> Batch:
        if share < 1:
            step = self._first_step + batch.step
            batch = sampled(batch, spaces, self._plan.rule, share, step, self._plan.rank)
        return with_share(batch, share)

    def logs(self, batch: Batch) -> Batch:
        """As `sample`, of a batch that has no slots."""
        found, _ = self._admitted(batch)
        return self._charged(with_share(found, self._budget.share))

    def _admitted(self, batch: Batch) -> tuple[Batch, bool]:
        """The batch with its parameters of no layer, or without them; and whether there is room for the rest of it."""
        slots, others = self._budget.admits(bytes_of_slots(batch) + bytes_of_logs(batch), bytes_of_others(batch))
        return (batch if others else replace(batch, others=[])), slots

    def _charged(self, batch: Batch) -> Batch:
        self._budget.charge(bytes_of_batch(batch), bytes_of_others(batch).rows)
        return batch

    @property
    def room(self) -> int:
        """Bytes that are left beside what is logged of another step."""
        return max(0, int(self._budget.spare))

    def charge_query_set(self, query_set: QuerySetArrays) -> None:
        """Raises BadInput, and charges nothing, where a query set does not fit, or would leave no room for another
        step.
        """
        layers = dict.fromkeys(
            [*query_set.queries, *(() if query_set.gradients is None else query_set.gradients.layers)]
        )
        arrays = [*query_set.arrays.values(), *(own for layer in layers for own in query_set.arrays_of(layer).values())]
        size = sum(own.nbytes for own in arrays) + _FILE * len(arrays)
        self._budget.measure()
        if size > self._budget.spare:
            room = readable(max(0, self._budget.spare))
            raise BadInput(
                f"query set {query_set.name!r} takes {readable(size)}, but only {room} of the budget is left.",
                hint="Pass fewer examples, or record with a larger budget=.",
                field="name",
            )
        self._budget.charge(Bytes(files=size))

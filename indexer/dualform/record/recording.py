"""A recording: what begins at the first step of a training and ends with it.

It owns the sink, the slot spaces, the columns, and what is known of the optimizer's updates.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from dualform.errors import RecordingError
from dualform.record.all_updates import AllUpdates
from dualform.record.batches import Batches
from dualform.record.halved_parameters import halved_parameters
from dualform.record.known_columns import KnownColumns
from dualform.record.metadata import StepColumns
from dualform.record.placement import Placement
from dualform.record.plan import Plan
from dualform.record.progress import Progress
from dualform.record.recorded_layers import RecordedLayers
from dualform.record.sharded_parameters import held
from dualform.record.slots import SlotMaker, Slots
from dualform.record.spaces import Spaces
from dualform.record.start import Start
from dualform.record.state import mark_of
from dualform.record.step_defects import StepDefects
from dualform.record.step_record import StepRecord
from dualform.record.stray_updates import StrayUpdates
from dualform.record.taps import Tap
from dualform.record.training import Training
from dualform.record.training_shard import UPDATES
from dualform.store.mark import Mark
from dualform.store.query_sets import QuerySetArrays


class Recording:
    """One training's memory in the making. It is begun once its first step is over; until then it can be let go."""

    def __init__(self, plan: Plan, initial: Mapping[str, NDArray[Any]] | None = None) -> None:
        """The network as it stands is W_0, unless `initial` is its state dict. Raises RecordingError where a training
        cannot be resumed with it.
        """
        self._plan = plan
        if initial is None:  # else the first step goes on, and its keys have been seen
            for tap in plan.taps:
                tap.key_form.begin()
        # Ranks add gradients up in half precision, in an order that nobody knows.
        halved = halved_parameters(plan.owners, plan.taps) if plan.ranks is None else {}
        self._start = Start(plan.model, plan.owners, plan.taps, halved, initial, plan.ranks if plan.sharded else None)
        measured = self._measured_before()
        self._spaces = Spaces(plan.taps, plan.spaces, plan.routed)
        self._columns = StepColumns(self._spaces, KnownColumns.of(plan))
        self._slot_maker = SlotMaker(plan.taps, self._spaces, self._columns)
        placement = Placement(self._spaces, self._columns)
        training = Training(plan.model, self._start.initial, self._start.buffers, halved, plan.ranks, placement)
        self._updates = AllUpdates(plan.owners, plan.taps, training, measured)
        self._valued = {tap.name for tap in plan.taps if tap.values}
        self._slots: Slots | None = None
        """Of the step that runs, once they are made."""
        self._progress = Progress()
        self.batches = Batches(plan, self._start, self._progress, self._columns, self._updates, self._valued)
        self._layers = RecordedLayers(plan, self._spaces)
        self._updates.join([tap for tap in plan.taps if tap.name in self._layers.names])
        self.defects = StepDefects(plan, self._progress, self._spaces, self._updates, self._layers)
        self.stray_updates = StrayUpdates(plan.owners, self._progress, self._updates, self.defects)
        self._midway = False
        """Whether a step that is not over has moved the weights."""
        self._unrecorded: dict[int, list[str]] = {}
        """By optimizer whose update may still come, layers of the last step, where it was not recorded."""

    def _measured_before(self) -> tuple[int, ...]:
        """By optimizer, how many updates were measured before the training was resumed; none where it was not."""
        if self._plan.resumed is None:
            return ()
        return self._plan.resumed.find(self._start.initial, self._start.buffers).updates

    def _mark(self) -> Mark | None:
        """How the training stands: it may be resumed here. Of several processes the first one says it, where it holds
        the whole model.
        """
        plan = self._plan
        if self._midway or plan.sharded or (plan.ranks is not None and plan.ranks.number):
            return None
        return mark_of(self._plan.model, self._start.buffers_now(), self.steps, self._updates.measured)

    @property
    def initial(self) -> Mapping[str, NDArray[Any]]:
        """W_0: every tensor of the state dict."""
        return self._start.initial

    @property
    def steps(self) -> int:
        """Steps recorded so far."""
        return self._progress.steps

    @property
    def begun(self) -> bool:
        return self._progress.begun

    def axis_of(self, tap: Tap) -> int:
        """Which axis of a layer's keys is the batch."""
        return self._spaces.axis_of(tap.name)

    def add_query_set(self, query_set: QuerySetArrays) -> None:
        """Store a query set's queries of the layers that are recorded. Raises BadInput for a name that is taken."""
        recorded = self._layers.names
        queries = {name: rows for name, rows in query_set.queries.items() if name in recorded}
        self.batches.add_query_set(replace(query_set, queries=queries, steps=self.steps + self._midway))

    def batch_dims(self) -> dict[str, int]:
        """By recorded layer with values, which axis of its keys is the batch."""
        return {layer.name: self._spaces.axis_of(layer.name) for layer in self._layers.told if layer.values}

    def updating(self, number: int, record: StepRecord | None) -> None:
        """The gradients of an optimizer are what they will be, and the weights have not moved yet; `record`: the step
        that runs.
        """
        if record is not None:
            self.defects.compiled(record)
        if record is not None and not record.empty:
            self._update_inside(number, record)
            return
        if record is not None:
            self.defects.unseen(record)
        unrecorded, awaited = self._unrecorded.get(number, []), self._updates.awaited(number)
        if record is not None and not (unrecorded or awaited) and self._updates.moves(number):
            if self.begun:
                self._update_inside(number, record)  # momentum and decay need no gradient: a step without slots
                return
            if self._plan.resumed is not None:  # else the weights as of the next step are W_0
                raise RecordingError(
                    "The first step of the resumed training moves the weights without a gradient.",
                    hint="Resume with a batch that has at least one row.",
                )
        self._agree(number, UPDATES[1] if unrecorded or awaited else UPDATES[2])
        if unrecorded:
            self.stray_updates.unrecorded(number, unrecorded)
        elif awaited:
            self._updates.update_awaited(number)
        elif self.steps:
            self._updates.stray(number, self.steps - 1)

    def _agree(self, number: int, update: str) -> bool:
        """Whether every rank has slots of the step that this optimizer of its is about to make an update of."""
        recorded = self._slots is not None
        if self._plan.ranks is None:
            return recorded
        agreed = self._plan.ranks.agree(update, self.steps, recorded, *([number] if number else []))
        self._updates.tell_parted(self.steps if recorded else self._progress.last)
        return agreed

    def tell_parted(self) -> None:
        """The ranks do not measure together any more."""
        self._updates.tell_parted(self._progress.last)

    def updated(self, number: int) -> None:
        """An optimizer has written its weights."""
        self._updates.updated(number)

    def look(self) -> None:
        """A step begins: look at weights that were written since the last one, and at what no slot explains."""
        if self.begun:
            self._updates.look(self.steps - 1)
            self.batches.look()

    def _update_inside(self, number: int, record: StepRecord) -> None:
        if number in record.updated:
            self._agree(number, UPDATES[2])
            self.stray_updates.again(number, record)
            return
        self._layers.note_bypassed(record)
        if not record.settled:
            self._settle(record)
        if number in record.missed:
            self.stray_updates.missed(number, record)
        if not self._agree(number, UPDATES[0]):
            self.forget(record)
        self._updates.close_step()
        if self._slots is None:
            self.stray_updates.unrecorded(number, record.layers)
        else:
            self._updates.update(number, record.step, record.dtypes)
        record.updated.add(number)
        self._midway = True

    def _settle(self, record: StepRecord) -> None:
        """Make the step's slots; none where there is NaN or infinity among them. Raises RecordingError and BadInput."""
        record.settled = True
        passes = record.passes
        if len(passes) > 1 and self._valued:
            record.keep(self._updates.first_pass(passes))
        self.defects.misfits(record)
        self.defects.disordered(record)
        slots = self._slot_maker.slots_of(record, first=not self.begun)
        if taps := self._layers.admit(record, slots):
            self._updates.join(taps)
        self.defects.unseen(record)
        if len(passes) > 1 and not self._valued:
            self.defects.passes(record, passes)
        rows = [
            (part.layer, part.keys, part.errors if part.layer in self._valued else None, part.product)
            for part in slots.rows
        ]
        fresh = dict.fromkeys(self._plan.owners.numbers, True) if record.empty else record.fresh
        finite = self._updates.add(record.step, rows, fresh) and slots.surely_finite(self._valued)
        if not finite and not slots.finite():
            self.forget(record)
            return
        self._slots = slots
        self.defects.parted(record, slots)

    def finish(self, record: StepRecord) -> None:
        """The step is over. Raises RecordingError and BadInput."""
        self.defects.compiled(record)
        if record.empty:
            self.defects.unseen(record)
        self._layers.note_bypassed(record)
        self._layers.missed({layer: why for layer, why in record.reached.items() if layer not in record.layers})
        if record.empty and not self.begun:
            if not record.reached and self._has_gradients():  # else the batch was left out
                raise RecordingError(
                    "No gradient reached a recorded layer inside the first step.",
                    hint="Run forward and backward inside `with recorder.step(...)`, through the model passed to "
                    "Recorder. Enter the recorder before the first call of a compiled model.",
                )
            return
        if not record.settled:
            self._settle(record)
        slots, self._slots = self._slots, None
        self._unrecorded = {}
        if slots is None:
            self._unrecorded = dict.fromkeys(self._plan.owners.numbers - record.updated, record.layers)
        if slots is not None:
            self._put(record, slots)
        elif not record.updated:
            self._updates.close_step()
        self._midway = False

    def _has_gradients(self) -> bool:
        """Whether there are gradients of a layer that may be recorded."""
        grads = (tensor.grad for tap in self._plan.taps for tensor in tap.trained)
        return any(own is not None and bool(held(own).any()) for own in grads)

    def _put(self, record: StepRecord, slots: Slots) -> None:
        joined = self._layers.tell()
        if not self.begun:
            joined = []  # the header has them
            self._begin(slots)
        self._progress.steps += 1
        if not record.updated:
            self._updates.close_step()
        self._updates.await_update(self._plan.owners.numbers - record.updated, record.step, record.dtypes)
        self._updates.look(record.step)
        self.batches.put(record.step, slots, self._layers.told, joined, record.random_states)

    def _begin(self, slots: Slots) -> None:
        """The first step is over, which has these slots."""
        plan = self._plan
        for reason in self._start.why_no_rule if plan.keys and self._valued else ():
            warnings.warn(f"{reason}.", RuntimeWarning, stacklevel=2)
        first = not (plan.ranks and plan.ranks.number)
        with plan.resumed.beginning() if plan.resumed is not None and first else nullcontext():
            self.batches.begin(slots, self._layers.told)
            self._progress.begun = True

    @property
    def unreached(self) -> dict[str, str]:
        """Layers that have no slots yet, with the reason."""
        return self._layers.unreached

    def forget(self, record: StepRecord) -> None:
        """A step comes to nothing."""
        why = "every step that reached it failed, or held NaN or infinity"
        self._layers.missed(dict.fromkeys(record.layers, why))
        self._slots = None
        self._updates.forget(record.step)

    def flush(self) -> None:
        """Returns once every finished step is on disk. Raises what went wrong with writing."""
        self._updates.finish(self.steps - 1)
        self.batches.look()
        self.batches.put_logs(self._mark())
        self.batches.flush()

    def close(self, finished: bool) -> None:
        """End the memory; `finished`: the training came to its end. Raises what went wrong with writing."""
        mark = None
        try:
            if not self._midway:
                self._updates.close_step()
                self._updates.finish(self.steps - 1, together=finished)
            self._layers.list_skipped()
            mark = self._mark()
        finally:
            self.batches.close(finished, mark, midway=self._midway)

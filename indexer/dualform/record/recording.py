"""A recording: what begins at the first step of a training and ends with it, and what of a step becomes a defect.

It owns the sink, the slot spaces, the columns, and what is known of the optimizer's updates.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray

from dualform.errors import RecordingError
from dualform.record.audit.updates import AllUpdates, Training
from dualform.record.batches import Batches
from dualform.record.ranks import UPDATES, held
from dualform.record.setup.optimizers import Owners, halved_parameters
from dualform.record.setup.plan import Plan, Progress, Start, layer_of, layers_again, mark_of
from dualform.record.slots.agreement import Agreement
from dualform.record.slots.columns import KnownColumns, StepColumns
from dualform.record.slots.slots import SlotMaker, Slots
from dualform.record.slots.spaces import Spaces, lost_call
from dualform.record.slots.step_record import Pass, StepRecord
from dualform.record.taps import Tap
from dualform.store.batch import Mark
from dualform.store.layer import Layer
from dualform.store.query_sets import QuerySetArrays

_BYPASSED = (
    "its module was not called, but its weight got a gradient, as from module.forward(x) or F.linear(x, module.weight)"
)


class RecordedLayers:
    """Those of one recording."""

    def __init__(self, plan: Plan, spaces: Spaces) -> None:
        """Raises RecordingError where a training cannot be resumed with these layers."""
        self._plan, self._spaces = plan, spaces
        self.told: list[Layer] = [] if plan.resumed is None else layers_again(plan.resumed.layers, plan)
        """Those that the sink knows of, or will with the first batch."""
        self._new: list[Layer] = []
        """Layers that have slots and that the sink does not know of yet."""
        self._why: dict[str, str] = {}
        """Layer -> why it had no slots when it was last called."""

    @property
    def names(self) -> set[str]:
        return {layer.name for layer in self.told}

    def missed(self, why: Mapping[str, str]) -> None:
        """By layer, why it gets no slots of this step."""
        self._why |= why

    def note_bypassed(self, record: StepRecord) -> None:
        """Layers without slots that train although their modules were not called in a step."""
        if len(self.told) == len(self._plan.taps):
            return
        seen = {*self.names, *record.layers, *record.reached}
        for tap in self._plan.taps:
            if tap.name in seen or self._why.get(tap.name) == _BYPASSED:
                continue
            if any(own.grad is not None and bool(held(own.grad).any()) for own in tap.trained):
                self._why[tap.name] = _BYPASSED

    def admit(self, record: StepRecord, slots: Slots) -> Sequence[Tap]:
        """Take in the layers that have slots for the first time; returns their taps."""
        known = {layer.name for layer in (*self.told, *self._new)}
        reached = {part.layer for part in slots.rows} - known
        taps = [tap for tap in self._plan.taps if tap.name in reached]
        self._new += [self._layer_of(tap, record) for tap in taps]
        return taps

    def _layer_of(self, tap: Tap, record: StepRecord) -> Layer:
        space, axis = self._spaces.layers[tap.name], self._spaces.axis_of(tap.name)
        layer = layer_of(tap, space, axis, tap.name in record.raw, self._plan.keys, record.dtypes[tap.name])
        return layer if self._plan.budget is None else replace(layer, sampled=True)

    def tell(self) -> list[Layer]:
        """The new ones, of which the sink is told now."""
        joined, self._new = self._new, []
        self.told = [*self.told, *joined]
        self.list_skipped()
        return joined

    @property
    def unreached(self) -> dict[str, str]:
        """Layers that have no slots yet, with the reason."""
        never, recorded = "it was not called in a recorded step", self.names
        return {tap.name: self._why.get(tap.name, never) for tap in self._plan.taps if tap.name not in recorded}

    def list_skipped(self) -> None:
        """Have the plan list the layers that have no slots yet."""
        for name in self.names:
            self._plan.skipped.pop(name, None)
        self._plan.skipped.update(self.unreached)


class StepDefects:
    """Of one recording."""

    def __init__(
        self, plan: Plan, progress: Progress, spaces: Spaces, updates: AllUpdates, layers: RecordedLayers
    ) -> None:
        self._plan, self._progress, self._spaces = plan, progress, spaces
        self._updates, self._layers = updates, layers

    def note(self, step: int, layer: str, kind: str, reason: str) -> bool:
        """Why a layer's record does not tell its whole story from a step on; False where the layer has no slots."""
        recorded = layer in self._spaces.layers
        if recorded:
            self._updates.defect(step, layer, kind, reason)
        return recorded

    def note_or_miss(self, step: int, layer: str, kind: str, reason: str) -> None:
        """As `note`; where the layer has no slots, that is why."""
        if not self.note(step, layer, kind, reason):
            self._layers.missed({layer: reason})

    def late(self, tap: Tap) -> None:
        """A gradient of an earlier step's forward pass arrived."""
        what = f"the gradient of layer {tap.name!r} arrived outside the step that its forward pass ran in"
        if not self._progress.begun:
            raise RecordingError(
                f"{what}.", hint="Put forward and backward of a batch into one `with recorder.step(...)`."
            )
        last = self._progress.last
        self.note(last, tap.name, "late", f"{what}, after step {last}")

    def refused(self, tap: Tap, error: RecordingError) -> None:
        """A call of a layer has no keys. Raises the error at the first step."""
        if not self._progress.begun:
            raise error
        self.note(self._progress.steps, tap.name, "refused", error.message.rstrip("."))

    def misfits(self, record: StepRecord) -> None:
        """Calls of layers that are no rows of theirs. Raises RecordingError at the first step, beside such as are."""
        for layer, what in record.misfits.items():
            reason = f"layer {layer!r} {what}"
            if not self._progress.begun and layer in record.layers:
                raise RecordingError(
                    f"{reason}.", hint="Give its calls the same shapes, or leave the layer out with layers=."
                )
            if layer in self._spaces.layers:
                self._spaces.warn_once(f"layer {layer}", lost_call(layer, reason))
            self.note_or_miss(record.step, layer, "parted", what)

    def compiled(self, record: StepRecord) -> None:
        """Raises RecordingError where a compiled part trains in the first step, and nothing of it is seen."""
        for part in () if self._progress.begun else self._plan.compiled:
            within = [tap for tap in self._plan.taps if not part or f"{tap.name}.".startswith(f"{part}.")]
            seen = {*record.layers, *record.reached}
            grads = (tensor.grad for tap in within for tensor in tap.trained)
            arrived = any(own is not None and held(own).any() for own in grads)
            if arrived and not any(tap.name in seen for tap in within):
                raise RecordingError(
                    f"{f'Part {part!r} of the model' if part else 'The model'} was compiled by torch.compile before "
                    "recording began, so its layers cannot be recorded.",
                    hint="Enter the recorder before the first compiled call, or call torch._dynamo.reset() once it is "
                    "entered.",
                )

    def disordered(self, record: StepRecord) -> None:
        """Layers whose calls are all there, under numbers that may be those of other calls."""
        for layer in record.disordered:
            self._spaces.warn_once(
                f"order of layer {layer}",
                f"the calls of layer {layer!r} at step {record.step} ran again in nested checkpoints, so their "
                "order is unknown and the column `call` counts in "
                "the order of the second runs, also in later steps. Use checkpoint(…, "
                "use_reentrant=False).",
            )

    def passes(self, record: StepRecord, passes: Sequence[Pass]) -> None:
        """Without error signals nothing tells whose gradients an update used."""
        if any(all(each.fresh.values()) for each in passes[1:]):
            what = (
                f"{len(passes)} backward passes ran in step {record.step}, with gradients cleared in between: slots of "
                "all of them are there, used or not"
            )
            for layer in self._spaces.layers:
                self._updates.defect(record.step, layer, "passes", what)

    def unseen(self, record: StepRecord) -> None:
        """Calls of layers that could not be recorded: whether they matter, the gradient shows."""
        for layer, what in record.unseen.items():
            self.note(record.step, layer, "unseen", what)

    def parted(self, record: StepRecord, slots: Slots) -> None:
        """Layers whose calls have no place among the slots of their space."""
        for layer, reason in slots.parted.items():
            self.note_or_miss(record.step, layer, "parted", reason)


class StrayUpdates:
    """Of one recording: told of the first step, they end it; later ones are defects of the layers they move."""

    def __init__(self, owners: Owners, progress: Progress, updates: AllUpdates, defects: StepDefects) -> None:
        self._owners, self._progress, self._updates, self._defects = owners, progress, updates, defects

    def again(self, number: int, record: StepRecord) -> None:
        """An optimizer updated once more in one step. Raises RecordingError at the first step."""
        what = f"{self._owners.named(number)} stepped twice inside step {record.step}"
        if not self._progress.begun:
            raise RecordingError(f"{what}.", hint="Open one `with recorder.step(...)` for each update.")
        self._stray(number, record.step, "stray", what)

    def evaluated_again(self, number: int, record: StepRecord | None) -> None:
        """An optimizer evaluated its closure once more in one update; `record`: the step that runs.

        Raises RecordingError at the first step.
        """
        step = self._progress.steps if record is not None else self._progress.steps - 1
        kind = type(self._owners.optimizers[number]).__name__
        what = f"{kind} evaluated its closure more than once in the update of step {max(step, 0)}"
        if self._progress.begun:
            self._stray(number, step, "closure", what)
        elif record is not None and not record.empty:
            record.updated.clear()
            raise RecordingError(
                f"{what}, so no one set of slots explains the change of the weights.",
                hint="Use an optimizer that takes one gradient for each update, or record only scores: values=False.",
            )

    def missed(self, number: int, record: StepRecord) -> None:
        """Gradients came to an optimizer after another one's update of the same step: by a pass of its own, or by the
        rest of a pass in which optimizers step.
        """
        what = (
            f"a backward pass that ran after another optimizer's update inside step {record.step} brought gradients to "
            f"{self._owners.named(number)}"
        )
        hint = "Put each forward and backward pass into its own `with recorder.step(...)`."
        if torch._C._current_graph_task_id() >= 0:
            what = (
                f"optimizers stepped inside the backward pass of step {record.step}, before the gradients of "
                f"{self._owners.named(number)} came"
            )
            hint = "Step the optimizers after loss.backward() has returned, not in hooks of their parameters."
        if not self._progress.begun:
            record.updated.clear()
            raise RecordingError(f"{what}, but slots of a step are made at its first update.", hint=hint)
        for layer in self._updates.layers_of(number):
            self._defects.note_or_miss(record.step, layer, "missed", what)

    def unrecorded(self, number: int, layers: Sequence[str]) -> None:
        """The optimizer goes on with NaN or infinity in `layers`, as it would without a recorder."""
        if not self._progress.begun:
            return  # the weights as of the next step are W_0
        before = self._progress.last
        reason = (
            f"after step {before} the optimizer updated with NaN or infinity in a key or error signal, in a step that "
            "was not recorded"
        )
        for layer in self._updates.layers_of(number):
            if layer in layers:
                self._defects.note(before, layer, "stray", reason)
        self._updates.stray(number, before)

    def _stray(self, number: int, step: int, kind: str, what: str) -> None:
        """An optimizer moved its weights by what no slots explain: a defect of its layers that have any."""
        for layer in self._updates.layers_of(number):
            self._defects.note(step, layer, kind, what)
        self._updates.stray(number, step)


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
        agreement = Agreement(self._spaces, self._columns)
        training = Training(plan.model, self._start.initial, self._start.buffers, halved, plan.ranks, agreement)
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

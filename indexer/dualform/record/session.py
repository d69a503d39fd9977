"""A recording session: what begins with the first step of a training and ends with it.

It owns the slot spaces, the columns, the writer and what is known of the optimizers' updates. It is begun once its
first step is over; until then it can be let go, and what cannot be recorded is refused (`Defects`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch

from dualform.errors import RecordingError
from dualform.record.audit.defects import Defects
from dualform.record.audit.updates import AllUpdates, Training
from dualform.record.batches import StepWriter
from dualform.record.ranks import UPDATES, held
from dualform.record.setup.plan import InitialState, Plan, StateDict, layer_of, layers_again
from dualform.record.slots.agreement import Agreement
from dualform.record.slots.columns import KnownColumns, StepColumns
from dualform.record.slots.slots import SlotMaker, Slots
from dualform.record.slots.spaces import Spaces, lost_call
from dualform.record.slots.step_record import StepRecord
from dualform.record.taps import Tap
from dualform.store.batch import Mark
from dualform.store.layer import Layer
from dualform.store.query_sets import QuerySetArrays

_BYPASSED = (
    "its module was not called, but its weight got a gradient, as from module.forward(x) or F.linear(x, module.weight)"
)


class RecordingSession:
    """The memory of one training while it is made."""

    def __init__(self, plan: Plan, initial: StateDict | None = None) -> None:
        """The network as it stands is W_0, unless `initial` is its state dict. Raises RecordingError where a training
        cannot be resumed with it.
        """
        self._plan = plan
        if initial is None:  # else the first step goes on, and its keys have been seen
            for tap in plan.taps:
                tap.key_form.begin()
        self.start = start = InitialState(plan, initial)
        resumed = plan.resumed
        measured = () if resumed is None else resumed.find(start.initial, start.buffers).updates
        self.spaces = Spaces(plan.taps, plan.spaces, plan.routed)
        self._columns = StepColumns(self.spaces, KnownColumns.of(plan))
        self._slot_maker = SlotMaker(plan.taps, self.spaces, self._columns)
        self.defects = Defects()
        agreement = Agreement(self.spaces, self._columns)
        training = Training(
            plan.model, start.initial, start.buffers, start.halved, plan.ranks, agreement, self.defects
        )  # fmt: skip
        self.updates = AllUpdates(plan.owners, plan.taps, training, measured)
        self.writer = StepWriter(plan, start, self.defects, self._columns, self.updates)
        self.layers: list[Layer] = [] if resumed is None else layers_again(resumed.layers, plan)
        """Those that the writer knows of, or will with the first batch."""
        self._joining: list[Layer] = []
        """Layers that have slots and that the writer does not know of yet."""
        self.defects.slotted |= self._names
        self._valued = plan.valued
        self._slots: Slots | None = None
        """Of the step that runs, once they are made."""
        self._midway = False
        """Whether a step that is not over has moved the weights."""
        self._unrecorded: dict[int, list[str]] = {}
        """By optimizer whose update may still come, layers of the last step, where it was not recorded."""

    @property
    def steps(self) -> int:
        """Steps recorded so far."""
        return self.defects.steps

    @property
    def begun(self) -> bool:
        """Whether there is a memory."""
        return self.defects.begun

    @property
    def _names(self) -> set[str]:
        return {layer.name for layer in self.layers}

    @property
    def unreached(self) -> dict[str, str]:
        """Layers that have no slots yet, with the reason."""
        never, recorded, why = "it was not called in a recorded step", self._names, self.defects.missing
        return {tap.name: why.get(tap.name, never) for tap in self._plan.taps if tap.name not in recorded}

    def batch_dims(self) -> dict[str, int]:
        """By recorded layer with values, which axis of its keys is the batch."""
        return {layer.name: self.spaces.axis_of(layer.name) for layer in self.layers if layer.values}

    def add_query_set(self, query_set: QuerySetArrays) -> None:
        """Store a query set's queries of the layers that are recorded. Raises BadInput for a name that is taken."""
        recorded = self._names
        queries = {name: rows for name, rows in query_set.queries.items() if name in recorded}
        self.writer.add_query_set(replace(query_set, queries=queries, steps=self.steps + self._midway))

    def look(self) -> None:
        """A step begins: look at weights that were written since the last one, and at what no slot explains."""
        if self.begun:
            self.updates.look(self.steps - 1)
            self.writer.look()

    # What happens in a step.

    def late(self, tap: Tap) -> None:
        """A gradient of an earlier step's forward pass arrived."""
        what = f"the gradient of layer {tap.name!r} arrived outside the step that its forward pass ran in"
        hint = "Put forward and backward of a batch into one `with recorder.step(...)`."
        last = self.defects.last
        self.defects.refuse(what, hint)
        self.defects.note(last, [tap.name], "late", f"{what}, after step {last}")

    def refused(self, tap: Tap, error: RecordingError) -> None:
        """A call of a layer has no keys. Raises the error at the first step."""
        if not self.begun:
            raise error
        self.defects.note(self.steps, [tap.name], "refused", error.message.rstrip("."))

    def evaluated_again(self, number: int, record: StepRecord | None) -> None:
        """An optimizer evaluated its closure once more in one update; `record`: the step that runs.

        Raises RecordingError at the first step.
        """
        step = self.steps if record is not None else self.steps - 1
        kind = type(self._plan.owners.optimizers[number]).__name__
        what = f"{kind} evaluated its closure more than once in the update of step {max(step, 0)}"
        if record is not None and not record.empty and not self.begun:
            record.updated.clear()
        elif not self.begun:
            return
        hint = "Use an optimizer that takes one gradient for each update, or record only scores: values=False."
        self.defects.refuse(f"{what}, so no one set of slots explains the change of the weights", hint)
        self._stray(number, step, "closure", what)

    def tell_parted(self) -> None:
        """The ranks do not measure together any more."""
        self.updates.tell_parted(self.defects.last)

    def updating(self, number: int, record: StepRecord | None) -> None:
        """The gradients of an optimizer are what they will be, and the weights have not moved yet; `record`: the step
        that runs.
        """
        unrecorded, awaited = self._unrecorded.get(number, []), self.updates.awaited(number)
        if record is not None:
            self._refuse_compiled(record)
            if not record.empty:
                self._update_inside(number, record)
                return
            self._note_unseen(record)
            if not (unrecorded or awaited) and self.updates.moves(number):
                if self.begun:  # momentum and decay need no gradient: a step without slots
                    self._update_inside(number, record)
                    return
                if self._plan.resumed is not None:  # else the weights as of the next step are W_0
                    raise RecordingError(
                        "The first step of the resumed training moves the weights without a gradient.",
                        hint="Resume with a batch that has at least one row.",
                    )
        self._agree(number, UPDATES[1] if unrecorded or awaited else UPDATES[2])
        if unrecorded:
            self._update_unrecorded(number, unrecorded)
        elif awaited:
            self.updates.update_awaited(number)
        elif self.steps:
            self.updates.stray(number, self.steps - 1)

    def _update_inside(self, number: int, record: StepRecord) -> None:
        if number in record.updated:
            self._agree(number, UPDATES[2])
            what = f"{self._plan.owners.named(number)} stepped twice inside step {record.step}"
            self.defects.refuse(what, "Open one `with recorder.step(...)` for each update.")
            self._stray(number, record.step, "stray", what)
            return
        self._note_bypassed(record)
        if not record.settled:
            self._settle(record)
        if number in record.missed:
            self._note_missed(number, record)
        if not self._agree(number, UPDATES[0]):
            self.forget(record)
        self.updates.close_step()
        if self._slots is None:
            self._update_unrecorded(number, record.layers)
        else:
            self.updates.update(number, record.step, record.dtypes)
        record.updated.add(number)
        self._midway = True

    def _agree(self, number: int, update: str) -> bool:
        """Whether every rank has slots of the step that this optimizer of its is about to make an update of."""
        recorded = self._slots is not None
        if self._plan.ranks is None:
            return recorded
        agreed = self._plan.ranks.agree(update, self.steps, recorded, *([number] if number else []))
        self.updates.tell_parted(self.steps if recorded else self.defects.last)
        return agreed

    def _update_unrecorded(self, number: int, layers: Sequence[str]) -> None:
        """The optimizer goes on with NaN or infinity in `layers`, as it would without a recorder."""
        if not self.begun:
            return  # the weights as of the next step are W_0
        moved = [layer for layer in self.updates.layers_of(number) if layer in layers]
        reason = (
            f"after step {self.defects.last} the optimizer updated with NaN or infinity in a key or error signal, in a "
            "step that was not recorded"
        )
        self.defects.note(self.defects.last, moved, "stray", reason)
        self.updates.stray(number, self.defects.last)

    def _stray(self, number: int, step: int, kind: str, what: str) -> None:
        """An optimizer moved its weights by what no slots explain: a defect of its layers that have any."""
        self.defects.note(step, self.updates.layers_of(number), kind, what)
        self.updates.stray(number, step)

    def _note_missed(self, number: int, record: StepRecord) -> None:
        """Gradients came to an optimizer after another one's update of the same step: by a pass of its own, or by the
        rest of a pass in which optimizers step.
        """
        optimizer = self._plan.owners.named(number)
        what = (
            f"a backward pass that ran after another optimizer's update inside step {record.step} brought gradients to "
            f"{optimizer}"
        )
        hint = "Put each forward and backward pass into its own `with recorder.step(...)`."
        if torch._C._current_graph_task_id() >= 0:
            what = (
                f"optimizers stepped inside the backward pass of step {record.step}, before the gradients of "
                f"{optimizer} came"
            )
            hint = "Step the optimizers after loss.backward() has returned, not in hooks of their parameters."
        if not self.begun:
            record.updated.clear()
        self.defects.refuse(f"{what}, but slots of a step are made at its first update", hint)
        self.defects.note_or_miss(record.step, dict.fromkeys(self.updates.layers_of(number), what), "missed")

    def _note_unseen(self, record: StepRecord) -> None:
        """Calls of layers that could not be recorded: whether they matter, the gradient shows."""
        for layer, what in record.unseen.items():
            self.defects.note(record.step, [layer], "unseen", what)

    def _note_bypassed(self, record: StepRecord) -> None:
        """Layers without slots that train although their modules were not called in a step."""
        if len(self.layers) == len(self._plan.taps):
            return
        seen, missing = {*self._names, *record.layers, *record.reached}, self.defects.missing
        for tap in self._plan.taps:
            if tap.name not in seen and missing.get(tap.name) != _BYPASSED and _has_gradients([tap]):
                missing[tap.name] = _BYPASSED

    def _refuse_compiled(self, record: StepRecord) -> None:
        """Raises RecordingError where a compiled part trains in the first step, and nothing of it is seen."""
        seen = {*record.layers, *record.reached}
        for part in () if self.begun else self._plan.compiled:
            within = [tap for tap in self._plan.taps if not part or f"{tap.name}.".startswith(f"{part}.")]
            if _has_gradients(within) and seen.isdisjoint(tap.name for tap in within):
                self.defects.refuse(
                    f"{f'Part {part!r} of the model' if part else 'The model'} was compiled by torch.compile before "
                    "recording began, so its layers cannot be recorded",
                    "Enter the recorder before the first compiled call, or call torch._dynamo.reset() once it is "
                    "entered.",
                )

    def _settle(self, record: StepRecord) -> None:
        """Make the step's slots; none where there is NaN or infinity among them. Raises RecordingError and BadInput."""
        record.settled = True
        passes = record.passes
        if len(passes) > 1 and self._valued:
            record.keep(self.updates.first_pass(passes))
        self._note_calls(record)
        slots = self._slot_maker.slots_of(record, first=not self.begun)
        self._admit(record, slots)
        self._note_unseen(record)
        if len(passes) > 1 and not self._valued and any(all(each.fresh.values()) for each in passes[1:]):
            what = (  # without error signals nothing tells whose gradients an update used
                f"{len(passes)} backward passes ran in step {record.step}, with gradients cleared in between: slots of "
                "all of them are there, used or not"
            )
            self.defects.note(record.step, self.defects.slotted, "passes", what)
        rows = [
            (part.layer, part.keys, part.errors if part.layer in self._valued else None, part.product)
            for part in slots.rows
        ]
        fresh = dict.fromkeys(self._plan.owners.numbers, True) if record.empty else record.fresh
        finite = self.updates.add(record.step, rows, fresh) and slots.surely_finite(self._valued)
        if not finite and not slots.finite():
            self.forget(record)
            return
        self._slots = slots
        self.defects.note_or_miss(record.step, slots.parted, "parted")

    def _note_calls(self, record: StepRecord) -> None:
        """Calls of layers that are no rows of theirs, which a first step is refused for beside such as are, and calls
        in an order that may be that of others.
        """
        for layer, what in record.misfits.items():
            reason = f"layer {layer!r} {what}"
            if layer in record.layers:
                self.defects.refuse(reason, "Give its calls the same shapes, or leave the layer out with layers=.")
            if layer in self.spaces.layers:
                self.spaces.warn_once(f"layer {layer}", lost_call(layer, reason))
        self.defects.note_or_miss(record.step, record.misfits, "parted")
        for layer in record.disordered:
            self.spaces.warn_once(
                f"order of layer {layer}",
                f"the calls of layer {layer!r} at step {record.step} ran again in nested checkpoints, so their "
                "order is unknown and the column `call` counts in "
                "the order of the second runs, also in later steps. Use checkpoint(…, "
                "use_reentrant=False).",
            )

    def _admit(self, record: StepRecord, slots: Slots) -> None:
        """Take in the layers that have slots for the first time."""
        plan, known = self._plan, {layer.name for layer in (*self.layers, *self._joining)}
        reached = {part.layer for part in slots.rows} - known
        self.defects.slotted |= reached
        for tap in (tap for tap in plan.taps if tap.name in reached):
            space, axis = self.spaces.layers[tap.name], self.spaces.axis_of(tap.name)
            layer = layer_of(tap, space, axis, tap.name in record.raw, plan.keys, record.dtypes[tap.name])
            self._joining.append(layer if plan.budget is None else replace(layer, sampled=True))

    def finish(self, record: StepRecord) -> None:
        """The step is over. Raises RecordingError and BadInput."""
        self._refuse_compiled(record)
        if record.empty:
            self._note_unseen(record)
        self._note_bypassed(record)
        self.defects.missing |= {layer: why for layer, why in record.reached.items() if layer not in record.layers}
        if record.empty and not self.begun:
            if not record.reached and _has_gradients(self._plan.taps):  # else the batch was left out
                raise RecordingError(
                    "No gradient reached a recorded layer inside the first step.",
                    hint="Run forward and backward inside `with recorder.step(...)`, through the model passed to "
                    "Recorder. Enter the recorder before the first call of a compiled model.",
                )
            return
        if not record.settled:
            self._settle(record)
        slots, self._slots = self._slots, None
        waiting = self._plan.owners.numbers - record.updated
        self._unrecorded = dict.fromkeys(waiting, record.layers) if slots is None else {}
        if slots is not None:
            self._put(record, slots, waiting)
        elif not record.updated:
            self.updates.close_step()
        self._midway = False

    def _put(self, record: StepRecord, slots: Slots, waiting: set[int]) -> None:
        joined, self._joining = self._joining, []
        self.layers = [*self.layers, *joined]
        self.list_skipped()
        if not self.begun:
            joined = []  # the header has them
            self._begin(slots)
        self.defects.steps += 1
        if not record.updated:
            self.updates.close_step()
        self.updates.await_update(waiting, record.step, record.dtypes)
        self.updates.look(record.step)
        self.writer.put(record.step, slots, self.layers, joined, record.random_states)

    def _begin(self, slots: Slots) -> None:
        """The first step is over, which has these slots."""
        plan = self._plan
        for reason in self.start.why_no_rule if plan.keys and self._valued else ():
            warnings.warn(f"{reason}.", RuntimeWarning, stacklevel=2)
        with nullcontext() if plan.resumed is None or plan.number else plan.resumed.beginning():
            self.writer.begin(slots, self.layers)
            self.defects.begun = True

    def forget(self, record: StepRecord) -> None:
        """A step comes to nothing."""
        why = "every step that reached it failed, or held NaN or infinity"
        self.defects.missing |= dict.fromkeys(record.layers, why)
        self._slots = None
        self.updates.forget(record.step)

    # What happens between steps.

    def list_skipped(self) -> None:
        """Have the plan list the layers that have no slots yet."""
        for name in self._names:
            self._plan.skipped.pop(name, None)
        self._plan.skipped.update(self.unreached)

    def _mark(self) -> Mark | None:
        """How the training stands: it may be resumed here. Of several processes the first one says it, where it holds
        the whole model.
        """
        if self._midway or self._plan.sharded or self._plan.number:
            return None
        return self.start.mark(self.steps, self.updates.measured)

    def flush(self) -> None:
        """Returns once every finished step is on disk. Raises what went wrong with writing."""
        self.updates.finish(self.steps - 1)
        self.writer.look()
        self.writer.put_logs(self._mark())
        self.writer.flush()

    def close(self, finished: bool) -> None:
        """End the memory; `finished`: the training came to its end. Raises what went wrong with writing."""
        mark = None
        try:
            if not self._midway:
                self.updates.close_step()
                self.updates.finish(self.steps - 1, together=finished)
            self.list_skipped()
            mark = self._mark()
        finally:
            self.writer.close(finished, mark, midway=self._midway)


def _has_gradients(taps: Sequence[Tap]) -> bool:
    """Whether there are gradients of a layer that may be recorded."""
    grads = (tensor.grad for tap in taps for tensor in tap.trained)
    return any(own is not None and bool(held(own).any()) for own in grads)

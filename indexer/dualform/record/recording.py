"""A recording: what begins at the first step of a training and ends with it.

It owns the sink, the slot spaces, the columns, and what is known of the optimizer's updates.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from dualform.errors import RecordingError
from dualform.record.all_updates import AllUpdates
from dualform.record.halved_parameters import halved_parameters
from dualform.record.metadata import Columns
from dualform.record.other_values import OtherValues
from dualform.record.passes import Pass
from dualform.record.placement import Placement
from dualform.record.plan import Plan
from dualform.record.sink import SinkThread
from dualform.record.slots import SlotMaker, Slots
from dualform.record.spaces import Spaces, lost_call
from dualform.record.start import Start, layer_of, layers_again
from dualform.record.state import mark_of, state_of
from dualform.record.step_record import StepRecord
from dualform.record.summary import stored_bytes
from dualform.record.taps import Tap
from dualform.record.training_shard import UPDATES
from dualform.store.batch import Batch
from dualform.store.header import Ending
from dualform.store.layer import Layer
from dualform.store.mark import Mark
from dualform.store.others import OtherRow
from dualform.store.probes import ProbeArrays


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
        self._start = Start(plan.model, plan.owners, plan.taps, halved, initial)
        measured = self._measured_before()
        self._spaces = Spaces(plan.taps, plan.spaces, plan.routed)
        self._columns = Columns(self._spaces)
        self._slot_maker = SlotMaker(plan.taps, self._spaces, self._columns)
        self._updates = AllUpdates(
            plan.owners, plan.taps, self._start.initial, self._start.buffers, plan.model, plan.ranks,
            Placement(self._spaces), halved, measured,
        )  # fmt: skip
        self._valued = {tap.name for tap in plan.taps if tap.values}
        self._others = self._other_values()
        self._slots: Slots | None = None
        """Of the step that runs, once they are made."""
        self._layers: list[Layer] = [] if plan.resumed is None else layers_again(plan.resumed.layers, plan)
        self._updates.join([tap for tap in plan.taps if tap.name in {layer.name for layer in self._layers}])
        self._new: list[Layer] = []
        """Layers that have slots and that the sink does not know of yet."""
        self._unreached: dict[str, str] = {}
        """Layer -> why it had no slots when it was last called."""
        self._unrecorded: dict[int, list[str]] = {}
        """By optimizer whose update may still come, layers of the last step, where it was not recorded."""
        self._sink: SinkThread | None = None
        self.steps = 0
        """Steps recorded so far."""
        self.bytes_a_step: int | None = None
        """About what the first recorded step takes on disk; None before it."""

    def _measured_before(self) -> tuple[int, ...]:
        """By optimizer, how many updates were measured before the training was resumed; none where it was not."""
        if self._plan.resumed is None:
            return ()
        return self._plan.resumed.find(self._start.initial, self._start.buffers).updates

    def _mark(self) -> Mark | None:
        """How the training stands: it may be resumed here. Of several processes the first one says it."""
        if self._plan.ranks is not None and self._plan.ranks.number:
            return None
        return mark_of(self._plan.model, self._start.buffers_now(), self.steps, self._updates.measured)

    def _other_values(self) -> OtherValues | None:
        """None where no weights can be rebuilt, and where another process keeps them."""
        plan = self._plan
        scores_only = len(self._start.why_no_rule) == len(plan.owners.optimizers)
        rebuilt = any(tap.values or not tap.parameters for tap in plan.taps)
        if not (plan.keys and rebuilt) or scores_only or (plan.ranks and plan.ranks.number):
            return None
        return OtherValues(plan.model, plan.owners, plan.taps, self._start.initial, self._start.aliases)

    @property
    def initial(self) -> Mapping[str, NDArray[Any]]:
        """W_0: every tensor of the state dict."""
        return self._start.initial

    @property
    def begun(self) -> bool:
        return self._sink is not None

    @property
    def sink(self) -> SinkThread:
        assert self._sink is not None
        return self._sink

    def axis_of(self, tap: Tap) -> int:
        """Which axis of a layer's keys is the batch."""
        return self._spaces.axis_of(tap.name)

    def add_probe(self, probe: ProbeArrays) -> None:
        """Store a probe's queries of the layers that are recorded. Raises BadInput for a name that is taken."""
        recorded = {layer.name for layer in self._layers}
        queries = {name: rows for name, rows in probe.queries.items() if name in recorded}
        self.sink.add_probe(replace(probe, queries=queries))

    def updating(self, number: int, record: StepRecord | None) -> None:
        """The gradients of an optimizer are what they will be, and the weights have not moved yet; `record`: the step
        that runs.
        """
        if record is not None:
            self._check_compiled(record)
        if record is not None and not record.empty:
            self._update_inside(number, record)
            return
        if record is not None:
            self._tell_unseen(record)
        unrecorded, awaited = self._unrecorded.get(number, []), self._updates.awaited(number)
        self._agree(number, UPDATES[1] if unrecorded or awaited else UPDATES[2])
        if unrecorded:
            self._update_unrecorded(number, unrecorded)
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
        self._updates.tell_parted(self.steps if recorded else max(self.steps - 1, 0))
        return agreed

    def updated(self, number: int) -> None:
        """An optimizer has written its weights."""
        self._updates.updated(number)

    def look(self) -> None:
        """A step begins: look at weights that were written since the last one, and at what no slot explains."""
        if self.begun:
            self._updates.look(self.steps - 1)
            if self._others is not None:
                self._others.look(self.steps)

    def _update_inside(self, number: int, record: StepRecord) -> None:
        if number in record.updated:
            self._agree(number, UPDATES[2])
            self._update_again(number, record)
            return
        if not record.settled:
            self._settle(record)
        if number in record.missed:
            self._tell_missed(number, record)
        if not self._agree(number, UPDATES[0]):
            self.forget(record)
        self._updates.close_step()
        if self._slots is None:
            self._update_unrecorded(number, record.layers)
        else:
            self._updates.update(number, record.step, record.dtypes)
        record.updated.add(number)

    def _update_again(self, number: int, record: StepRecord) -> None:
        what = f"{self._plan.owners.named(number)} stepped twice inside step {record.step}"
        if not self.begun:
            raise RecordingError(f"{what}.", hint="Open one `with recorder.step(...)` for each update.")
        self._stray(number, record.step, "stray", what)

    def evaluated_again(self, number: int, record: StepRecord | None) -> None:
        """An optimizer evaluated its closure once more in one update. Raises RecordingError at the first step."""
        step = self.steps if record is not None else self.steps - 1
        kind = type(self._plan.owners.optimizers[number]).__name__
        what = f"{kind} evaluated its closure more than once in the update of step {max(step, 0)}"
        if not self.begun and record is not None and not record.empty:
            record.updated.clear()
            raise RecordingError(
                f"{what}: it moves the weights by gradients that no one set of slots explains.",
                hint="Train with an optimizer that takes one gradient an update, or record scores alone: values=False.",
            )
        if not self.begun:
            return
        self._stray(number, step, "closure", what)

    def _stray(self, number: int, step: int, kind: str, what: str) -> None:
        """An optimizer moved its weights by what no slots explain: a defect of its layers that have any."""
        for layer in self._updates.layers_of(number):
            if layer in self._spaces.layers:
                self._updates.defect(step, layer, kind, what)
        self._updates.stray(number, step)

    def _tell_missed(self, number: int, record: StepRecord) -> None:
        """A pass of its own brought gradients to an optimizer, in the step of another one's update."""
        what = (
            f"a backward pass that ran after another optimizer's update inside step {record.step} brought gradients to "
            f"{self._plan.owners.named(number)}"
        )
        if not self.begun:
            raise RecordingError(
                f"{what}: slots of a step are made at its first update.",
                hint="Put each forward and backward pass into a `with recorder.step(...)` of its own.",
            )
        for layer in self._updates.layers_of(number):
            if layer in self._spaces.layers:
                self._updates.defect(record.step, layer, "missed", what)
            else:
                self._unreached[layer] = what

    def _update_unrecorded(self, number: int, layers: Sequence[str]) -> None:
        """The optimizer goes on with NaN or infinity, as it would without a recorder."""
        if not self.begun:
            return  # the weights as of the next step are W_0
        before = max(self.steps - 1, 0)
        reason = (
            f"after step {before} the optimizer updated with NaN or infinity in a key or error signal, in a step that "
            "was not recorded"
        )
        for layer in self._updates.layers_of(number):
            if layer in layers and layer in self._spaces.layers:
                self._updates.defect(before, layer, "stray", reason)
        self._updates.stray(number, before)

    def late(self, tap: Tap) -> None:
        """A gradient of an earlier step's forward pass arrived."""
        what = f"the gradient of layer {tap.name!r} arrived outside the step that its forward pass ran in"
        if not self.begun:
            raise RecordingError(
                f"{what}.", hint="Put forward and backward of a batch into one `with recorder.step(...)`."
            )
        self.note(tap, "late", f"{what}, after step {max(self.steps - 1, 0)}")

    def note(self, tap: Tap, kind: str, reason: str) -> None:
        """Why a layer's record does not tell its whole story from here on."""
        if tap.name in self._spaces.layers:
            self._updates.defect(max(self.steps - 1, 0), tap.name, kind, reason)

    def _settle(self, record: StepRecord) -> None:
        """Make the step's slots; none where there is NaN or infinity among them. Raises RecordingError and BadInput."""
        record.settled = True
        passes = record.passes
        if len(passes) > 1 and self._valued:
            record.keep(self._updates.first_pass(passes))
        self._tell_misfits(record)
        slots = self._slot_maker.slots_of(record, first=not self.begun)
        self._admit(record, slots)
        self._tell_unseen(record)
        if len(passes) > 1 and not self._valued:
            self._tell_passes(record, passes)
        rows = [
            (part.layer, part.keys, part.errors if part.layer in self._valued else None, part.product)
            for part in slots.rows
        ]
        finite = self._updates.add(record.step, rows, record.fresh) and slots.surely_finite(self._valued)
        if not finite and not slots.finite():
            self.forget(record)
            return
        self._slots = slots
        for layer, reason in slots.parted.items():
            if layer in self._spaces.layers:
                self._updates.defect(record.step, layer, "parted", reason)
            else:
                self._unreached[layer] = reason

    def _tell_misfits(self, record: StepRecord) -> None:
        """Calls of layers that are no rows of theirs. Raises RecordingError at the first step, beside such as are."""
        for layer, what in record.misfits.items():
            reason = f"layer {layer!r} {what}"
            if not self.begun and layer in record.layers:
                raise RecordingError(f"{reason}.", hint="Make them alike, or leave it out with layers=.")
            if layer in self._spaces.layers:
                self._updates.defect(record.step, layer, "parted", what)
                self._spaces.warn_once(f"layer {layer}", lost_call(layer, reason))
            else:
                self._unreached[layer] = what

    def _check_compiled(self, record: StepRecord) -> None:
        """Raises RecordingError where a compiled part trains in the first step, and nothing of it is seen."""
        for part in () if self.begun else self._plan.compiled:
            within = [tap for tap in self._plan.taps if not part or f"{tap.name}.".startswith(f"{part}.")]
            seen = {*record.layers, *record.reached}
            grads = (tensor.grad for tap in within for tensor in tap.trained)
            if not any(tap.name in seen for tap in within) and any(own is not None and own.any() for own in grads):
                raise RecordingError(
                    f"{f'the part {part!r} of the model' if part else 'the model'} ran in code that torch.compile made "
                    "before recording began: its layers run without their hooks, and nothing of them is seen.",
                    hint="Enter the recorder before the first compiled call, or call torch._dynamo.reset() once it is "
                    "entered.",
                )

    def _tell_passes(self, record: StepRecord, passes: Sequence[Pass]) -> None:
        """Without error signals nothing tells whose gradients an update used."""
        if any(all(each.fresh.values()) for each in passes[1:]):
            what = (
                f"{len(passes)} backward passes ran in step {record.step}, with gradients cleared in between: slots of "
                "all of them are there, used or not"
            )
            for layer in self._spaces.layers:
                self._updates.defect(record.step, layer, "passes", what)

    def _tell_unseen(self, record: StepRecord) -> None:
        """Calls of layers that could not be recorded: whether they matter, the gradient shows."""
        for layer, what in record.unseen.items():
            if layer in self._spaces.layers:
                self._updates.defect(record.step, layer, "unseen", what)

    def _admit(self, record: StepRecord, slots: Slots) -> None:
        """Take in the layers that have slots for the first time."""
        known = {layer.name for layer in (*self._layers, *self._new)}
        reached = {part.layer for part in slots.rows} - known
        taps = [tap for tap in self._plan.taps if tap.name in reached]
        if not taps:
            return
        self._updates.join(taps)
        self._new += [self._layer_of(tap, record) for tap in taps]

    def _layer_of(self, tap: Tap, record: StepRecord) -> Layer:
        space, axis = self._spaces.layers[tap.name], self._spaces.axis_of(tap.name)
        return layer_of(tap, space, axis, tap.name in record.raw, self._plan.keys, record.dtypes[tap.name])

    def finish(self, record: StepRecord) -> None:
        """The step is over. Raises RecordingError and BadInput."""
        self._check_compiled(record)
        if record.empty:
            self._tell_unseen(record)
        self._unreached |= {layer: why for layer, why in record.reached.items() if layer not in record.layers}
        if record.empty and not self.begun:
            if not record.reached:
                raise RecordingError(
                    "no gradient reached a recorded layer inside the first step.",
                    hint="Run forward and backward inside it, through the model the recorder was given. What "
                    "torch.compile compiles must not have run before the recorder was entered.",
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

    def _put(self, record: StepRecord, slots: Slots) -> None:
        joined: list[Layer] = []
        if self.begun:
            joined = self._new
        self._layers, self._new = [*self._layers, *self._new], []
        self._skip()
        if not self.begun:
            for reason in self._start.why_no_rule if self._plan.keys and self._valued else ():
                warnings.warn(f"{reason}.", RuntimeWarning, stacklevel=2)
            header = self._start.header(self._plan.path, self._layers, dict(self._plan.skipped), self._plan.label_names)
            if self._others is not None:
                header = replace(header, others=self._others.begin(slots.row_bytes(self._valued)))
            self._sink = SinkThread(partial(self._plan.sink, header))
            if self._plan.resumed is not None and not (self._plan.ranks and self._plan.ranks.number):
                self._plan.resumed.begin()
        self.steps += 1
        if not record.updated:
            self._updates.close_step()
        self._updates.await_update(self._plan.owners.numbers - record.updated, record.step, record.dtypes)
        self._updates.look(record.step)
        logs, defects, watch = self._updates.take()
        batch = Batch(
            record.step,
            slots.samples,
            slots.extents,
            slots.layer_rows(self._valued),
            unknown=slots.unknown,
            joined=joined,
            logs=logs,
            defects=defects,
            watch=watch,
            others=self._take_others(),
        )
        if self.bytes_a_step is None:
            beside = 0 if self._others is None else self._others.bytes_a_step
            self.bytes_a_step = stored_bytes(batch, self._layers) + beside
        self.sink.put(batch)

    @property
    def unreached(self) -> dict[str, str]:
        """Layers that have no slots yet, with the reason."""
        recorded = {layer.name for layer in self._layers}
        never = "it was not called in a recorded step"
        return {t.name: self._unreached.get(t.name, never) for t in self._plan.taps if t.name not in recorded}

    def _take_others(self) -> list[OtherRow]:
        return [] if self._others is None else self._others.take()

    def _skip(self) -> None:
        """List the layers that have no slots yet."""
        for layer in self._layers:
            self._plan.skipped.pop(layer.name, None)
        self._plan.skipped.update(self.unreached)

    def forget(self, record: StepRecord) -> None:
        """A step comes to nothing."""
        self._unreached |= dict.fromkeys(record.layers, "every step that reached it failed, or held NaN or infinity")
        self._slots = None
        self._updates.forget(record.step)

    def flush(self) -> None:
        """Returns once every finished step is on disk. Raises what went wrong with writing."""
        self._updates.finish(self.steps - 1)
        if self._others is not None:
            self._others.look(self.steps)
        self._put_logs(self._mark())
        self.sink.flush()

    def close(self, finished: bool) -> None:
        """End the memory; `finished`: the training came to its end. Raises what went wrong with writing."""
        self._updates.close_step()
        self._updates.finish(self.steps - 1)
        self._skip()
        try:
            self._put_logs()
        finally:
            final, buffers = state_of(self._plan.model), self._start.buffers_now()
            self.sink.close(Ending(finished, final, buffers, dict(self._plan.skipped), self._mark()))

    def _put_logs(self, mark: Mark | None = None) -> None:
        """What is known of the optimizer and no batch took along, and how the training stands."""
        (logs, defects, watch), others = self._updates.take(), self._take_others()
        if logs or defects or watch or others or mark:
            none = self._columns.no_samples()
            self.sink.put(
                Batch(self.steps - 1, none, [], {}, logs=logs, defects=defects, watch=watch, others=others, mark=mark)
            )

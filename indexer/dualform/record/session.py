"""The hooks of a recorded training, and its lifecycle from the first step to the last."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.errors import BadInput, DualformError, RecordingError
from dualform.questions.gradients import ExampleGradients
from dualform.record.batches import random_states
from dualform.record.discovery.found_layers import FoundLayers
from dualform.record.discovery.layers import taps_named
from dualform.record.examples import Examples, example_gradients
from dualform.record.query_sets import Inputs, QuerySetTaker
from dualform.record.ranks import Ranks, check_unsharded, leave
from dualform.record.recording import Recording
from dualform.record.setup.optimizers import around_each_update
from dualform.record.setup.plan import Plan
from dualform.record.slots.columns import Metadata
from dualform.record.slots.step_record import Collector, StepRecord
from dualform.record.taps import Tap, autograd
from dualform.record.taps.matrix import FreeTap
from dualform.store.files.ram_budget import readable
from dualform.store.previews.preview_set import PreviewSet
from dualform.store.query_sets import QuerySetArrays

OPEN: WeakSet[nn.Module] = WeakSet()


def recorded_parameters() -> set[int]:
    """Identities of the parameters and buffers of models that are being recorded."""
    return {id(tensor) for model in OPEN for tensor in (*model.parameters(), *model.buffers())}


def refuse_recorded(tensors: Iterable[Tensor], what: str, instead: str = "pass a copy of the model") -> None:
    """Raises RecordingError if a recorder is open on a model that has such a tensor; `what` it would record."""
    recorded = recorded_parameters()
    if any(id(own) in recorded for own in tensors):
        raise RecordingError(
            f"A recorder is open on this model, and would record {what}.",
            hint=f"Leave `with recorder` first, or {instead}.",
        )


class RecordedTraining:
    """Hooks are there from `attach` to `detach`. What goes wrong is raised, or ends recording with a warning."""

    def __init__(self, plan: Plan, found: FoundLayers, raises: bool, valued: bool) -> None:
        """`found`: the layers that the first step may show; `raises`: whether a failure ends the training; `valued`:
        whether values are wanted.
        """
        self.plan = plan
        self.recording: Recording | None = None
        self.stopped = False
        """Whether it goes on unrecorded after an error."""
        self.collector = Collector(plan.owners, self._late, self._refused, self._hook_failed)
        self._found, self._raises, self._valued = found, raises, valued
        self._frozen = found.frozen
        self._taps = [tap for tap in plan.taps if not isinstance(tap, FreeTap)]
        """Those that are attached by themselves."""
        self._flush_due = False
        """Whether the step that runs was flushed inside: it counts from its end."""
        self._preview_sets: dict[str | None, PreviewSet] = {}
        """By dataset, those that wait for the memory to begin."""
        self._attached = ExitStack()
        """Takes away what hangs on the model and the optimizers."""
        self._listens = False

    @property
    def ongoing(self) -> Recording | None:
        """The recording, once there is a memory."""
        return self.recording if self.recording is not None and self.recording.begun else None

    @property
    def unseen(self) -> Sequence[str]:
        """Matrices that the first step did not touch."""
        return self._found.unseen

    @property
    def steps(self) -> int:
        """Steps recorded so far."""
        return 0 if self.recording is None else self.recording.steps

    @property
    def why_empty(self) -> str:
        """Why there is no memory at the end, without a full stop."""
        if self.recording is None:
            return "recorder.step() was never called. Put each batch into a `with recorder.step(...)`"
        reasons = self.recording.unreached or self._found.reasons
        return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())

    def query_set(
        self,
        name: str,
        inputs: Inputs,
        labels: NDArray[np.int64] | None,
        batch_size: int,
        batch_dim: int,
        store: bool,
        traced: Examples | None = None,
        preview_set: PreviewSet | None = None,
    ) -> None:
        """Run the model on test examples, and `store` what its layers take, and what the loss of `traced` sends back to
        them. There is a memory.
        """
        assert self.ongoing is not None
        self.collector.query_set = taker = QuerySetTaker(self.ongoing.axis_of, labels)
        try:
            taker.run(self.plan.model, inputs, batch_size, batch_dim)
            if traced is None:  # a loss asks for one of each example, and says so
                taker.check_labels()
            # Taps of their own: those of the training go on taking what they see for a query set's, which is done.
            gradients = None if traced is None else self._gradients(traced, batch_size)
        finally:
            self.collector.query_set = None
        if store:
            try:
                made = taker.outcome(shown=preview_set is not None)
                arrays = QuerySetArrays(
                    name,
                    taker.queries(),
                    labels,
                    made.outputs,
                    made.examples,
                    gradients=gradients,
                    preview_set=preview_set,
                    summary=made.summary,
                )
                why_none = made.why_none
                try:
                    self.ongoing.add_query_set(arrays)
                except BadInput:
                    if made.tokens is None:
                        raise
                    self.ongoing.add_query_set(replace(arrays, outputs=None, summary=None))
                    why_none = "with one row for each token they exceed what is left of the budget"
                if why_none:
                    lost = f"query set {name!r} is stored without the model's outputs: {why_none}."
                    warnings.warn(lost, RuntimeWarning, stacklevel=5)
            except BadInput:
                raise
            except DualformError as error:
                self.fail(error)

    def preview_set(self, dataset: str | None, preview_set: PreviewSet) -> None:
        """Store what samples look like, as soon as there is a memory. Raises BadInput as the sink does."""
        if self.stopped:
            return
        if self.ongoing is None:
            if dataset in self._preview_sets:
                raise BadInput(
                    f"Dataset {dataset!r} already has a preview set.",
                    hint="Pass one preview set for each dataset.",
                    field="dataset",
                )
            self._preview_sets[dataset] = preview_set
            return
        try:
            self.ongoing.batches.add_preview_set(dataset, preview_set)
        except BadInput:
            raise
        except DualformError as error:
            self.fail(error)

    def _store_preview_sets(self) -> None:
        """Those that were given before there was a memory: what is wrong with one must not end the training."""
        while self._preview_sets and self.ongoing is not None and not self.stopped:
            dataset = next(iter(self._preview_sets))
            try:
                self.preview_set(dataset, self._preview_sets.pop(dataset))
            except BadInput as error:
                warnings.warn(f"the preview set of {dataset!r} was not stored: {error}", RuntimeWarning, stacklevel=4)

    def _gradients(self, examples: Examples, batch_size: int) -> ExampleGradients:
        """Of the recorded layers with values."""
        assert self.ongoing is not None
        batch_dims = self.ongoing.batch_dims()
        taps = taps_named(self.plan.model, batch_dims.keys())
        return example_gradients(self.plan.model, list(taps.values()), batch_dims, examples, batch_size)

    def attach(self) -> None:
        self._listens, undo = True, self._attached.callback
        for tap in self._taps:
            undo(tap.detach)
            tap.attach(self.collector)
            undo(autograd.part, tap)
            autograd.join(tap, self.collector)
        undo(self._found.detach)
        self._found.attach(self.collector, self._taps, compiled=bool(self.plan.compiled))
        for number, optimizer in enumerate(self.plan.owners.optimizers):
            updating, updated = partial(self._updating, number), partial(self._updated, number)
            again = partial(self._evaluated_again, number)
            failed, whole = self._hook_failed, not self._valued
            undo(around_each_update(optimizer, updating, updated, again, failed, whole))
        undo(OPEN.discard, self.plan.model)
        OPEN.add(self.plan.model)

    def detach(self) -> None:
        """Nothing remains on the model and the optimizers. It may be said again."""
        self._listens = False
        self._attached.close()

    def begin_step(self, **said: Any) -> StepRecord | None:
        """None where recording has stopped."""
        if self.stopped:
            self.detach()
            return None
        try:
            if self.ongoing is None:
                if not self.plan.sharded:
                    check_unsharded(self.plan.model)
                self.recording = Recording(self.plan)
            assert self.recording is not None
            self.recording.look()
            if told := self._frozen.note(self.plan.skipped, self.plan.owners.optimizers, self.steps):
                warnings.warn(told, RuntimeWarning, stacklevel=4)
            if self.ongoing:
                self.ongoing.batches.sink.check()
                if self.ongoing.batches.used_up:
                    self.fail(self._used_up(), may_end=False)
                    return None
            record = self.collector.begin(self.steps, Metadata(**said))
            if self.plan.keep_random:
                record.random_states = random_states(self.plan.model)
        except Exception as error:
            self.fail(error)
        return self.collector.step

    def end_step(self, record: StepRecord | None, failed: bool) -> None:
        """`failed`: what ran in it raised something."""
        recording, self.collector.step = self.recording, None
        due, self._flush_due = self._flush_due, False
        if self.stopped:
            self.detach()
        if record is None or recording is None or self.stopped:
            return
        try:
            # Once the weights have moved, everything after a step that is missing would be inexact.
            if failed and not record.updated:
                recording.forget(record)
            else:
                self._finish(recording, record)
            self._store_preview_sets()
        except Exception as error:
            self.fail(error)
        if due:
            self.flush()

    def _finish(self, recording: Recording, record: StepRecord) -> None:
        try:
            recording = self._with_found(recording, record)
            recording.finish(record)
        except Exception:
            if record.step == self.steps:
                recording.forget(record)
            raise

    def run_out(self) -> None:
        """This rank has no further batch, while others go on."""
        if isinstance(self.plan.ranks, Ranks) and self.ongoing is not None and not self.stopped:
            self.plan.ranks.run_out()
            self.ongoing.tell_parted()

    def flush(self) -> None:
        """As Recorder has it."""
        # How a step ends that is open, nobody knows yet: a training is not resumed in the midst of one.
        self._flush_due = self.collector.step is not None
        if self.ongoing is None or self.stopped:
            return
        try:
            if self._flush_due:
                self.ongoing.batches.flush()
            else:
                self.ongoing.flush()
        except Exception as error:
            self.fail(error)

    def _used_up(self) -> RecordingError:
        budget = self.plan.budget
        return RecordingError(
            f"the budget of {readable(budget.rule.budget if budget else 0)} is used up.",
            hint="Pass the number of steps, as Recorder(steps=…), or record with a larger budget.",
        )

    def fail(self, error: Exception, may_end: bool = True, layer: str = "", within: bool = False) -> None:
        """Raises the error where it `may_end` the training and is to; else warns of it, and stops recording.

        `layer`: where it came up, if that is known; `within`: in a hook. Hooks then do nothing any more and are taken
        away with the step's end: torch goes through them now.
        """
        if isinstance(error, Warning):
            raise error  # Python was told to raise it
        recording = self.ongoing
        if (may_end and self._raises) or recording is None:
            if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
                raise error  # as those who then try a smaller batch know it
            raise _ours(error, layer, recording is not None)
        error = _ours(error, layer, False)
        self.stopped, self.collector.step = True, None
        if not within:
            self.detach()
        try:
            recording.close(finished=False)
        except Exception as failure:
            if failure is not error:
                error.add_note(f"Closing the memory failed, too: {failure}")
        leave(self.plan.ranks)
        whole = " ".join([str(error), *getattr(error, "__notes__", ())])
        warnings.warn(f"recording stopped after {recording.steps} steps: {whole}", RuntimeWarning, stacklevel=3)

    def _hook_failed(self, error: Exception, layer: str = "") -> None:
        if not self.stopped:
            self.fail(error, layer=layer, within=True)

    def close(self, error: BaseException | None) -> None:
        """The memory ends here; `error`: what ended the training, if anything did."""
        assert self.recording is not None
        self._store_preview_sets()
        try:
            self.recording.close(finished=error is None)
        except Exception as failure:
            if error is None and self._raises:
                ours = _ours(failure, "", False)
                raise ours from ours.__cause__
            if error is None:
                self.stopped = True
                warnings.warn(f"Closing the memory failed: {failure}", RuntimeWarning, stacklevel=3)
            elif failure is not error:
                error.add_note(f"Closing the memory failed, too: {failure}")

    def _with_found(self, recording: Recording, record: StepRecord | None) -> Recording:
        """The recording, with the layers that its first step shows. Raises what the recorder raises."""
        if record is None or self._found.closed:
            return recording
        if record.empty:
            if not recording.begun:
                self._found.check_trained(self.plan.taps)
            return recording
        plan = self._found.joined(self.plan, record)
        if plan is not self.plan:
            self.plan, self.recording = plan, Recording(plan, recording.initial)
        return self.recording or recording

    def _late(self, tap: Tap) -> None:
        """A gradient came outside the step of its forward pass."""
        if self._listens and self.recording is not None and not self.stopped:
            self.recording.defects.late(tap)

    def _refused(self, tap: Tap, error: RecordingError) -> None:
        """A call of a layer has no keys."""
        if self.stopped:
            return
        if self.recording is None:
            raise error
        self.recording.defects.refused(tap, error)

    def _updating(self, number: int) -> None:
        """The optimizer of this number is about to write the weights."""
        if self.recording is not None and not self.stopped:
            self._with_found(self.recording, self.collector.step).updating(number, self.collector.step)

    def _updated(self, number: int) -> None:
        if self.recording is not None and not self.stopped:
            self.recording.updated(number)

    def _evaluated_again(self, number: int) -> None:
        """The optimizer of this number evaluated its closure once more in one update."""
        if self.recording is not None and not self.stopped:
            self.recording.stray_updates.evaluated_again(number, self.collector.step)


def _ours(error: Exception, layer: str, may_stop: bool) -> DualformError:
    """The error as one of ours; `may_stop`: another on_error would have let the training go on."""
    if isinstance(error, DualformError):
        return error
    hints = ["Leave the layer out with layers=."] if layer else []
    hints += ['With on_error="stop_recording" the training goes on unrecorded.'] if may_stop else []
    what = f"recording layer {layer!r}" if layer else "recording"
    ours = RecordingError(f"{what} failed: {type(error).__name__}: {error}.", hint=" ".join(hints))
    ours.__cause__ = error
    return ours

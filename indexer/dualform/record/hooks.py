"""The hooks of a recorded training, and its lifecycle from the first step to the last."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.errors import BadInput, DualformError, RecordingError
from dualform.record.batches import random_states
from dualform.record.discovery.found_layers import FoundLayers
from dualform.record.discovery.layers import taps_named
from dualform.record.examples import Examples, example_gradients
from dualform.record.query_sets import Inputs, QuerySetTaker
from dualform.record.ranks import Ranks, check_unsharded, leave
from dualform.record.session import RecordingSession
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


class HookController:
    """Hooks are there from `attach` to `detach`. What goes wrong is raised, or ends recording with a warning."""

    def __init__(self, plan: Plan, found: FoundLayers, raises: bool, valued: bool) -> None:
        """`found`: the layers that the first step may show; `raises`: whether a failure ends the training; `valued`:
        whether values are wanted.
        """
        self.plan = plan
        self.session: RecordingSession | None = None
        self.stopped = False
        """Whether it goes on unrecorded after an error."""
        self.collector = Collector(plan.owners, self._late, self._refused, self._hook_failed)
        self.found, self._raises, self._valued = found, raises, valued
        self._flush_due = False
        """Whether the step that runs was flushed inside: it counts from its end."""
        self._preview_sets: dict[str | None, PreviewSet] = {}
        """By dataset, those that wait for the memory to begin."""
        self._attached = ExitStack()
        """Takes away what hangs on the model and the optimizers."""
        self._listens = False

    @property
    def ongoing(self) -> RecordingSession | None:
        """The session, once there is a memory."""
        return self.session if self.session is not None and self.session.begun else None

    @property
    def steps(self) -> int:
        """Steps recorded so far."""
        return 0 if self.session is None else self.session.steps

    @property
    def why_empty(self) -> str:
        """Why there is no memory at the end, without a full stop."""
        if self.session is None:
            return "recorder.step() was never called. Put each batch into a `with recorder.step(...)`"
        reasons = self.session.unreached or self.found.reasons
        return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())

    def attach(self) -> None:
        """Put hooks on the model and the optimizers."""
        plan, undo = self.plan, self._attached.callback
        self._listens = True
        taps = [tap for tap in plan.taps if not isinstance(tap, FreeTap)]  # which are attached by themselves
        for tap in taps:
            undo(tap.detach)
            tap.attach(self.collector)
            undo(autograd.part, tap)
            autograd.join(tap, self.collector)
        undo(self.found.detach)
        self.found.attach(self.collector, taps, compiled=bool(plan.compiled))
        for number, optimizer in enumerate(plan.owners.optimizers):
            before, after = partial(self._updating, number), partial(self._updated, number)
            again = partial(self._evaluated_again, number)
            undo(around_each_update(optimizer, before, after, again, self._hook_failed, whole=not self._valued))
        undo(OPEN.discard, plan.model)
        OPEN.add(plan.model)

    def detach(self) -> None:
        """Nothing remains on the model and the optimizers. It may be said again."""
        self._listens = False
        self._attached.close()

    # Steps.

    @contextmanager
    def step(self, **said: Any) -> Iterator[StepRecord | None]:
        """One step; None where recording has stopped."""
        record = self._begin_step(said)
        try:
            yield record
        except BaseException:
            self._end_step(record, failed=True)
            raise
        self._end_step(record, failed=False)

    def _begin_step(self, said: dict[str, Any]) -> StepRecord | None:
        if self.stopped:
            self.detach()
            return None
        try:
            if self.ongoing is None:
                if not self.plan.sharded:
                    check_unsharded(self.plan.model)
                self.session = RecordingSession(self.plan)
            assert self.session is not None
            self.session.look()
            if told := self.found.frozen.note(self.plan.skipped, self.plan.owners.optimizers, self.steps):
                warnings.warn(told, RuntimeWarning, stacklevel=6)
            if self.ongoing:
                self.ongoing.writer.sink.check()
                if self.ongoing.writer.used_up:
                    limit = readable(self.plan.budget.rule.budget if self.plan.budget else 0)
                    used_up = RecordingError(
                        f"the budget of {limit} is used up.",
                        hint="Pass the number of steps, as Recorder(steps=…), or record with a larger budget.",
                    )
                    self.fail(used_up, may_end=False)
                    return None
            record = self.collector.begin(self.steps, Metadata(**said))
            if self.plan.keep_random:
                record.random_states = random_states(self.plan.model)
        except Exception as error:
            self.fail(error)
        return self.collector.step

    def _end_step(self, record: StepRecord | None, failed: bool) -> None:
        """`failed`: what ran in it raised something."""
        session, self.collector.step = self.session, None
        due, self._flush_due = self._flush_due, False
        if self.stopped:
            self.detach()
        if record is None or session is None or self.stopped:
            return
        try:
            # Once the weights have moved, everything after a step that is missing would be inexact.
            if failed and not record.updated:
                session.forget(record)
            else:
                try:
                    session = self._with_found(session, record)
                    session.finish(record)
                except Exception:
                    if record.step == self.steps:
                        session.forget(record)
                    raise
            self._store_preview_sets()
        except Exception as error:
            self.fail(error)
        if due:
            self.flush()

    def _with_found(self, session: RecordingSession, record: StepRecord | None) -> RecordingSession:
        """The session, with the layers that its first step shows. Raises what the recorder raises."""
        if record is None or self.found.closed:
            return session
        if record.empty:
            if not session.begun:
                self.found.check_trained(self.plan.taps)
            return session
        plan = self.found.joined(self.plan, record)
        if plan is not self.plan:
            self.plan = plan
            self.session = session = RecordingSession(plan, session.start.initial)
        return session

    def flush(self) -> None:
        """As Recorder has it."""
        # How a step ends that is open, nobody knows yet: a training is not resumed in the midst of one.
        self._flush_due = self.collector.step is not None
        if self.ongoing is None or self.stopped:
            return
        try:
            (self.ongoing.writer if self._flush_due else self.ongoing).flush()
        except Exception as error:
            self.fail(error)

    def close(self, error: BaseException | None) -> None:
        """The memory ends here; `error`: what ended the training, if anything did."""
        assert self.session is not None
        self._store_preview_sets()
        try:
            self.session.close(finished=error is None)
        except Exception as failure:
            if error is None and self._raises:
                ours = _ours(failure, "", False)
                raise ours from ours.__cause__
            if error is None:
                self.stopped = True
                warnings.warn(f"Closing the memory failed: {failure}", RuntimeWarning, stacklevel=3)
            elif failure is not error:
                error.add_note(f"Closing the memory failed, too: {failure}")

    def fail(self, error: Exception, may_end: bool = True, layer: str = "", within: bool = False) -> None:
        """Raises the error where it `may_end` the training and is to; else warns of it, and stops recording.

        `layer`: where it came up, if that is known; `within`: in a hook. Hooks then do nothing any more and are taken
        away with the step's end: torch goes through them now.
        """
        if isinstance(error, Warning):
            raise error  # Python was told to raise it
        session = self.ongoing
        if (may_end and self._raises) or session is None:
            if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
                raise error  # as those who then try a smaller batch know it
            raise _ours(error, layer, session is not None)
        error = _ours(error, layer, False)
        self.stopped, self.collector.step = True, None
        if not within:
            self.detach()
        self.close(error)
        leave(self.plan.ranks)
        whole = " ".join([str(error), *getattr(error, "__notes__", ())])
        warnings.warn(f"recording stopped after {session.steps} steps: {whole}", RuntimeWarning, stacklevel=3)

    # What the hooks tell.

    def run_out(self) -> None:
        """This rank has no further batch, while others go on."""
        if isinstance(self.plan.ranks, Ranks) and self.ongoing is not None and not self.stopped:
            self.plan.ranks.run_out()
            self.ongoing.tell_parted()

    def _hook_failed(self, error: Exception, layer: str = "") -> None:
        if not self.stopped:
            self.fail(error, layer=layer, within=True)

    def _late(self, tap: Tap) -> None:
        """A gradient came outside the step of its forward pass."""
        if self._listens and self.session is not None and not self.stopped:
            self.session.late(tap)

    def _refused(self, tap: Tap, error: RecordingError) -> None:
        """A call of a layer has no keys."""
        if self.session is None:
            raise error
        if not self.stopped:
            self.session.refused(tap, error)

    def _updating(self, number: int) -> None:
        """The optimizer of this number is about to write the weights."""
        if self.session is not None and not self.stopped:
            self._with_found(self.session, self.collector.step).updating(number, self.collector.step)

    def _updated(self, number: int) -> None:
        if self.session is not None and not self.stopped:
            self.session.updates.updated(number)

    def _evaluated_again(self, number: int) -> None:
        """The optimizer of this number evaluated its closure once more in one update."""
        if self.session is not None and not self.stopped:
            self.session.evaluated_again(number, self.collector.step)

    # Query sets and preview sets.

    def query_set(
        self,
        name: str,
        inputs: Inputs,
        labels: NDArray[np.int64] | None,
        batch_size: int,
        batch_dim: int,
        traced: Examples | None = None,
        preview_set: PreviewSet | None = None,
    ) -> None:
        """Run the model on test examples, and store what its layers take, and what the loss of `traced` sends back to
        them; of several ranks the first one does. There is a memory.
        """
        session, model = self.ongoing, self.plan.model
        assert session is not None
        self.collector.query_set = taker = QuerySetTaker(lambda tap: session.spaces.axis_of(tap.name), labels)
        gradients = None
        try:
            taker.run(model, inputs, batch_size, batch_dim)
            if traced is None:  # a loss asks for one of each example, and says so
                taker.check_labels()
            else:
                # Taps of their own: those of the training go on taking what they see for a query set's, which is done.
                batch_dims = session.batch_dims()
                taps = taps_named(model, batch_dims.keys())
                gradients = example_gradients(model, list(taps.values()), batch_dims, traced, batch_size)
        finally:
            self.collector.query_set = None
        if self.plan.number:
            return
        with self._storing():
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
                session.add_query_set(arrays)
            except BadInput:
                if made.tokens is None:
                    raise
                session.add_query_set(replace(arrays, outputs=None, summary=None))
                why_none = "with one row for each token they exceed what is left of the budget"
            if why_none:
                lost = f"query set {name!r} is stored without the model's outputs: {why_none}."
                warnings.warn(lost, RuntimeWarning, stacklevel=4)

    def preview_set(self, dataset: str | None, preview_set: PreviewSet) -> None:
        """Store what samples look like, as soon as there is a memory. Raises BadInput as the sink does."""
        if self.stopped:
            return
        if self.ongoing is not None:
            with self._storing():
                self.ongoing.writer.add_preview_set(dataset, preview_set)
            return
        if dataset in self._preview_sets:
            raise BadInput(
                f"Dataset {dataset!r} already has a preview set.",
                hint="Pass one preview set for each dataset.",
                field="dataset",
            )
        self._preview_sets[dataset] = preview_set

    def _store_preview_sets(self) -> None:
        """Those that were given before there was a memory: what is wrong with one must not end the training."""
        while self._preview_sets and self.ongoing is not None and not self.stopped:
            dataset = next(iter(self._preview_sets))
            try:
                self.preview_set(dataset, self._preview_sets.pop(dataset))
            except BadInput as error:
                warnings.warn(f"the preview set of {dataset!r} was not stored: {error}", RuntimeWarning, stacklevel=4)

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """What is refused is raised; anything else that goes wrong with writing is a failure of the recording."""
        try:
            yield
        except BadInput:
            raise
        except DualformError as error:
            self.fail(error)


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

"""Updates of the weights that no slots explain, or not alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dualform.errors import RecordingError
from dualform.record.all_updates import AllUpdates
from dualform.record.owners import Owners
from dualform.record.progress import Progress
from dualform.record.step_defects import StepDefects
from dualform.record.step_record import StepRecord


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

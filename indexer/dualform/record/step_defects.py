"""What cannot be recorded of a step as it was: where it matters it ends a first step, and is a later one's defect."""

from __future__ import annotations

from collections.abc import Sequence

from dualform.errors import RecordingError
from dualform.record.all_updates import AllUpdates
from dualform.record.passes import Pass
from dualform.record.plan import Plan
from dualform.record.progress import Progress
from dualform.record.recorded_layers import RecordedLayers
from dualform.record.sharded_parameters import held
from dualform.record.slots import Slots
from dualform.record.spaces import Spaces, lost_call
from dualform.record.step_record import StepRecord
from dualform.record.taps import Tap


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

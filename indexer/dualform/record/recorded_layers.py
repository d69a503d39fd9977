"""Which layers have slots by now, and why the others have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dualform.record.plan import Plan
from dualform.record.sharded_parameters import held
from dualform.record.slots import Slots
from dualform.record.spaces import Spaces
from dualform.record.start import layer_of, layers_again
from dualform.record.step_record import StepRecord
from dualform.record.taps import Tap
from dualform.store.layer import Layer

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

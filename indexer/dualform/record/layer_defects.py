"""What may make a layer inexact, told once for each kind."""

from __future__ import annotations

from collections.abc import Sequence

from dualform.record.recorded_parameters import RecordedParameter, RecordedParameters
from dualform.record.taps import Tap
from dualform.store.batch import Defect


class LayerDefects:
    """Of the layers that have slots, collected until a batch takes them along."""

    def __init__(self, parameters: RecordedParameters, told: set[tuple[str, str]]) -> None:
        """`told`: what of which layer was told of already, of all optimizers."""
        self._parameters = parameters
        self.taps: list[Tap] = []
        """Those that have slots."""
        self.joined: set[int] = set()
        """Parameters of layers that have slots, by index."""
        self.joined_names: set[str] = set()
        self._told = told
        self._found: list[Defect] = []

    def join(self, taps: Sequence[Tap]) -> None:
        """These layers have slots from now on."""
        self.taps += taps
        names = {tap.name for tap in self.taps}
        self.joined = {i for i, parameter in enumerate(self._parameters) if names.intersection(parameter.layers)}
        self.joined_names = {self._parameters[index].name for index in self.joined}

    def layers_of(self, parameter: RecordedParameter) -> list[str]:
        """Those that have slots."""
        joined = {tap.name for tap in self.taps}
        return [layer for layer in parameter.layers if layer in joined]

    def tell(self, step: int, layer: str, kind: str, reason: str) -> None:
        """Note what may make a layer inexact from `step` on; once for each kind."""
        if (layer, kind) not in self._told:
            self._told.add((layer, kind))
            self._found.append(Defect(step, layer, reason))

    def told_of(self, index: int, kind: str) -> bool:
        """Whether all layers of a parameter were told of already."""
        return all((layer, kind) in self._told for layer in self.layers_of(self._parameters[index]))

    def tell_of(self, step: int, index: int, kind: str, reason: str) -> None:
        """Of the layers of a parameter."""
        for layer in self.layers_of(self._parameters[index]):
            self.tell(step, layer, kind, reason)

    def tell_all(self, step: int, kind: str, reason: str) -> None:
        for tap in self.taps:
            self.tell(step, tap.name, kind, reason)

    def take(self) -> list[Defect]:
        """What no batch has taken along yet."""
        taken, self._found = self._found, []
        return taken

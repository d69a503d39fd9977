"""The probes that a trainer's integration takes as its training ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dualform.errors import BadInput
from dualform.record.recorder import Recorder


class Probes:
    """Inputs of a model by the name of their probe, with labels and galleries of those that have some."""

    def __init__(
        self,
        inputs: Mapping[str, Any] | None = None,
        labels: Mapping[str, Any] | None = None,
        galleries: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises BadInput for what is given of a probe that is not among them: before the training, not after it."""
        self._inputs, self._labels, self._galleries = dict(inputs or {}), dict(labels or {}), dict(galleries or {})
        for given, what in ((self._labels, "labels"), (self._galleries, "galleries")):
            if strangers := given.keys() - self._inputs.keys():
                raise BadInput(
                    f"probe_{what} has {', '.join(map(repr, sorted(strangers)))}, which probes has no inputs of.",
                    hint=f"Give {what} under the name of their probe.",
                    field=f"probe_{what}",
                )

    def take(self, recorder: Recorder) -> None:
        for name, inputs in self._inputs.items():
            recorder.probe(name, inputs, self._labels.get(name), gallery=self._galleries.get(name))

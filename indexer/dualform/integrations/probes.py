"""The probes that a trainer's integration takes as its training ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dualform.errors import BadInput
from dualform.record.recorder import Recorder


class Probes:
    """Inputs of a model by the name of their probe, and labels of those that have some."""

    def __init__(self, inputs: Mapping[str, Any] | None = None, labels: Mapping[str, Any] | None = None) -> None:
        """Raises BadInput for labels of a probe that is not among them: before the training, and not after it."""
        self._inputs, self._labels = dict(inputs or {}), dict(labels or {})
        if strangers := self._labels.keys() - self._inputs.keys():
            raise BadInput(
                f"probe_labels has {', '.join(map(repr, sorted(strangers)))}, which probes has no inputs of.",
                hint="Give labels under the name of their probe.",
                field="probe_labels",
            )

    def take(self, recorder: Recorder) -> None:
        for name, inputs in self._inputs.items():
            recorder.probe(name, inputs, self._labels.get(name))

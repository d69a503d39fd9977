"""What an integration does at the end of a training: it takes query sets, and warns if weights change later."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dualform.errors import BadInput
from dualform.record.recorder import Recorder


class QuerySets:
    """Inputs of a model by the name of their query set, with labels and preview sets of those that have some."""

    def __init__(
        self,
        inputs: Mapping[str, Any] | None = None,
        labels: Mapping[str, Any] | None = None,
        preview_sets: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises BadInput for labels or previews of a query set that is not given: before the training."""
        self._inputs, self._labels, self._preview_sets = (
            dict(inputs or {}),
            dict(labels or {}),
            dict(preview_sets or {}),
        )
        for given, what in ((self._labels, "labels"), (self._preview_sets, "previews")):
            if strangers := given.keys() - self._inputs.keys():
                raise BadInput(
                    f"query_set_{what} names {', '.join(map(repr, sorted(strangers)))}, which query_sets lacks.",
                    hint=f"Pass {what} under the name of a query set in query_sets.",
                    field=f"query_set_{what}",
                )

    def take(self, recorder: Recorder) -> None:
        for name, inputs in self._inputs.items():
            recorder.query_set(name, inputs, self._labels.get(name), previews=self._preview_sets.get(name))


class LastWeights:
    """The weights that a memory ends with, by which it is told whether the trainer put others in their place."""

    def __init__(self, model: nn.Module, path: object) -> None:
        """`path`: of the memory."""
        self._model, self._path, self._sums = model, path, _byte_sums(model)

    def warn_if_replaced(self, by: str) -> None:
        """`by`: what may have done it."""
        if _byte_sums(self._model) != self._sums:
            warnings.warn(
                f"{by} changed the model's weights after the last step. The memory in {self._path} ends with the "
                "weights of that step, so memory.weights() differs from the model that you have now.",
                RuntimeWarning,
                stacklevel=3,
            )


def _byte_sums(model: nn.Module) -> dict[str, int]:
    """By parameter, a sum that is the same wherever the tensor is; of a sharded one, of this rank's part."""
    parts = {name: own.detach() for name, own in model.named_parameters()}
    parts = {name: own.to_local() if hasattr(own, "to_local") else own for name, own in parts.items()}
    return {
        name: int(own.contiguous().reshape(-1).view(torch.uint8).sum(dtype=torch.int64)) for name, own in parts.items()
    }

"""A memory's scores in the form that quanda takes: an explainer with `explain` and `self_influence`.

quanda 0.5 wants captum below 0.9, which wants NumPy 1, and dualform wants NumPy 2: pip finds no versions of both. So
nothing of quanda is imported here; its metrics call these two methods and ask for no base class.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dualform.errors import BadInput
from dualform.query.engine import Engine
from dualform_studies.attribution.ours import in_order
from dualform_studies.attribution.recorded import losses


class TrainedOn(Sized, Protocol):
    """The dataset that was trained on; the recorder was given its row numbers as `sample`."""

    def __getitem__(self, row: int) -> tuple[Tensor, Any]: ...


class MemoryExplainer:
    """Scores of a memory by sample: attention, contributions to the target's output, or dot products of gradients."""

    def __init__(
        self, model: nn.Module, train_dataset: TrainedOn, memory: Engine, layer: str = "*", score: str = "gradient"
    ) -> None:
        """`model`: the network as training left it; `layer`: one that was recorded, or "*" for all, with "gradient".

        Raises BadInput where attention or contributions are to be of all layers.
        """
        if layer == "*" and score != "gradient":
            raise BadInput(f"score={score!r} needs one layer.", hint="Name it with layer=.", field="layer")
        self.model, self.train_dataset = model, train_dataset
        self._memory, self._layer, self._score = memory, layer, score

    def explain(self, test_data: Tensor, targets: Tensor | list[int]) -> Tensor:
        """float32[tests, samples]: the score of each training sample for each test and its target."""
        labels = torch.as_tensor(targets)
        if self._score == "gradient":
            examples = self._memory.gradients(self.model, test_data, labels, losses)
            found = self._memory.group_sum(self._layer, examples, by="sample", score="gradient")
        else:
            queries = self._memory.queries(self.model, test_data)[self._layer]
            target = self._target(labels) if self._score == "contribution" else None
            found = self._memory.group_sum(self._layer, queries, by="sample", score=self._score, target=target)
        scores = in_order(found.groups, np.asarray(found.sums, dtype=np.float64), len(self.train_dataset))
        return torch.from_numpy(scores.astype(np.float32))

    def self_influence(self, batch_size: int = 32) -> Tensor:
        """float32[samples]: the score of each training sample for itself."""
        loader: DataLoader[Any] = DataLoader(cast("Any", self.train_dataset), batch_size=batch_size)
        own, start = [], 0
        for inputs, labels in loader:
            rows = torch.arange(len(labels))
            own.append(self.explain(inputs, labels)[rows, start + rows])
            start += len(labels)
        return torch.cat(own)

    def _target(self, labels: Tensor) -> NDArray[np.float32]:
        """float32[tests, d_out]: the output of each test's target."""
        width = next(layer.d_out for layer in self._memory.info().layers if layer.name == self._layer)
        directions: NDArray[np.float32] = np.eye(width, dtype=np.float32)[labels.numpy()]
        return directions

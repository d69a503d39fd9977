"""Probes: what the recorded layers are asked by test examples, and what the model answers. n examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.errors import BadInput
from dualform.record.metadata import as_array
from dualform.record.taps import Tap


class ProbeTaker:
    """Collects layer inputs while a model runs on test examples."""

    def __init__(self) -> None:
        self._batch: dict[str, Tensor] = {}
        self._parts: dict[str, list[Tensor]] = {}
        self._outputs: list[Tensor] | None = []

    def probed(self, tap: Tap, key: Tensor) -> None:
        """A layer's input; where a layer is called more than once, the first."""
        self._batch.setdefault(tap.name, key.reshape(-1, tap.d_in).to("cpu", torch.float32, copy=True))

    def run(self, model: nn.Module, inputs: Tensor | Sequence[Tensor], batch_size: int) -> None:
        """Run the model in eval mode, without gradients, batch by batch; its modes are restored."""
        parts = [torch.as_tensor(part) for part in (inputs if isinstance(inputs, tuple | list) else [inputs])]
        lengths = {len(part) for part in parts}
        if len(lengths) != 1 or 0 in lengths:
            raise BadInput(
                f"inputs hold {' and '.join(str(len(part)) for part in parts) or 'no'} examples.",
                hint="Give a tensor of at least one example, or several tensors of the same number.",
                field="inputs",
            )
        with _evaluating(model), torch.no_grad():
            for start in range(0, len(parts[0]), batch_size):
                self._outcome(model(*(part[start : start + batch_size] for part in parts)))

    def _outcome(self, output: Any) -> None:
        for name, keys in self._batch.items():
            self._parts.setdefault(name, []).append(keys)
        self._batch = {}
        if isinstance(output, Tensor) and output.dim() == 2 and self._outputs is not None:
            self._outputs.append(output.detach().to("cpu", torch.float32, copy=True))
        else:
            self._outputs = None

    def queries(self) -> dict[str, NDArray[np.float32]]:
        """float32[n, d_in] by layer, of the layers that ran; n counts tokens where a layer sees tokens."""
        return {name: torch.cat(parts).numpy() for name, parts in self._parts.items()}

    def outputs(self) -> NDArray[np.float32] | None:
        """float32[n, outputs]; None where the model returns anything else."""
        return torch.cat(self._outputs).numpy() if self._outputs else None


def labels_of(label: Any) -> NDArray[np.int64] | None:
    """int64[n]. Raises BadInput for labels that are no integers."""
    if label is None:
        return None
    given = as_array("label", label)
    if given.dtype.kind not in "iu":
        raise BadInput(f"label holds {given.dtype}.", hint="Labels are integers.", field="label")
    return given.reshape(-1).astype(np.int64)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training

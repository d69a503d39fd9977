"""What a training starts from, as its memory's header says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from dualform.record.optimizers import momentum_buffers, why_not_linear
from dualform.record.sinks import Header
from dualform.record.state import arrays, state_of
from dualform.record.taps import Tap
from dualform.store.layer import Layer


class Start:
    """The network before the first recorded step: what was trained earlier is part of W_0."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, taps: Sequence[Tap]) -> None:
        self._optimizer = optimizer
        self._initial = state_of(model)
        named = [(parameter.name, tensor) for tap in taps for parameter, tensor in tap.parameters.items()]
        self._momentum = arrays(momentum_buffers(optimizer, named))

    def header(
        self, path: Path, layers: Sequence[Layer], skipped: Mapping[str, str], label_names: Mapping[str, Sequence[str]]
    ) -> Header:
        reason = why_not_linear(self._optimizer)
        return Header(
            path=path,
            layers=layers,
            skipped=skipped,
            optimizer=type(self._optimizer).__name__,
            rule="" if reason else "sgd",
            reason=reason,
            initial=self._initial,
            momentum=self._momentum,
            label_names=label_names,
        )


def layer_of(tap: Tap, space: str, repeats: bool, keys: bool, dtype: torch.dtype) -> Layer:
    """How the manifest names a tapped layer; `dtype`: what the training computed it in."""
    return Layer(
        name=tap.name,
        space=space,
        d_in=tap.d_in,
        d_out=tap.d_out,
        parameters=tuple(tap.parameters),
        source="rows" if keys else "none",
        repeats=repeats and keys,
        values=tap.values,
        dtype="bfloat16" if dtype == torch.bfloat16 else "float32",
        reason=tap.why_no_values,
    )

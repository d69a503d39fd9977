"""What a training starts from, as its memory's header says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from dualform.record.blocks import name_alike
from dualform.record.key_form import HALVED
from dualform.record.optimizers import buffers_of, rule_of, why_no_rule
from dualform.record.state import arrays, state_of
from dualform.record.taps import Tap
from dualform.rules import settings_of
from dualform.store.header import Header
from dualform.store.layer import Layer
from dualform.store.weights import Buffers


class Start:
    """The network before the first recorded step: what was trained earlier is part of W_0."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, taps: Sequence[Tap]) -> None:
        name_alike(taps)
        self._optimizer = optimizer
        self._rule = rule_of(optimizer)
        self.why_no_rule = why_no_rule(optimizer)
        """Why weights cannot be rebuilt, as the memory will say it; empty where they can."""
        self.initial: Mapping[str, NDArray[Any]] = state_of(model)
        """Every tensor of the state dict."""
        self.aliases = {name: known for name, known in aliases_of(model, taps).items() if name in self.initial}
        """Further names of recorded parameters in the state dict -> the name they are recorded under."""
        self._parameters = {parameter.name: tensor for tap in taps for parameter, tensor in tap.parameters.items()}
        self.buffers: Buffers = self.buffers_now()
        """What the optimizer keeps, by parameter and the optimizer's own name for it, of those that have any."""

    def buffers_now(self) -> Buffers:
        """As `buffers`, at this moment."""
        if self._rule is None:
            return {}
        found: dict[str, dict[str, NDArray[Any]]] = {}
        kinds = (*self._rule.buffers, *self._rule.statistics)
        places = [(name, kind) for name in self._parameters for kind in kinds]
        held = buffers_of(self._optimizer, self._rule, self._parameters.values())
        for (name, kind), buffer in zip(places, held, strict=True):
            if buffer is not None:
                tensor = buffer if isinstance(buffer, Tensor) else torch.tensor(float(buffer), dtype=torch.float64)
                found.setdefault(name, {}).update(arrays({kind: tensor}))
        return found

    def header(
        self, path: Path, layers: Sequence[Layer], skipped: Mapping[str, str], label_names: Mapping[str, Sequence[str]]
    ) -> Header:
        rule = "" if self._rule is None else self._rule.name
        return Header(
            path=path,
            layers=layers,
            skipped=skipped,
            optimizer=type(self._optimizer).__name__,
            rule=rule,
            settings=settings_of(rule),
            reason=self.why_no_rule,
            initial=self.initial,
            buffers=self.buffers,
            label_names=label_names,
            aliases=self.aliases,
        )


def aliases_of(model: nn.Module, taps: Sequence[Tap]) -> dict[str, str]:
    """Names under which a model holds a recorded parameter once more -> the recorded name.

    A name counts where it holds the very same tensor object: a copy with the same numbers is a parameter of its own.
    """
    recorded = {id(tensor): place.name for tap in taps for place, tensor in tap.parameters.items()}
    held = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    return {name: recorded[id(tensor)] for name, tensor in held if recorded.get(id(tensor), name) != name}


def layer_of(tap: Tap, space: str, repeats: bool, keys: bool, dtype: torch.dtype) -> Layer:
    """How the manifest names a tapped layer; `dtype`: what the training computed it in."""
    return Layer(
        name=tap.name,
        space=space,
        d_in=tap.d_in,
        d_out=tap.d_out,
        parameters=tuple(tap.parameters),
        source=tap.key_form.source_of(dtype) if keys else "none",
        repeats=repeats and keys,
        values=tap.values,
        dtype=HALVED.get(dtype, "float32"),
        reason=tap.why_no_values,
        geometry=tap.key_form.geometry if keys else {},
    )

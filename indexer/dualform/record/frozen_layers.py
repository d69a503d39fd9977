"""Layers that were frozen when recording began: they have no tap, and what trains of them later is named."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

FROZEN = "its weight is frozen"
"""Why such a layer is not recorded."""


class FrozenLayers:
    """Those of one model that still are."""

    def __init__(self, model: nn.Module, skipped: Mapping[str, str]) -> None:
        """`skipped`: layer -> why it is not recorded."""
        modules = dict(model.named_modules())
        self._weights: dict[str, list[Tensor]] = {
            name: [parameter for parameter in modules[name].parameters() if parameter.dim() > 1]
            for name, reason in skipped.items()
            if reason == FROZEN and name in modules
        }

    def note(self, skipped: MutableMapping[str, str], optimizers: Sequence[Optimizer], step: int) -> str:
        """Say in `skipped` which layers train from this step on; returns a warning of them, empty for none."""
        asking = [name for name, weights in self._weights.items() if any(weight.requires_grad for weight in weights)]
        if not asking:
            return ""
        held = {id(own) for optimizer in optimizers for group in optimizer.param_groups for own in group["params"]}
        woken = [name for name in asking if any(id(weight) in held for weight in self._weights[name])]
        for name in woken:
            del self._weights[name]
            skipped[name] = f"its weight was frozen when recording began, and is trained from step {step} on"
        if not woken:
            return ""
        return (
            f"layers that were frozen when recording began are trained from step {step} on, and are not recorded: "
            f"{', '.join(map(repr, woken))}. Make the recorder while their weights ask for gradients and the optimizer "
            "holds them; they may be frozen after that, and get slots once they train."
        )

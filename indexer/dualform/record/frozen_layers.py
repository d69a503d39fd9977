"""What did not train when recording began: it is not recorded, and what trains of it later is named."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer

from dualform.record.owners import Owners


@dataclass(frozen=True)
class _Frozen:
    weights: Sequence[Tensor]
    reason: str
    """Why it did not train: "its weight is frozen"."""
    refusal: str
    """Why it is not recorded where it trains; empty where it would be, from the beginning."""

    @property
    def was(self) -> str:
        return self.reason.replace(" is ", " was ", 1)


class FrozenLayers:
    """Layers and other parameters of one model that do not train yet: frozen, or held by no optimizer."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._layers: dict[str, _Frozen] = {}

    def add(self, name: str, weights: Sequence[Tensor], reason: str, refusal: str = "") -> None:
        """One that does not train as recording begins, and why; `refusal`: why it would not be recorded anyway."""
        self._layers[name] = _Frozen(weights, reason, refusal)

    def note(self, skipped: MutableMapping[str, str], optimizers: Sequence[Optimizer], step: int) -> str:
        """Say in `skipped` which train from this step on; returns a warning of those that could have been recorded,
        empty for none.
        """
        asking = {
            name: [weight for weight in own.weights if weight.requires_grad] for name, own in self._layers.items()
        }
        if not any(asking.values()):
            return ""
        held = {id(own) for optimizer in optimizers for group in optimizer.param_groups for own in group["params"]}
        woken = {
            name: self._layers.pop(name)
            for name, weights in asking.items()
            if any(id(weight) in held for weight in weights)
        }
        for name, own in woken.items():
            skipped[name] = own.refusal or f"{own.was} when recording began, and is trained from step {step} on"
        told = [f"{name!r} ({own.was})" for name, own in woken.items() if not own.refusal]
        if not told:
            return ""
        given = [weight for own in woken.values() if not own.refusal for weight in own.weights]
        late = not all(map(self._owners.hold, given))
        first = "give all weights to the optimizer, instead of add_param_group later, and make" if late else "make"
        return (
            f"layers that did not train when recording began train from step {step} on, and are not recorded: "
            f"{', '.join(told)}. To record them, {first} the recorder before you freeze these weights. "
            "Or make another recorder, with another folder, at the step where they join."
        )

"""What the modules of a model say of its layers: the axis of the batch, what is frozen, adapters by name."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from dualform.errors import BadInput
from dualform.record.setup.optimizers import Owners
from dualform.record.taps import ModuleTap, Tap


def batch_dim_of(modules: Mapping[str, nn.Module], name: str) -> int | None:
    """The axis of a layer's input that is the batch, by the innermost module around it that tells; else None.

    Modules that are layers tell it by their kind of tap.
    """
    while name:
        name = name.rpartition(".")[0]
        around = modules[name]
        if isinstance(around, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            around = around.self_attn
        kind = ModuleTap.kind_of(around)
        told = None if kind is None else kind.batch_dim_of(around)
        if isinstance(around, nn.Transformer | nn.RNN):
            told = 0 if around.batch_first else 1
        if told is not None:
            return told
    return None


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


def taps_named(model: nn.Module, names: Set[str]) -> dict[str, Tap]:
    """By name, those of the given names that the model has, whether they train or not."""
    taps, covered = dict[str, Tap](), set[str]()
    for name, module in model.named_modules():
        kind = ModuleTap.kind_of(module)
        if kind is None or name in covered or kind.refusal(module):
            continue
        covered.update(f"{name}.{own}" if name else own for own in kind.covered)
        taps |= {tap.name: tap for tap in kind.taps_of(name, module) if tap.name in names}
    return taps


def taps_of_recorded(model: nn.Module, names: Set[str], weights: Mapping[str, NDArray[Any]]) -> dict[str, Tap]:
    """As `taps_named`, of a model that was recorded with layers of these names and such weights. Raises BadInput for
    another one.
    """
    taps = taps_named(model, names)
    missing = [name for name in names if name not in taps]
    if missing:
        raise BadInput(
            f"The model lacks {', '.join(map(repr, missing))}, which the memory was recorded with.",
            hint="Pass the model that was recorded, with the same names of layers.",
            field="model",
        )
    shapes = {name: tuple(own.shape) for name, own in model.state_dict().items()}
    for name, array in sorted(weights.items()):
        if shapes.get(name) != array.shape:
            raise BadInput(
                f"{name!r} is {list(array.shape)} in the memory, and {list(shapes[name]) if name in shapes else 'not'} "
                "in the model.",
                hint="Give the model that was recorded.",
                field="model",
            )
    return taps

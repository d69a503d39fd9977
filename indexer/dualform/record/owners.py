"""Which optimizer updates which parameters, where a training has one or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dualform.errors import BadInput, RecordingError
from dualform.record.wrappers import unwrapped


class Owners:
    """The optimizers of a training, and which of them holds a parameter. One that none holds counts as the first's."""

    def __init__(self, optimizers: Sequence[Optimizer], model: nn.Module) -> None:
        """Raises RecordingError where two of them hold one parameter."""
        self.optimizers = tuple(optimizers)
        self._of: dict[int, int] = {}
        for number, optimizer in enumerate(self.optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if self._of.setdefault(id(parameter), number) != number:
                        raise self._shared(parameter, number, model)

    def _shared(self, parameter: Tensor, number: int, model: nn.Module) -> RecordingError:
        names = [repr(name) for name, own in model.named_parameters() if own is parameter]
        first, other = self.named(self._of[id(parameter)]), self.named(number)
        return RecordingError(
            f"{f'parameter {names[0]}' if names else 'a parameter outside the model'} is updated by {first} and by "
            f"{other}.",
            hint="Give each parameter to one optimizer: a recording follows one update rule for each.",
        )

    @property
    def numbers(self) -> set[int]:
        return set(range(len(self.optimizers)))

    def hold(self, tensor: Tensor) -> bool:
        """Whether any of them holds a parameter."""
        return id(tensor) in self._of

    def untrained(self, weights: Iterable[Tensor], it: str = "its weight") -> str:
        """Why none of a layer's weights is trained; empty where one is. `it`: what they are called."""
        asking = [weight for weight in weights if weight.requires_grad]
        if not asking:
            return f"{it} is frozen"
        return "" if any(map(self.hold, asking)) else f"{it} is not among the optimizer's parameters"

    def of(self, tensor: Tensor) -> int:
        """The number of the optimizer that a parameter belongs to."""
        return self._of.get(id(tensor), 0)

    def among(self, tensors: Iterable[Tensor]) -> Mapping[int, list[Tensor]]:
        """Some parameters by the number of their optimizer."""
        found: dict[int, list[Tensor]] = {}
        for tensor in tensors:
            found.setdefault(self.of(tensor), []).append(tensor)
        return found

    def named(self, number: int) -> str:
        """What messages call an optimizer."""
        if len(self.optimizers) == 1:
            return "the optimizer"
        return f"optimizer {number} ({type(self.optimizers[number]).__name__})"


def optimizers_of(given: Any) -> list[Optimizer]:
    """The torch optimizers that were given: one, or several in a list or tuple.

    Raises BadInput for anything else, for none at all, and where one is given twice.
    """
    every = list(given) if isinstance(given, list | tuple) else [given]
    found = [unwrapped(optimizer) for optimizer in every]
    if not found:
        raise BadInput(
            "optimizer must not be an empty list.",
            hint="Pass the training's optimizer, or a list of all of them.",
            field="optimizer",
        )
    if len({id(optimizer) for optimizer in found}) < len(found):
        raise BadInput("optimizer names the same optimizer twice.", hint="Pass each optimizer once.", field="optimizer")
    return found

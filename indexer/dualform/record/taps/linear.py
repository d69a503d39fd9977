"""The tap for nn.Linear: y = x W^T + b."""

from __future__ import annotations

from torch import Tensor, nn

from dualform.record.taps.module_tap import ModuleTap
from dualform.record.taps.product import saved_key


class TappedLinear(ModuleTap, module_type=nn.Linear):
    module: nn.Linear

    def __init__(self, name: str, module: nn.Linear, values: bool = True) -> None:
        super().__init__(name, module, values)
        self.stand_for("weight", "bias")

    def key_of(self, argument: Tensor) -> Tensor:
        return saved_key(argument)

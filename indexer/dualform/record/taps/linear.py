"""Linear layers: nn.Linear, and the Conv1D of Hugging Face's transformers."""

from __future__ import annotations

from torch import Tensor, nn

from dualform.record.taps.tap import ModuleTap
from dualform.record.taps.watcher import saved_key


class TappedLinear(ModuleTap, module_type=nn.Linear):
    module: nn.Linear

    def __init__(self, name: str, module: nn.Linear, values: bool = True) -> None:
        super().__init__(name, module, values)
        self.stand_for("weight", "bias")

    def key_of(self, argument: Tensor) -> Tensor:
        return saved_key(argument)


class TappedConv1DOfTransformers(ModuleTap, module_type="transformers.pytorch_utils.Conv1D"):
    def __init__(self, name: str, module: nn.Module, values: bool = True) -> None:
        super().__init__(name, module, values)
        self.stand_for("weight", "bias", transposed=True)

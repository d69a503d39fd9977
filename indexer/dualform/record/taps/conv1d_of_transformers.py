"""The tap for Hugging Face's Conv1D, which is a linear layer whose weight lies [d_in, d_out]: y = x W + b."""

from __future__ import annotations

from torch import nn

from dualform.record.taps.module_tap import ModuleTap


class TappedConv1DOfTransformers(ModuleTap, module_type="transformers.pytorch_utils.Conv1D"):
    def __init__(self, name: str, module: nn.Module, values: bool = True) -> None:
        super().__init__(name, module, values)
        self.stand_for("weight", "bias", transposed=True)

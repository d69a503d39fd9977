"""The tap for nn.Linear: y = x W^T + b."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from dualform.record.taps import Tap


class TappedLinear(Tap, module_type=nn.Linear):
    module: nn.Linear

    def __init__(self, name: str, module: nn.Linear) -> None:
        super().__init__(name, module)
        self.d_in, self.d_out = module.in_features, module.out_features
        self.weight, self.bias = module.weight, module.bias
        prefix = f"{name}." if name else ""
        self.weight_name = f"{prefix}weight"
        self.bias_name = None if module.bias is None else f"{prefix}bias"

    @staticmethod
    def refusal(module: nn.Module) -> str:
        if parametrize.is_parametrized(module):
            return "its weight is parametrized: the optimizer does not update the weight itself"
        if not isinstance(getattr(module, "weight", None), nn.Parameter):
            return "its weight is not a parameter yet, or is computed from others"
        if type(module).forward is not nn.Linear.forward or "forward" in vars(module):
            return f"{type(module).__name__} has a forward of its own"
        return ""

    @staticmethod
    def key_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        key: Tensor = args[0] if args else kwargs["input"]
        return key

"""The tap for nn.Linear: y = x W^T + b."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from dualform.record.module_tap import ModuleTap
from dualform.record.taps import Call
from dualform.store.layer import Parameter


class TappedLinear(ModuleTap, module_type=nn.Linear):
    module: nn.Linear

    def __init__(self, name: str, module: nn.Linear, values: bool = True) -> None:
        super().__init__(name, module, values)
        self.d_in, self.d_out = module.in_features, module.out_features
        self.parameters = {Parameter(self.parameter_name("weight"), 0, self.d_in): module.weight}
        if module.bias is not None:
            self.parameters[Parameter(self.parameter_name("bias"), self.d_in, self.d_in + 1)] = module.bias

    @classmethod
    def refusal(cls, module: nn.Module) -> str:
        if parametrize.is_parametrized(module):
            return "its weight is parametrized: the optimizer does not update the weight itself"
        if not isinstance(getattr(module, "weight", None), nn.Parameter):
            return "its weight is not a parameter yet, or is computed from others"
        if type(module).forward is not nn.Linear.forward or "forward" in vars(module):
            return f"{type(module).__name__} has a forward of its own"
        return ""

    def call_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Call:
        argument: Tensor = args[0] if args else kwargs["input"]
        # Under autocast the product used the cast, and the key's own type says what it was computed in.
        return Call(argument.detach().to(output.dtype), (output,), raw=not argument.requires_grad)

    def output_of(self, outputs: tuple[Tensor, ...]) -> Tensor:
        return outputs[0]

    def error_of(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
        (error,) = gradients
        assert error is not None
        return error

"""The taps for nn.Conv1d, 2d and 3d: y = W p + b at each place of the output, and the key p is the input's patch there.

Shapes: B feature maps [C, *size] of one to three dimensions; P = prod(places) places of the output;
d_in = C prod(kernel), channels first; n = B P slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import pad

from dualform.record.feature_maps import ConvolutionGeometry, FeatureMaps
from dualform.record.taps.module_tap import ModuleTap
from dualform.record.taps.tap import Call


class TappedConvolution(ModuleTap):
    """What nn.Conv1d, 2d and 3d share."""

    module: nn.Conv1d | nn.Conv2d | nn.Conv3d

    def __init__(self, name: str, module: nn.Conv1d | nn.Conv2d | nn.Conv3d, values: bool = True) -> None:
        super().__init__(name, module, values)
        self.stand_for("weight", "bias", groups=module.groups)
        self.batch_dim = 0
        self._padded = module.padding_mode != "zeros" or isinstance(module.padding, str)
        """Whether maps are padded before they are handed over: the store pads by zeros, alike on both sides."""
        padding = (0,) * len(module.kernel_size) if self._padded else module.padding
        zeros = tuple(map(int, padding))
        convolution = ConvolutionGeometry(module.kernel_size, module.stride, zeros, module.dilation)
        self.key_form = FeatureMaps(convolution, module.groups)

    @classmethod
    def refusal(cls, module: nn.Module) -> str:
        assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        if module.groups > 1 and any(True for _ in module.children()):
            return f"it holds modules, whose names would be those of its {module.groups} groups"
        return super().refusal(module)

    def call_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Call:
        argument: Tensor = args[0] if args else kwargs["input"]
        maps = argument.detach()
        if self._padded:
            mode = "constant" if self.module.padding_mode == "zeros" else self.module.padding_mode
            maps = pad(maps, self.module._reversed_padding_repeated_twice, mode)
        maps = maps.to(output.dtype)  # last: autocast pads in float32
        return Call(self._batched(maps), (output,), raw=not argument.requires_grad, argument=argument)

    def error_of(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
        error = super().error_of(key, kept, gradients)
        return self._batched(error).flatten(2).transpose(1, 2)

    def _batched(self, maps: Tensor) -> Tensor:
        """[B, C, *size]: a call may have no axis for the batch."""
        return maps if maps.dim() == len(self.module.kernel_size) + 2 else maps[None]


class TappedConv1d(TappedConvolution, module_type=nn.Conv1d):
    pass


class TappedConv2d(TappedConvolution, module_type=nn.Conv2d):
    pass


class TappedConv3d(TappedConvolution, module_type=nn.Conv3d):
    pass

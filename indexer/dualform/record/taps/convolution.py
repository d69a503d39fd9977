"""Convolutions and transposed convolutions.

The taps for nn.ConvTranspose1d, 2d and 3d: a place x of the input brings the patch W^T x to the output.

Shapes: B inputs [C, *size] of one to three dimensions; outputs of O channels; n = B prod(size) slots, d_in = C,
d_out = O prod(kernel), channels first.

Patches that lie over one another add up, and the bias is added once a number of the output, not once a patch: it is no
part of [W | b].

The taps for nn.Conv1d, 2d and 3d: y = W p + b at each place of the output, and the key p is the input's patch there.

Shapes: B feature maps [C, *size] of one to three dimensions; P = prod(places) places of the output;
d_in = C prod(kernel), channels first; n = B P slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import pad

from dualform.record.layout import ConvolutionGeometry, FeatureMaps, KeyForm
from dualform.record.taps.tap import Call, ModuleTap


class _OfMaps(ModuleTap):
    """A layer of feature maps."""

    module: Any

    def batched(self, maps: Tensor) -> Tensor:
        """[B, C, *size]: a call may have no axis for the batch."""
        return maps if maps.dim() == len(self.module.kernel_size) + 2 else maps[None]


class TappedConvolution(_OfMaps):
    """What nn.Conv1d, 2d and 3d share."""

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
        return Call(self.batched(maps), (output,), raw=not argument.requires_grad, argument=argument)

    def error_of(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
        error = super().error_of(key, kept, gradients)
        return self.batched(error).flatten(2).transpose(1, 2)


class TappedConv1d(TappedConvolution, module_type=nn.Conv1d):
    pass


class TappedConv2d(TappedConvolution, module_type=nn.Conv2d):
    pass


class TappedConv3d(TappedConvolution, module_type=nn.Conv3d):
    pass


class TappedTransposedConvolution(_OfMaps):
    """What nn.ConvTranspose1d, 2d and 3d share."""

    def __init__(
        self, name: str, module: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d, values: bool = True
    ) -> None:
        super().__init__(name, module, values)
        self.stand_for("weight", None, transposed=True)
        self.batch_dim = 0
        self.key_form = OutputPlaces()
        zeros = tuple(map(int, module.padding))
        self._convolution = ConvolutionGeometry(module.kernel_size, module.stride, zeros, module.dilation)

    @classmethod
    def refusal(cls, module: nn.Module) -> str:
        assert isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)
        if module.groups > 1:
            return f"it is a transposed convolution in {module.groups} groups"
        return super().refusal(module)

    def call_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Call:
        argument: Tensor = args[0] if args else kwargs["input"]
        key = self.batched(argument.detach().to(output.dtype)).movedim(1, -1)
        return Call(key, (output,), raw=not argument.requires_grad, argument=argument)

    def error_of(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
        patches = self._convolution.of(self.batched(super().error_of(key, kept, gradients)))
        for axis, size in enumerate(key.shape[1:-1], 1):  # output_padding may leave room for more of them
            patches = patches.narrow(axis, 0, size)
        return patches


class TappedConvTranspose1d(TappedTransposedConvolution, module_type=nn.ConvTranspose1d):
    pass


class TappedConvTranspose2d(TappedTransposedConvolution, module_type=nn.ConvTranspose2d):
    pass


class TappedConvTranspose3d(TappedTransposedConvolution, module_type=nn.ConvTranspose3d):
    pass


class OutputPlaces(KeyForm):
    """Keys [B, *size, C] become float32[B prod(size), C]."""

    space = "patch"
    batch_axis = 0

    def __init__(self) -> None:
        self._size: tuple[int, ...] = ()

    @property
    def places(self) -> tuple[int, ...]:
        return self._size

    def begin(self) -> None:
        self._size = ()

    def leading(self, key: Tensor) -> tuple[int, ...]:
        return len(key), prod(key.shape[1:-1])

    def width(self, key: Tensor) -> int:
        self._size = self._size or tuple(key.shape[1:-1])
        return key.shape[-1]

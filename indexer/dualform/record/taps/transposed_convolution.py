"""The taps for nn.ConvTranspose1d, 2d and 3d: a place x of the input brings the patch W^T x to the output.

Shapes: B inputs [C, *size] of one to three dimensions; outputs of O channels; n = B prod(size) slots, d_in = C,
d_out = O prod(kernel), channels first.

Patches that lie over one another add up, and the bias is added once a number of the output, not once a patch: it is no
part of [W | b].
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import Tensor, nn

from dualform.record.feature_maps import ConvolutionGeometry
from dualform.record.key_form import KeyForm
from dualform.record.taps.module_tap import ModuleTap
from dualform.record.taps.tap import Call


class TappedTransposedConvolution(ModuleTap):
    """What nn.ConvTranspose1d, 2d and 3d share."""

    module: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d

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
        key = self._batched(argument.detach().to(output.dtype)).movedim(1, -1)
        return Call(key, (output,), raw=not argument.requires_grad, argument=argument)

    def error_of(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
        patches = self._convolution.of(self._batched(super().error_of(key, kept, gradients)))
        for axis, size in enumerate(key.shape[1:-1], 1):  # output_padding may leave room for more of them
            patches = patches.narrow(axis, 0, size)
        return patches

    def _batched(self, maps: Tensor) -> Tensor:
        """[B, C, *size]: a call may have no axis for the batch."""
        return maps if maps.dim() == len(self.module.kernel_size) + 2 else maps[None]


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

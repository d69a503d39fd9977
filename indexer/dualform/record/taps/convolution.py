"""The taps for nn.Conv1d, 2d and 3d: y = W p + b at each place of the output, and the key p is the input's patch there.

Shapes: B feature maps [C, *size] of one to three dimensions; P = prod(places) places of the output;
d_in = C prod(kernel), channels first; n = B P slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from dualform.errors import BadInput
from dualform.record.key_form import KeyForm
from dualform.record.projection import Directions, Doubles, Outer
from dualform.record.shape import Shape
from dualform.record.taps.tap import Call, ModuleTap
from dualform.store.parameter import Parameter

_AT_ONCE = 1 << 22
"""Numbers of patches that are unfolded at once; one feature map in any case."""


class TappedConvolution(ModuleTap):
    """What nn.Conv1d, 2d and 3d share."""

    module: nn.Conv1d | nn.Conv2d | nn.Conv3d

    def __init__(self, name: str, module: nn.Conv1d | nn.Conv2d | nn.Conv3d, values: bool = True) -> None:
        super().__init__(name, module, values)
        self.stand_for("weight", "bias")
        self.batch_dim = 0
        self._padded = module.padding_mode != "zeros" or isinstance(module.padding, str)
        """Whether maps are padded before they are handed over: the store pads by zeros, alike on both sides."""
        padding = (0,) * len(module.kernel_size) if self._padded else module.padding
        self.key_form = FeatureMaps(module.kernel_size, module.stride, padding, module.dilation)

    @classmethod
    def refusal(cls, module: nn.Module) -> str:
        assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        if module.groups > 1:
            return f"its channels are convolved in {module.groups} groups"
        return super().refusal(module)

    def call_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Call:
        argument: Tensor = args[0] if args else kwargs["input"]
        maps = argument.detach()
        if self._padded:
            mode = "constant" if self.module.padding_mode == "zeros" else self.module.padding_mode
            maps = pad(maps, self.module._reversed_padding_repeated_twice, mode)
        maps = maps.to(output.dtype)  # last: autocast pads in float32
        return Call(self._batched(maps), (output,), raw=not argument.requires_grad)

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


class FeatureMaps(KeyForm):
    """Keys [B, C, *size] stay what they are, float32: the patches of each are P slots."""

    space = "patch"
    batch_axis = 0

    def __init__(
        self, kernel: tuple[int, ...], stride: tuple[int, ...], padding: Sequence[int | str], dilation: tuple[int, ...]
    ) -> None:
        self._sizes = {"kernel": kernel, "stride": stride, "padding": tuple(map(int, padding)), "dilation": dilation}
        self._shape: tuple[int, ...] = ()

    def source_of(self, dtype: torch.dtype) -> str:
        return "patches"

    @property
    def geometry(self) -> Mapping[str, tuple[int, ...]]:
        return {"shape": self._shape, **self._sizes}

    @property
    def places(self) -> tuple[int, ...]:
        return self._places(self._shape)

    def _places(self, shape: Sequence[int]) -> tuple[int, ...]:
        sides = zip(shape[1:], *self._sizes.values(), strict=True)
        return tuple((size + 2 * padding - far * (k - 1) - 1) // step + 1 for size, k, step, padding, far in sides)

    def begin(self) -> None:
        self._shape = ()

    def leading(self, key: Tensor) -> tuple[int, ...]:
        return len(key), prod(self._places(key.shape[1:]))

    def width(self, key: Tensor) -> int:
        """0 for maps of another size than the first ones: they are no rows of the same layer."""
        self._shape = self._shape or tuple(key.shape[1:])
        return self._shape[0] * prod(self._sizes["kernel"]) if tuple(key.shape[1:]) == self._shape else 0

    def described(self, key: Tensor) -> str:
        return f"feature maps of {list(key.shape[1:])}"

    def owned(self, key: Tensor) -> Tensor:
        return key.to("cpu", torch.float32, copy=True, memory_format=torch.contiguous_format)

    def laid(self, keys: Tensor, shape: Shape, kept: NDArray[np.int64] | None) -> Tensor:
        if kept is not None:
            raise BadInput(
                f"mask leaves out places of space {shape.space.name!r}, whose keys are patches of whole feature maps.",
                hint="Say it of other spaces alone: step(at={'token': {'mask': …}}).",
                field="mask",
            )
        return keys

    def add_outer(self, directions: Directions, keys: Tensor, errors: Tensor, block: Parameter, to: Doubles) -> Outer:
        return self.add_blocks(directions, keys, errors, block, to)

    def blocks(self, keys: Tensor) -> Iterator[tuple[slice, Tensor]]:
        each = prod(self._places(keys.shape[1:]))
        size = max(1, _AT_ONCE // max(1, each * keys.shape[1] * prod(self._sizes["kernel"])))
        for start in range(0, max(1, len(keys)), size):
            rows = self._patches(keys[start : start + size])
            yield slice(start * each, start * each + len(rows)), rows

    def _patches(self, maps: Tensor) -> Tensor:
        """[B P, d_in]: the patch at each place of each map."""
        kernel, stride, padding, dilation = self._sizes.values()
        windows = pad(maps, [zeros for own in reversed(padding) for zeros in (own, own)]) if any(padding) else maps
        for axis, (size, step, far) in enumerate(zip(kernel, stride, dilation, strict=True), 2):
            windows = windows.unfold(axis, far * (size - 1) + 1, step)[..., ::far]
        return windows.movedim(1, 1 + len(kernel)).reshape(-1, maps.shape[1] * prod(kernel))

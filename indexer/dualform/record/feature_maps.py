"""Feature maps whose patches are keys, or values: as a convolution takes them of its input.

Shapes: B feature maps [C, *size] of one to three dimensions; P = prod(places) patches of each, of C prod(kernel)
numbers, channels first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from dualform.errors import BadInput
from dualform.record.key_form import KeyForm
from dualform.record.projection import Directions, Doubles, OuterSum
from dualform.record.shape import Shape
from dualform.store.parameter import Parameter

_AT_ONCE = 1 << 22
"""Numbers of patches that are unfolded at once; one feature map in any case."""


@dataclass(frozen=True)
class ConvolutionGeometry:
    """Which patches a convolution takes; a number of each dimension but the channels'."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    """Zeros on each side."""
    dilation: tuple[int, ...]

    def places(self, size: Sequence[int]) -> tuple[int, ...]:
        """How many patches a map of that size has along each dimension."""
        sides = zip(size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return tuple((own + 2 * zeros - far * (k - 1) - 1) // step + 1 for own, k, step, zeros, far in sides)

    def width(self, channels: int) -> int:
        """Numbers of a patch."""
        return channels * prod(self.kernel)

    def of(self, maps: Tensor) -> Tensor:
        """[B, *places, C prod(kernel)] of [B, C, *size]."""
        zeros = [own for both in reversed(self.padding) for own in (both, both)]
        windows = pad(maps, zeros) if any(zeros) else maps
        for axis, (k, step, far) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True), 2):
            windows = windows.unfold(axis, far * (k - 1) + 1, step)[..., ::far]
        return windows.movedim(1, 1 + len(self.kernel)).flatten(1 + len(self.kernel))


class FeatureMaps(KeyForm):
    """Keys [B, C, *size] stay what they are, float32: the patches of each are P slots."""

    space = "patch"
    batch_axis = 0

    def __init__(self, convolution: ConvolutionGeometry, groups: int = 1) -> None:
        self.convolution, self.groups = convolution, groups
        self._shape: tuple[int, ...] = ()

    def source_of(self, dtype: torch.dtype) -> str:
        return "patches"

    @property
    def geometry(self) -> Mapping[str, tuple[int, ...]]:
        return {"shape": self._shape, **vars(self.convolution)}

    @property
    def places(self) -> tuple[int, ...]:
        return self.convolution.places(self._shape[1:])

    def begin(self) -> None:
        self._shape = ()

    def leading(self, key: Tensor) -> tuple[int, ...]:
        return len(key), prod(self.convolution.places(key.shape[2:]))

    def width(self, key: Tensor) -> int:
        """0 for maps of another size than the first ones: they are no rows of the same layer."""
        self._shape = self._shape or tuple(key.shape[1:])
        return self.convolution.width(self._shape[0]) if tuple(key.shape[1:]) == self._shape else 0

    def described(self, key: Tensor) -> str:
        return f"feature maps of {list(key.shape[1:])}"

    def owned(self, key: Tensor) -> Tensor:
        return key.to("cpu", torch.float32, copy=True, memory_format=torch.contiguous_format)

    def laid(self, keys: Tensor, shape: Shape, kept: NDArray[np.int64] | None) -> Tensor:
        if kept is not None:
            raise BadInput(
                f"mask cannot leave out places of space {shape.space.name!r}: its keys are patches of feature maps.",
                hint="Pass it only for other spaces: step(at={'token': {'mask': …}}).",
                field="mask",
            )
        return keys

    def add_outer(
        self, directions: Directions, keys: Tensor, errors: Tensor, block: Parameter, to: Doubles
    ) -> OuterSum:
        return self.add_blocks(directions, keys, errors, block, to)

    def blocks(self, keys: Tensor) -> Iterator[tuple[slice, Tensor]]:
        each, width = prod(self.convolution.places(keys.shape[2:])), self.convolution.width(keys.shape[1])
        size = max(1, _AT_ONCE // max(1, each * width))
        for start in range(0, max(1, len(keys)), size):
            rows = self.convolution.of(keys[start : start + size]).reshape(-1, width)
            yield slice(start * each, start * each + len(rows)), rows

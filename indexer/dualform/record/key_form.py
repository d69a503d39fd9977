"""How the keys of a tap lie, from its calls to the store. As rows of numbers, unless a kind of layer says otherwise.

Shapes: n slots of a call, d_in and d_out of the layer; `...` the dimensions of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.record.projection import Directions, Doubles, OuterSum, full_precision
from dualform.record.shape import Shape, laid_out
from dualform.rules.half_precision import UNIT_ROUNDOFF
from dualform.store.parameter import Parameter

SLOTS_AT_ONCE = 1024
"""Whose chosen columns, or terms of chosen entries, are made at once."""
HALVED: dict[torch.dtype, str] = {getattr(torch, name): name for name in UNIT_ROUNDOFF}
"""Types of half of float32's bytes, by the name that the store has for them, and for keys of them."""


def why_not_numbers(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Why a layer of these parameters, by name, is not recorded; empty if they are of types that are."""
    types = (torch.float32, torch.float64, *HALVED)
    other = next(((name, own.dtype) for name, own in tensors if own.dtype not in types), None)
    if other is None:
        return ""
    return f"its {other[0]} is {str(other[1]).removeprefix('torch.')}, and what is recorded is float16 to float64"


class KeyForm:
    """Keys [..., d_in] become float32[n, d_in]."""

    space: ClassVar[str] = ""
    """The space of its slots where the layers that share it are alike (`places`), each having one of its own where they
    are not; empty where slots are rows of a batch or of its tokens.
    """
    batch_axis: ClassVar[int | None] = None
    """Which axis of `leading` is the batch, whatever is said of it; None where it is to be found out."""
    groups: int = 1
    """In how many parts keys lie, each of which makes outputs of its own, as a convolution's groups of channels."""
    looks_up: ClassVar[bool] = False
    """Whether keys may be none of the batch's rows (`shared`), and so tell nothing of how many rows it has."""

    def source_of(self, dtype: torch.dtype) -> str:
        """The store's key source for them (store/sources/); `dtype`: what the training computed the layer in."""
        return HALVED.get(dtype, "rows")

    @property
    def geometry(self) -> Mapping[str, tuple[int, ...]]:
        """What the key source has to know of the layer."""
        return {}

    @property
    def places(self) -> tuple[int, ...]:
        """Of layers that share a `space`: the sizes that are the same of all of them, as those of an output."""
        return ()

    def begin(self) -> None:
        """A recording begins: nothing was seen yet."""

    def leading(self, key: Tensor) -> tuple[int, ...]:
        """The dimensions of a call's slots: (B,), (B, L...), or (L, B, ...)."""
        return tuple(key.shape[:-1]) or (1,)

    def width(self, key: Tensor) -> int:
        """What d_in would be of a layer with such a key."""
        return key.shape[-1]

    def described(self, key: Tensor) -> str:
        """A key for messages."""
        return f"{self.width(key)} numbers"

    def owned(self, key: Tensor) -> Tensor:
        """The keys of a call in memory of our own: the training may overwrite its buffers."""
        return owned_rows(key, key.shape[-1])

    def shared(self, keys: Tensor, leading: tuple[int, ...]) -> bool:
        """Whether the keys of a call, as `owned` made them, show that they are none of single rows of the batch."""
        return False

    def laid(self, keys: Tensor, shape: Shape, kept: NDArray[np.int64] | None) -> Tensor:
        """The keys as slots lie, row after row; `kept`: the slots that stay, None for all."""
        return laid_rows(keys, shape, kept)

    def blocks(self, keys: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Slots, and their keys as float32[m, d_in]; few enough at once that they need no great memory."""
        yield slice(0, len(keys)), keys

    def columns(self, keys: Tensor, chosen: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Slots, a matrix float32[m, c] of theirs, and int64: where in it each chosen column of their keys lies."""
        for slots, own in self.blocks(keys):
            yield slots, own, chosen

    def add_outer(
        self, directions: Directions, keys: Tensor, errors: Tensor, block: Parameter, to: Doubles
    ) -> OuterSum:
        """Add what slots bring to a block, as it is stored, along directions; see Directions.add_outer."""
        return add_rows(directions, keys, errors, block, to)

    def add_blocks(
        self, directions: Directions, keys: Tensor, errors: Tensor, block: Parameter, to: Doubles
    ) -> OuterSum:
        """As `add_outer`, of keys that are made a few at once."""
        if self.groups > 1:
            parts = [add_groups(directions, own, errors[s], self.groups, to) for s, own in self.blocks(keys)]
        else:
            parts = [add_rows(directions, own, errors[s], block, to) for s, own in self.blocks(keys)]
        return OuterSum.added(parts)


def add_groups(directions: Directions, keys: Tensor, errors: Tensor, groups: int, to: Doubles) -> OuterSum:
    """As `KeyForm.add_outer`, of float32[n, d_in] and a weight of so many blocks along its diagonal."""
    along = torch.from_numpy(directions.project(keys.reshape(len(keys) * groups, -1))).view(len(keys), groups, -1)
    with full_precision():
        wide = errors.double().view(len(errors), groups, -1)
        to += torch.einsum("tgo,tgr->gor", wide, along).reshape(-1).numpy()
        of_keys, of_errors = along.square().sum((0, 2)), wide.square().sum((0, 2))
        square = float(of_errors.sum())
        # What bounds the sum's norm: no slot's key meets the errors of other groups.
        met = float(of_errors @ of_keys) / square if square else 0.0
        return OuterSum(wide.sum(0).reshape(-1).numpy(), square, met)


def add_rows(directions: Directions, keys: Tensor, errors: Tensor, block: Parameter, to: Doubles) -> OuterSum:
    """As `KeyForm.add_outer`, of float32[n, d_in]."""
    own = keys if keys.shape[1] == block.stop - block.start else keys[:, block.start : block.stop]
    if block.transposed:  # the sum over slots of x (delta R)^T
        return directions.add_outer(errors, own, to)
    return directions.add_outer(own, errors, to)


def owned_rows(tensor: Tensor, width: int) -> Tensor:
    """float32[n, width], copied."""
    if tensor.dtype == torch.float32 and tensor.is_cpu and tensor.dim() == 2:
        return tensor.clone(memory_format=torch.contiguous_format)
    copied = torch.empty((tensor.numel() // width, width), dtype=torch.float32, device="cpu")
    return copied.copy_(tensor.reshape(-1, width))


def laid_rows(rows: Tensor, shape: Shape, kept: NDArray[np.int64] | None) -> Tensor:
    """[n, width] as slots lie."""
    lying = laid_out(rows, shape)
    return lying.contiguous() if kept is None else lying[torch.from_numpy(kept)]

"""How the rows of a call lie: spaces, shapes, keys and feature maps, and the signal that a call brings.

What one call of a layer brings to a step. Shapes: B rows, `L...` token dimensions, d_in and d_out of a layer.

Feature maps whose patches are keys, or values: as a convolution takes them of its input.

Shapes: B feature maps [C, *size] of one to three dimensions; P = prod(places) patches of each, of C prod(kernel)
numbers, channels first.

How the keys of a tap lie, from its calls to the store. As rows of numbers, unless a kind of layer says otherwise.

Shapes: n slots of a call, d_in and d_out of the layer; `...` the dimensions of a batch.

The shape of one call of a space, and how its rows come to lie as slots.

Shapes: B rows, `L...` token dimensions, n slots of an extent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from dualform.errors import BadInput
from dualform.record.lineage import Known, Place
from dualform.record.projection import Directions, Doubles, OuterSum, full_precision
from dualform.rules.half_precision import UNIT_ROUNDOFF
from dualform.store.batch import Product
from dualform.store.layer import Parameter


class AxisSource(Enum):
    """How it is known which axis of the keys in a space is the batch."""

    ASSUMED = "nothing tells: it is taken for the first"
    BATCHES = "a batch that was not square fitted its metadata"
    LAYERS = "all of its layers know their own axes, by kind or by batch_dim"
    MODULE = "the module of a layer knows it, as batch_first"
    ARGUMENT = "batch_dim was passed for the space"
    LAYER_KIND = "its layers can only have this one: batch_dim of the space is ignored"


@dataclass
class RecordedSpace:
    """One space, as its layers' first keys showed it."""

    name: str
    tokens: bool
    """Whether a row has positions: some layer's key has more than the batch's axis before its last."""
    routed: bool
    axis: int = 0
    """Which axis of those layers' keys is the batch."""
    source: AxisSource = AxisSource.LAYER_KIND
    teller: str = ""
    """The layer whose module tells the axis."""


@dataclass(frozen=True, eq=False)
class Shape:
    """One call of a space: its slots lie row after row."""

    space: RecordedSpace
    call: int
    leading: tuple[int, ...]
    """(B,), or (B, L...) where the space has tokens."""
    moved: int
    """The axis that the batch had in the training."""
    untold: bool = False
    """Nothing tells which axis is the batch, so that no entry can be given to its rows."""
    order: Tensor | None = None
    """int64[n]: which of the rows as they came is each slot; None if `moved` tells."""
    place: Place | None = None
    """Where the slots stood in the batch, of a call whose rows are not the batch's or are not known: as they came."""

    @property
    def rows(self) -> int:
        return self.leading[0]

    @property
    def length(self) -> int | None:
        """Positions of a row, over all token dimensions; None where a slot is a row."""
        return prod(self.leading[1:]) if self.space.tokens else None

    @property
    def slots(self) -> int:
        return prod(self.leading)

    def __str__(self) -> str:
        return str(list(self.leading))


def turned(leading: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """`leading`, whose batch is `axis`, with the batch first."""
    return (leading[1], leading[0], *leading[2:]) if axis and len(leading) > 1 else leading


def square(leading: Sequence[int]) -> bool:
    """Whether the two axes that may be the batch are equally long, and more than one entry."""
    return len(leading) > 1 and leading[0] == leading[1] > 1


def oblong(leading: Sequence[int]) -> bool:
    """Whether a batch shows its axes: neither square nor one entry long."""
    return len(leading) > 1 and leading[0] != leading[1] and min(leading[:2]) > 1


def misfit(name: str, entry: tuple[int, ...], shapes: Sequence[Shape]) -> BadInput:
    """An entry that fits no call of the step."""
    seen = " and ".join(dict.fromkeys(f"{shape} ({shape.space.name})" for shape in shapes))
    several = max((shape.call for shape in shapes), default=0)
    hint = "Pass one value, one for each row [B], or one for each token [B, L]."
    if several:
        hint += " Put each micro-batch into its own recorder.step, of which only the last one updates."
    elif any(shape.space.tokens for shape in shapes):
        hint += " If the batch is the second axis of the layers' inputs, pass batch_dim=1."
    return BadInput(
        f"{name} has shape {list(entry)}, but the recorded layers saw batches of {seen}.", hint=hint, field=name
    )


def laid_out(tensor: Tensor, shape: Shape) -> Tensor:
    """[n, width] as it came, as slots lie: row after row."""
    if shape.order is not None:
        return tensor[shape.order]
    if not shape.moved or len(shape.leading) < 2:
        return tensor
    rows, length, *rest = shape.leading
    return tensor.view(length, rows, *rest, tensor.shape[-1]).transpose(0, 1).reshape(shape.slots, -1)


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
    if tensor.dtype == torch.float32 and tensor.is_cpu and (tensor.dim() == 2 or tensor.is_contiguous()):
        return tensor.reshape(-1, width).clone(memory_format=torch.contiguous_format)
    copied = torch.empty((tensor.numel() // width, width), dtype=torch.float32, device="cpu")
    return copied.copy_(tensor.reshape(-1, width))


def laid_rows(rows: Tensor, shape: Shape, kept: NDArray[np.int64] | None) -> Tensor:
    """[n, width] as slots lie."""
    lying = laid_out(rows, shape)
    return lying.contiguous() if kept is None else lying[torch.from_numpy(kept)]


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


@dataclass
class Signal:
    """Key and error signal of one call of a layer, in memory of our own: the training may overwrite its buffers."""

    keys: Tensor
    """As they came, in their form: float32[B * L..., d_in] of rows."""
    errors: Tensor | None
    """float32[B * L..., d_out]; where no values are wanted, None or what holds NaN or infinity."""
    leading: tuple[int, ...]
    """(B,) or (B, L...); (L, B, ...) where the batch is the second axis."""
    dtype: torch.dtype
    """What the training computed in."""
    form: KeyForm
    product: Product | None = None
    """How its part of a gradient was rounded; None where it was not, or where nobody knows."""
    rows: Known | None = None
    """What is known of the rows that the key holds; None for the batch's in their order, as far as was seen."""

    def add(self, other: Signal) -> None:
        """Of a second backward pass through the same call: gradients add up."""
        if self.errors is None or other.errors is None:
            self.errors = other.errors if self.errors is None else self.errors
            return
        self.errors = self.errors + other.errors
        self.product = None  # each was rounded on its own

    def copied(self) -> Signal:
        """Another, that may be added to."""
        return replace(self)

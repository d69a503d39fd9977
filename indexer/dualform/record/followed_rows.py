"""Which rows of a batch, or tokens of it, a tensor of a forward pass holds, as far as it can be followed.

    flat = x.view(-1, d)          the rows of x, as they lie: the same memory tells
    flat[numbers]                 some of them; so does a choice of a choice
    x.transpose(0, 1), x * 2      nothing is known of these

A tensor is known again by its memory, its layout and its version, so that nothing that was written to since is taken
for what it was. Which rows of the batch those are is told by a layer that took the tensor as its key.

A version rises with every write that autograd sees, and with none through `.data` or NumPy: a tensor whose rows such
a write puts in another order is still taken for what it was, and slots get the rows of others.

Shapes: n rows of a tensor, over all axes but its last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from dualform.record.shape import Shape, laid_out, square, turned

_ROW_BY_ROW = frozenset(
    ("reshape", "view", "flatten", "squeeze", "unsqueeze", "contiguous", "clone", "detach", "to", "type", "float")
)
"""Functions of torch that leave each row what it was, where width and number of rows stay."""


@dataclass(eq=False)
class Origin:
    """A tensor that was made of nothing that is followed."""

    count: int
    """Its rows."""
    given: tuple[int, ...] = ()
    """Its axes but the last, where a module was given it with more than one of them."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Those of an origin that a tensor holds."""

    origin: Origin
    numbers: Tensor | None = None
    """int64[n]; None for all, in their order."""

    def chosen(self, numbers: Tensor) -> Rows:
        """Some of them, by their numbers here."""
        own = self.numbers
        return Rows(self.origin, numbers if own is None else own.to(numbers.device)[numbers])

    def slots(
        self, whole: Mapping[Origin, Sequence[Shape]], shapes: Sequence[Shape]
    ) -> tuple[Shape, NDArray[np.int64]] | None:
        """The call whose slots these rows are among, and their places there, int64[n]; None where they are in doubt.

        `whole`: of calls of the batch's own layers, those whose key was all of an origin; `shapes`: of all calls.
        """
        own = whole.get(self.origin) or _alike(self.origin.given, shapes)
        found = {(shape.leading, shape.moved, shape.length): shape for shape in own}
        if len(found) != 1 or any(shape.untold or shape.slots != self.origin.count for shape in own):
            return None
        (shape,) = found.values()
        slots = laid_out(torch.arange(shape.slots, device="cpu").unsqueeze(-1), shape).flatten().argsort().numpy()
        return shape, slots if self.numbers is None else slots[self.numbers.cpu().numpy()]


def _alike(given: tuple[int, ...], shapes: Sequence[Shape]) -> list[Shape]:
    """The calls with tokens whose keys lay as a tensor that a module was given."""
    if not given or square(given):
        return []
    return [
        shape
        for shape in shapes
        if not shape.space.routed and shape.length is not None and turned(shape.leading, shape.moved) == given
    ]


@dataclass(frozen=True)
class _Layout:
    """How a tensor lies in its memory."""

    offset: int
    width: int
    rows: int
    strides: tuple[tuple[int, ...], tuple[int, ...]] | None
    """None where its rows follow one another."""
    dtype: torch.dtype
    version: int

    def holds(self, other: _Layout) -> bool:
        """Whether another's rows are some of these, after one another."""
        if self.strides or other.strides or self.width != other.width:
            return False
        alike = (self.dtype, self.version) == (other.dtype, other.version)
        first, rest = divmod(other.offset - self.offset, self.width)
        return alike and rest == 0 and first >= 0 and first + other.rows <= self.rows


@dataclass
class _Memory:
    storage: StorageWeakRef
    """While it is held, no other memory has the same address."""
    tensors: dict[_Layout, Rows] = field(default_factory=dict)


class FollowedRows:
    """Of the tensors of one step."""

    def __init__(self) -> None:
        self._memories: dict[int, _Memory] = {}

    def of(self, tensor: Tensor) -> Rows | None:
        """What a tensor holds, which is an origin where nothing else is known; None for what has no rows."""
        layout = _layout_of(tensor)
        if layout is None:
            return None
        tensors = self._in(tensor)
        if layout not in tensors:
            around = next((known for known in tensors if known.holds(layout)), None)
            if around is None:
                tensors[layout] = Rows(Origin(layout.rows))
            else:
                first = (layout.offset - around.offset) // layout.width
                tensors[layout] = tensors[around].chosen(torch.arange(first, first + layout.rows, device="cpu"))
        return tensors[layout]

    def given(self, args: Sequence[Any]) -> None:
        """A module is called with these."""
        for tensor in args:
            if isinstance(tensor, Tensor) and tensor.dim() > 2 and tensor.is_floating_point():
                rows = self.of(tensor)
                if rows is not None and rows.numbers is None:
                    rows.origin.given = tuple(tensor.shape[:-1])

    def called(self, name: str, args: Sequence[Any], output: Any) -> None:
        """A function of torch was called with these arguments, and answered `output`."""
        source = args[0] if args else None
        if not (isinstance(output, Tensor) and isinstance(source, Tensor)) or min(output.dim(), source.dim()) < 2:
            return
        numbers = _numbers(name, source, args[1:])
        same = name in _ROW_BY_ROW and (source.shape[-1], source.numel()) == (output.shape[-1], output.numel())
        if numbers is None and not same:
            return
        rows, layout = self.of(source), _layout_of(output)
        if rows is not None and layout is not None:
            self._in(output)[layout] = rows if numbers is None else rows.chosen(numbers)

    def _in(self, tensor: Tensor) -> dict[_Layout, Rows]:
        """What is known of the tensors in one's memory."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._memories:
            self._memories[storage._cdata] = _Memory(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        return self._memories[storage._cdata].tensors


def _layout_of(tensor: Tensor) -> _Layout | None:
    if tensor.dim() < 2 or not tensor.numel() or tensor.layout != torch.strided or tensor.is_inference():
        return None
    plain = tensor.is_contiguous()
    return _Layout(
        int(tensor.storage_offset()),
        tensor.shape[-1],
        tensor.numel() // tensor.shape[-1],
        None if plain else (tuple(tensor.shape), tensor.stride()),
        tensor.dtype,
        tensor._version,
    )


def _numbers(name: str, source: Tensor, rest: Sequence[Any]) -> Tensor | None:
    """int64[n]: which rows of a matrix a function chose; None where it did no such thing."""
    index = None
    if source.dim() == 2 and name == "index_select" and len(rest) == 2:
        index = rest[1] if rest[0] == 0 else None
    elif source.dim() == 2 and name == "__getitem__":
        parts = rest[0] if isinstance(rest[0], tuple) else rest
        index = parts[0] if len(parts) == 1 or (len(parts) == 2 and parts[1] == slice(None)) else None
    if not isinstance(index, Tensor) or index.dim() != 1 or index.is_floating_point():
        return None
    if index.element_size() == 1:  # a mask, of bool or uint8
        return index.detach().nonzero().flatten()
    numbers = index.detach().long()
    return numbers.where(numbers >= 0, numbers + len(source))

"""Where the entries of a tensor of a forward pass came from: a source tensor, and what moved its entries since.

A source is a tensor that nothing moved on the way from the model's arguments: its rows are taken for the batch in its
order. Coordinates say, for each entry of a tensor, where it stood along each axis of the source:

    x                         [B, L, d]     row (B, 1, 1), place (1, L, 1), column (1, 1, d)
    x.transpose(0, 1)         [L, B, d]     row (1, B, 1), place (L, 1, 1), column (1, 1, d)
    ….reshape(-1, d)          [L * B, d]    row (L * B, 1), place (L * B, 1), column (1, d)

An axis along which a coordinate does not change has length 1 there, so that columns cost nothing. Most coordinates are
what the function itself makes of those before it (`same_moves`). What is done in every step alike is one object in all
of them, and its coordinates are made once; indices of a step are read only if a layer needs them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers: TypeAlias = NDArray[np.int64]
Coordinates: TypeAlias = Sequence[Tensor]
"""By axis of the source, one int64 tensor that broadcasts to the tensor's shape; LOST or COLUMN where there is none."""
Sizes: TypeAlias = tuple[int, ...]
Change: TypeAlias = Callable[[Tensor, Sizes], Tensor]
"""What an operation makes of one coordinate of a tensor of some shape."""


_STEADY = 4096
"""Lineages that are kept from step to step, before they are made again."""
LOST, COLUMN, EMPTY = -1, -2, -3
"""For entries that are of no single place along an axis; COLUMN where that is one along which keys are computed, EMPTY
where no rows of the batch were written yet.
"""


class Mark(Enum):
    """What is known of a tensor that has no source."""

    MIXED = "its input was reordered or selected in a way that cannot be followed"
    MODEL = "its input is a parameter, a buffer or an attribute of the model, and no row of the batch"
    MADE = "its input was made in the step, from no batch"


class Lineage:
    """Of one tensor."""

    def __init__(
        self, source: Sizes, shape: Sizes, steady: bool, make: Callable[[], Coordinates], before: Lineage | None = None
    ) -> None:
        """`source`, `shape`: of the source and of the tensor; `steady`: whether it is the same in every step; `before`:
        what it was made of, whose coordinates are made first.
        """
        self._root: Lineage = self if before is None else before._root
        self.grown = 0
        """Of a source: how many lineages were made of it that are kept."""
        self.source, self.shape, self.steady = source, shape, steady
        self._make: Callable[[], Coordinates] | None = make
        self._before = before
        self._coordinates: Coordinates | None = None
        self._next: dict[Any, Lineage] = {}

    @staticmethod
    def of_source(shape: Sizes) -> Lineage:
        def make() -> Coordinates:
            ones = [1] * len(shape)
            every = (torch.arange(n, device="cpu") for n in shape)
            return [own.view([*ones[:axis], len(own), *ones[axis + 1 :]]) for axis, own in enumerate(every)]

        return Lineage(shape, shape, True, make)

    @property
    def coordinates(self) -> Coordinates:
        chain = [self]
        while chain[-1]._coordinates is None and chain[-1]._before is not None:
            chain.append(chain[-1]._before)
        for own in reversed(chain):  # one after another, as a loop over tokens makes thousands
            own._made()
        assert self._coordinates is not None
        return self._coordinates

    def _made(self) -> None:
        if self._coordinates is None:
            assert self._make is not None
            try:
                made = self._make()
            except (LookupError, RuntimeError):  # an index that was written to, or is read otherwise
                made = [nowhere(self.shape)] * len(self.source)
            self._coordinates = [own if _fits(own, self.shape) else nowhere(self.shape) for own in made]
            self._make = self._before = None

    def then(self, shape: Sizes, change: Change, what: Any = None) -> Lineage:
        """Of what an operation makes of each coordinate. `what` names the operation with all of its numbers; None if
        numbers of this step are among them.
        """
        return self.together(shape, lambda: [change(own, self.shape) for own in self.coordinates], what)

    def together(self, shape: Sizes, make: Callable[[], Coordinates], what: Any = None) -> Lineage:
        """As `then`, of what makes all coordinates at once."""
        found = None if what is None else self._next.get((what, shape))
        if found is None:
            parts = what if isinstance(what, tuple) else ()
            steady = self.steady and what is not None
            steady = steady and all(part.steady for part in parts if isinstance(part, Lineage))
            found = Lineage(self.source, shape, steady, make, self)
            self._root.grown += steady
            if what is not None:
                self._next[what, shape] = found
        return found

    def beside(self, other: Lineage) -> Lineage:
        """Of entries of two tensors together, as of a sum: places that are not the same in both are lost."""

        def make() -> Coordinates:
            if other.source == self.source:
                return [_shared(one, two) for one, two in zip(self.coordinates, other.coordinates, strict=True)]
            # Of two sources: an axis of the one is one of the other, as that of the batch is, or it is lost.
            theirs = [(number, *own) for number, own in enumerate(zip(other.source, other.coordinates, strict=True))]
            return [
                own
                if any(own.equal(its) and (own.numel() > 1 or (a, n) == (b, m)) for b, m, its in theirs)
                else nowhere(own.shape, COLUMN if _is_column(own) else LOST)
                for a, (n, own) in enumerate(zip(self.source, self.coordinates, strict=True))
            ]

        both = tuple(max(a, b) for a, b in zip(self.shape, other.shape, strict=True))
        return self.together(both, make, ("beside", other))

    @cached_property
    def plain(self) -> bool:
        """Whether the first axis is the source's again, entry for entry, and nothing else lies along it."""
        if not self.steady or not self.source or not self.shape or self.source[0] != self.shape[0]:
            return False
        first, *rest = self.coordinates
        lies = first.numel() == first.shape[0] == self.shape[0]
        lies = lies and first.reshape(-1).equal(torch.arange(len(first), device="cpu"))
        return lies and all(own.shape[0] == 1 for own in rest)

    def per_slot(self, leading: Sizes, first_axis: bool) -> list[Numbers | None]:
        """By axis of the source, int64[n]: where each slot of a key with these leading dimensions stood; None for an
        axis along which single entries of a key differ. `first_axis`: only the first is one of the tensor's.
        """
        count = 1 if first_axis else len(leading)
        if self.shape[:count] != leading[:count]:
            return []
        found: list[Numbers | None] = []
        for own in self.coordinates:
            apart = any(n != 1 for n in own.shape[count:]) or (own.numel() == 1 and own.item() == COLUMN)
            wide = None if apart else own.reshape(own.shape[:count] + (1,) * (len(leading) - count)).expand(leading)
            found.append(None if wide is None else wide.reshape(-1).numpy())
        return found


Known: TypeAlias = Lineage | Mark


@dataclass(frozen=True, eq=False)
class Place:
    """Where slots of one call stood in the batch, by what was followed."""

    row: Numbers | None
    """int64[n]; None where it is not known."""
    position: Numbers | None = None
    """int64[n]; None where it is not known, and where a row has no positions."""
    length: int = 1
    """Positions of a row."""

    def order(self, rows: int, length: int) -> Numbers | None:
        """int64[n]: which of these slots comes n-th, row after row; None if they are not each of rows x length once.
        Slots of a row without positions come one after another.
        """
        if self.row is None or len(self.row) != rows * length:
            return None
        number = self.row
        if length == 1 or self.position is None:
            same = number.min(initial=0) >= 0 and (np.bincount(number, minlength=rows) == length).all()
            return np.argsort(number, kind="stable") if same else None
        if self.length != length:
            return None
        number = number * length + self.position
        inside = number.min(initial=0) >= 0 and number.max(initial=0) < rows * length
        if not inside or not (np.bincount(number, minlength=rows * length) == 1).all():
            return None
        return np.argsort(number)


def place_of(
    lineage: Lineage, leading: Sizes, first_axis: bool, rows: int, length: int, second: Callable[[Sizes], bool | None]
) -> Place | None:
    """Of a call's slots. None where no axis of the source is as long as the batch: its rows are none of the batch's.

    `rows`: B; `length`: tokens of a row, if those of all rows lie after one another along the source's first axis, else
    1; `second`: of the shape of a source whose first two axes are equally long, whether the second is the batch; None
    if no layer tells.
    """
    found = lineage.per_slot(leading, first_axis)
    if length > 1 and found and (own := found[0]) is not None:
        lost = own.min(initial=0) < 0
        return Place(None) if lost else Place(own // length, own % length, length)
    axes = [axis for axis in (0, 1) if axis < len(lineage.source) and lineage.source[axis] == rows]
    if not axes or not found:
        return None if lineage.steady else Place(None)
    told = [axis for axis in axes if found[axis] is not None]
    if not told:
        return Place(None)
    if len(told) == 2:
        chosen = second(lineage.source)
        if chosen is None and not np.array_equal(found[0], found[1]):  # type: ignore[arg-type]
            return Place(None)
        told = [1 if chosen else 0]
    row = found[told[0]]
    assert row is not None
    if row.min(initial=0) < 0:
        return Place(None)
    others = [axis for axis, own in enumerate(found) if axis != told[0] and own is not None]
    position, length = np.zeros_like(row), 1
    for axis in others:
        own = found[axis]
        assert own is not None
        if own.min(initial=0) < 0:
            return Place(row)
        position, length = position * lineage.source[axis] + own, length * lineage.source[axis]
    if first_axis and len(leading) > 1:
        places = int(np.prod(leading[1:]))
        position, length = position * places + np.arange(len(row)) % places, length * places
        others.append(-1)
    return Place(row, position if others else None, length)


def _fits(own: Tensor, shape: Sequence[int]) -> bool:
    return own.dim() == len(shape) and all(n in (1, m) for n, m in zip(own.shape, shape, strict=True))


def nowhere(shape: Sequence[int], of: int = LOST) -> Tensor:
    """The coordinate of entries that are of no place along an axis, in a tensor of so many axes."""
    return torch.full((1,) * len(shape), of, dtype=torch.int64, device="cpu")


def _is_column(own: Tensor) -> bool:
    return own.numel() == own.shape[-1] and (own.numel() > 1 or own.item() == COLUMN)


def _shared(one: Tensor, two: Tensor) -> Tensor:
    """Places that are the same in two tensors, whatever columns they are; of entries that one of them has not, the
    other's.
    """
    if _is_column(one) or _is_column(two):
        return one if one.equal(two) else nowhere(one.shape, COLUMN)
    if one.shape[-1] != two.shape[-1]:
        if 1 not in (one.shape[-1], two.shape[-1]):
            return nowhere(one.shape)
        one, two = one[..., :1], two[..., :1]
    if one.equal(two):
        return one
    return two.where(one == EMPTY, one.where((two == EMPTY) | (one == two), LOST))


def collapsed(own: Tensor) -> Tensor:
    """The same, with length 1 along axes along which nothing changes."""
    for axis, n in enumerate(own.shape):
        if n > 1 and (not own.stride(axis) or bool((own == own.narrow(axis, 0, 1)).all())):
            own = own.narrow(axis, 0, 1)
    return own


def same_moves(call: Callable[[Tensor], Any], shape: Sizes) -> Change:
    """Of a function that moves entries, which makes a tensor of some shape: it moves coordinates alike. Axes of theirs
    get the length that they stand for where the function needs it.
    """

    def change(own: Tensor, before: Sizes) -> Tensor:
        for wide in range(own.dim() + 1):
            if wide and own.shape[wide - 1] == before[wide - 1]:
                continue
            try:
                found = call(own.expand(before[:wide] + own.shape[wide:]))
            except (RuntimeError, IndexError):
                continue
            if isinstance(found, Tensor) and _fits(found, shape):
                return collapsed(found)
        return nowhere(shape)

    return change


def reshaped(new: Sizes) -> Change:
    def change(own: Tensor, shape: Sizes) -> Tensor:
        wide, to = list(own.shape), [1] * len(new)
        for (i, j), (k, m) in _groups(shape, new):
            if any(n != 1 for n in own.shape[i:j]):
                wide[i:j], to[k:m] = shape[i:j], new[k:m]
        return collapsed(own.expand(wide).reshape(to))

    return change


def _groups(old: Sizes, new: Sizes) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Ranges of axes of both that hold the same entries, the smallest ones."""
    i = j = 0
    groups = []
    while i < len(old) or j < len(new):
        start, before, after = (i, j), 1, 1
        if i < len(old):
            before, i = old[i], i + 1
        if j < len(new):
            after, j = new[j], j + 1
        while before != after:
            if before < after:
                before, i = before * old[i], i + 1
            else:
                after, j = after * new[j], j + 1
        groups.append(((start[0], i), (start[1], j)))
    return groups


def gathered(axis: int, numbers: NumbersOf) -> Change:
    """As torch.gather does by an index."""

    def change(own: Tensor, shape: Sizes) -> Tensor:
        index = numbers.read(narrow=True)
        within = own[tuple(slice(0, n) if n > 1 and a != axis else slice(None) for a, n in enumerate(index.shape))]
        if within.shape[axis] == 1:
            return collapsed(within)
        both = [max(a, b) for a, b in zip(within.shape, index.shape, strict=True)]
        of_own, of_index = [*both], [*both]
        of_own[axis], of_index[axis] = within.shape[axis], index.shape[axis]
        return collapsed(within.expand(of_own).gather(axis, index.expand(of_index)))

    return change


def with_axis(axis: int) -> Change:
    return lambda own, shape: own.unsqueeze(axis)


def sized(new: Sizes) -> Change:
    """Of an operation that keeps its axes: along those whose length it changes nothing is known any more."""
    return lambda own, shape: lost(own, [axis for axis, n in enumerate(shape) if n != new[axis]])


def lost(own: Tensor, axes: Iterable[int]) -> Tensor:
    """Without coordinates that change along some axes, which get length 1."""
    gone = [axis for axis in axes if own.shape[axis] > 1]
    return nowhere(own.shape, COLUMN if own.dim() - 1 in gone else LOST) if gone else own


def labelled(given: str, made: str) -> Change:
    """Of torch.einsum: axes by their letters."""
    gone = [axis for axis, letter in enumerate(given) if letter not in made]
    order = [given.index(letter) for letter in made if letter in given]
    new = tuple([slice(None) if letter in given else None for letter in made])

    def change(own: Tensor, shape: Sizes) -> Tensor:
        left = lost(own, gone).permute([*order, *gone])
        return left.reshape(left.shape[: len(order)])[new]

    return change


def joined(parts: Sequence[Lineage], main: Lineage, axis: int) -> Callable[[], Coordinates]:
    """Of torch.cat along an axis, of which `main` is a part. A part of another source has the coordinates of `main`
    where they do not change along the axis, else none.
    """

    def joined_along(number: int, reference: Tensor) -> Tensor:
        pieces = [part.coordinates[number] if part.source == main.source else lost(reference, [axis]) for part in parts]
        if all(piece.equal(reference) and piece.shape[axis] == 1 for piece in pieces):
            return reference
        wide = np.broadcast_shapes(*[piece.narrow(axis, 0, 1).shape for piece in pieces])
        sizes = [(*wide[:axis], part.shape[axis], *wide[axis + 1 :]) for part in parts]
        return torch.cat([piece.expand(size) for piece, size in zip(pieces, sizes, strict=True)], axis)

    return lambda: [joined_along(number, own) for number, own in enumerate(main.coordinates)]


def put_into(own: Tensor, shape: Sizes, index: Sequence[Any], new: Tensor, adds: bool) -> Tensor:
    """The coordinate of a tensor in which others were written at an index of each axis, or added to it. An entry that
    different ones came to has none.
    """
    if own.numel() == new.numel() == 1 and own.item() == new.item():
        return own
    if _is_column(new):
        return nowhere(shape, COLUMN)
    sizes = list(shape)
    for axis in reversed(range(len(shape))):  # the last axes, which are written whole, may stay short
        if not isinstance(index[axis - len(shape)], slice) or index[axis - len(shape)] != slice(None):
            break
        its = new.shape[axis - len(shape)] if new.dim() >= len(shape) - axis else 1
        sizes[axis] = shape[axis] if max(own.shape[axis], its) > 1 else 1
    at = torch.arange(prod(sizes), device="cpu").view(sizes)[tuple(index)]
    came, at = new.expand(at.shape).reshape(-1), at.reshape(-1)
    whole = own.expand(sizes).reshape(-1).clone()
    clash = (whole[at] != came) & (whole[at] != EMPTY) if adds else torch.zeros_like(at, dtype=torch.bool)
    whole[at] = came
    whole[at[clash | (whole[at] != came)]] = LOST
    return collapsed(whole.view(sizes))


class NumbersOf:
    """An index tensor that is read later."""

    def __init__(self, index: Any) -> None:
        """`index`: a tensor, or an array of NumPy."""
        own = index.detach() if isinstance(index, Tensor) else torch.as_tensor(index, device="cpu")
        self._own = own.bool() if own.dtype == torch.uint8 else own
        self._version = None if own.is_inference() else self._own._version

    def read(self, narrow: bool = False) -> Tensor:
        """On the processor; with `narrow`, axes along which it was expanded have length 1. Raises LookupError where it
        was written to since.
        """
        if self._version is not None and self._own._version != self._version:
            raise LookupError("an index that was written to")
        own = self._own
        if narrow:
            own = own[tuple(slice(0, 1) if step == 0 else slice(None) for step in own.stride())]
        return own.cpu()


class KnownRows:
    """What is known of the tensors of one step."""

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[weakref.ref[Tensor], Known]] = {}
        self._held: dict[int, Tensor] = {}
        """What the model held as the step began, by id."""
        self._sources: dict[Sizes, Lineage] = {}
        self.live = False
        """Whether any tensor has a lineage."""

    def begin(self) -> None:
        """Another step begins: nothing is known any more but what every step repeats."""
        self.clear()

    def clear(self) -> None:
        """Nothing is known of any tensor any more."""
        self._tensors, self.live = {}, False
        if sum(source.grown for source in self._sources.values()) + len(self._sources) > _STEADY:
            self._sources = {}

    def of(self, tensor: Tensor) -> Known | None:
        """What is known of a tensor; None for the batch's rows in their order, as far as was seen."""
        found = self._tensors.get(id(tensor))
        known = found[1] if found is not None and found[0]() is tensor else None
        if known is None and self._held.get(id(tensor)) is tensor:
            return Mark.MODEL
        if known in (None, Mark.MADE) and self.live and self._from_elsewhere(tensor):
            return Mark.MIXED
        return known

    def _from_elsewhere(self, tensor: Tensor) -> bool:
        """Whether a kernel of an autograd.Function made it, and rows of a batch as long were moved before."""
        made_by = getattr(tensor.grad_fn, "_forward_cls", None)
        if made_by is None or made_by.__module__.startswith(("torch.", "dualform.")):
            return False
        moved = (known for _, known in self._tensors.values() if known is not Mark.MODEL and known is not Mark.MADE)
        return any(isinstance(known, Mark) or known.shape[:1] == tensor.shape[:1] for known in moved)

    @property
    def here(self) -> bool:
        """Whether what runs in this thread now is followed."""
        return False

    def plainly(self, tensor: Tensor) -> bool:
        """Whether nothing is known of it, told fast."""
        return id(tensor) not in self._tensors and id(tensor) not in self._held

    def put(self, tensor: Any, known: Known | None) -> None:
        if not isinstance(tensor, Tensor) or (known is None and id(tensor) not in self._tensors):
            return
        if known is None:
            del self._tensors[id(tensor)]
            return
        if isinstance(known, Lineage):
            if known.steady and known.plain:
                self.put(tensor, None)
                return
            self.live = True
        elif known is Mark.MIXED:
            self.live = True
        self._tensors[id(tensor)] = weakref.ref(tensor), known

    def write(self, tensor: Any, known: Known | None) -> None:
        """The same of a tensor that may have been written to in place: what it is a view of may hold such rows, too."""
        if isinstance(tensor, Tensor) and known is not None and known is not self.of(tensor) and tensor._is_view():
            self.put(tensor._base, Mark.MIXED)
        self.put(tensor, known)

    def same(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
        """Tensors stand in others' places."""
        if self._tensors:
            for old, new in zip(before, after, strict=True):
                self.put(new, self.of(old))

    def source(self, shape: Sizes) -> Lineage:
        if shape not in self._sources:
            self._sources[shape] = Lineage.of_source(shape)
        return self._sources[shape]

    def lineage(self, tensor: Tensor) -> Lineage | Mark:
        """What is known of it; of the batch's rows in their order, that."""
        return self.of(tensor) or self.source(tuple(tensor.shape))

    def moved(self, tensor: Tensor, output: Any, change: Change, what: Any = None) -> None:
        """`output` holds entries of a tensor in other places."""
        if not isinstance(output, Tensor) or not output.numel():
            return
        known = self.lineage(tensor)
        self.put(output, known.then(tuple(output.shape), change, what) if isinstance(known, Lineage) else known)

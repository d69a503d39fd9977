"""Where the entries of a tensor of a forward pass came from: a source tensor, and what moved its entries since.

A source is a tensor that nothing moved on the way from the model's arguments: its rows are taken for the batch in its
order. Coordinates say, for each entry of a tensor, where it stood along each axis of the source:

    x                         [B, L, d]     row (B, 1, 1), place (1, L, 1), column (1, 1, d)
    x.transpose(0, 1)         [L, B, d]     row (1, B, 1), place (L, 1, 1), column (1, 1, d)
    ….reshape(-1, d)          [L * B, d]    row (L * B, 1), place (L * B, 1), column (1, d)

An axis along which a coordinate does not change has length 1 there, so that columns cost nothing. What is done in every
step alike is one object in all of them, and its coordinates are made once; indices of a step are read only if a layer
needs them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers: TypeAlias = NDArray[np.int64]
Coordinates: TypeAlias = Sequence[Numbers]
"""By axis of the source, one array that broadcasts to the tensor's shape; LOST or COLUMN where there is none."""
Sizes: TypeAlias = tuple[int, ...]
Change: TypeAlias = Callable[[Coordinates, Sizes], Coordinates]
"""What an operation makes of the coordinates of a tensor of some shape."""


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
        self, source: Sizes, shape: Sizes, steady: bool, make: Callable[[], Coordinates], root: Lineage | None = None
    ) -> None:
        """`source`, `shape`: of the source and of the tensor; `steady`: whether it is the same in every step; `root`:
        that of the source.
        """
        self._root = root or self
        self.grown = 0
        """Of a source: how many lineages were made of it that are kept."""
        self.source, self.shape, self.steady = source, shape, steady
        self._make: Callable[[], Coordinates] | None = make
        self._before: Lineage | None = None
        """What it was made of, whose coordinates are made first."""
        self._coordinates: Coordinates | None = None
        self._next: dict[Any, Lineage] = {}

    @staticmethod
    def of_source(shape: Sizes) -> Lineage:
        def make() -> Coordinates:
            ones = [1] * len(shape)
            return [np.arange(n).reshape([*ones[:axis], n, *ones[axis + 1 :]]) for axis, n in enumerate(shape)]

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
            made = self._make()
            # Indices that torch reads otherwise than NumPy: nothing is known of the rows.
            fits = all(
                own.ndim == len(self.shape) and all(n in (1, m) for n, m in zip(own.shape, self.shape, strict=True))
                for own in made
            )
            self._coordinates = made if fits else [nowhere(len(self.shape)) for _ in made]
            self._make = self._before = None

    def then(self, shape: Sizes, change: Change, what: Any = None) -> Lineage:
        """Of what an operation makes of it. `what` names the operation with all of its numbers; None if numbers of
        this step are among them.
        """
        found = None if what is None else self._next.get((what, shape))
        if found is None:
            parts = what if isinstance(what, tuple) else ()
            steady = self.steady and what is not None
            steady = steady and all(part.steady for part in parts if isinstance(part, Lineage))
            found = Lineage(self.source, shape, steady, lambda: change(self.coordinates, self.shape), self._root)
            found._before = self
            self._root.grown += steady
            if what is not None:
                self._next[what, shape] = found
        return found

    def beside(self, other: Lineage) -> Lineage:
        """Of entries of two tensors together, as of a sum: places that are not the same in both are lost."""

        def change(coordinates: Coordinates, shape: Sizes) -> Coordinates:
            if other.source == self.source:
                return [_shared(one, two) for one, two in zip(coordinates, other.coordinates, strict=True)]
            # Of two sources: an axis of the one is one of the other, as that of the batch is, or it is lost.
            theirs = list(zip(other.source, other.coordinates, strict=True))
            found = [
                own
                if any(
                    np.array_equal(own, its) and (own.size > 1 or (a, n) == (b, m)) for b, (m, its) in enumerate(theirs)
                )
                else None
                for a, (n, own) in enumerate(zip(self.source, coordinates, strict=True))
            ]
            lost = [nowhere(len(shape), COLUMN if _is_column(own) else LOST) for own in coordinates]
            return [none if own is None else own for own, none in zip(found, lost, strict=True)]

        both = tuple(max(a, b) for a, b in zip(self.shape, other.shape, strict=True))
        return self.then(both, change, ("beside", other))

    @cached_property
    def plain(self) -> bool:
        """Whether the first axis is the source's again, entry for entry, and nothing else lies along it."""
        if not self.steady or not self.source or not self.shape or self.source[0] != self.shape[0]:
            return False
        first, *rest = self.coordinates
        return first.size == self.shape[0] and _runs_along(first, 0) and all(own.shape[0] == 1 for own in rest)

    def per_slot(self, leading: Sizes, first_axis: bool) -> list[Numbers | None]:
        """By axis of the source, int64[n]: where each slot of a key with these leading dimensions stood; None for an
        axis along which single entries of a key differ. `first_axis`: only the first is one of the tensor's.
        """
        count = 1 if first_axis else len(leading)
        if self.shape[:count] != leading[:count]:
            return []
        found: list[Numbers | None] = []
        for own in self.coordinates:
            apart = any(n != 1 for n in own.shape[count:]) or (own.size == 1 and own.reshape(-1)[0] == COLUMN)
            wide = own.reshape(own.shape[:count] + (1,) * (len(leading) - count)) if not apart else None
            found.append(None if wide is None else np.ascontiguousarray(np.broadcast_to(wide, leading)).reshape(-1))
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


def _shared(one: Numbers, two: Numbers) -> Numbers:
    """Places that are the same in two tensors, whatever columns they are; of entries that one of them has not, the
    other's.
    """
    if _is_column(one) or _is_column(two):
        same = one.shape == two.shape and (one == two).all()
        return one if same else nowhere(one.ndim, COLUMN)
    if one.shape[:-1] != two.shape[:-1] or (one.shape != two.shape and 1 not in (one.shape[-1], two.shape[-1])):
        return nowhere(one.ndim)
    if one.shape != two.shape:
        one, two = one[..., :1], two[..., :1]
    if (one == two).all():
        return one
    return np.where(one == EMPTY, two, np.where((two == EMPTY) | (one == two), one, LOST))


def _is_column(own: Numbers) -> bool:
    return own.size == own.shape[-1] and (own.size > 1 or own.reshape(-1)[0] == COLUMN)


def _runs_along(own: Numbers, axis: int) -> bool:
    return own.size == own.shape[axis] and bool((own.reshape(-1) == np.arange(own.size)).all())


def collapsed(own: Numbers) -> Numbers:
    """The same, with length 1 along axes along which nothing changes."""
    for axis, n in enumerate(own.shape):
        if n > 1 and (own == own.take([0], axis)).all():
            own = own.take([0], axis)
    return own


def permuted(axes: Sequence[int]) -> Change:
    return lambda coordinates, shape: [own.transpose(axes) for own in coordinates]


def reshaped(new: Sizes) -> Change:
    def change(coordinates: Coordinates, shape: Sizes) -> Coordinates:
        groups = _groups(shape, new)
        found = []
        for own in coordinates:
            wide, to = list(own.shape), [1] * len(new)
            for (i, j), (k, m) in groups:
                if any(n != 1 for n in own.shape[i:j]):
                    wide[i:j], to[k:m] = shape[i:j], new[k:m]
            found.append(collapsed(np.broadcast_to(own, wide).reshape(to)))
        return found

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


def indexed(index: Sequence[Any]) -> Change:
    """`index`: of each axis an int, a slice or an array of integers, or None for an axis that is new."""

    def change(coordinates: Coordinates, shape: Sizes) -> Coordinates:
        return [_index(own, shape, index) for own in coordinates]

    return change


def _index(own: Numbers, shape: Sizes, index: Sequence[Any]) -> Numbers:
    axis, chosen, parts, kept = 0, list[int](), list[Any](), list[int]()
    dims = max((part.ndim for part in index if isinstance(part, np.ndarray)), default=0)
    arrays = []
    for part in index:
        if part is None:
            parts.append(None)
            continue
        if isinstance(part, int):
            chosen.append(axis)
            own = own.take([part if own.shape[axis] > 1 else 0], axis)
        else:
            kept.append(axis)
            arrays += [axis] if isinstance(part, np.ndarray) else []
            parts.append(part if isinstance(part, np.ndarray) or own.shape[axis] > 1 else slice(None))
        axis += 1
    if any(own.shape[a] > 1 for a in arrays):
        own = np.broadcast_to(own, [shape[a] if a in arrays else n for a, n in enumerate(own.shape)])
    else:
        flat = np.zeros((1,) * dims, np.int64)
        parts = [flat if isinstance(part, np.ndarray) else part for part in parts]
    found: Numbers = own.squeeze(tuple(chosen))[tuple(parts)]
    return found


def gathered(axis: int, index: Numbers) -> Change:
    """As torch.gather does; `index` has length 1 along axes along which it does not change."""

    def gather(own: Numbers) -> Numbers:
        within = own[tuple(slice(0, n) if n > 1 and a != axis else slice(None) for a, n in enumerate(index.shape))]
        if within.shape[axis] == 1:
            return collapsed(within)
        both = [max(a, b) for a, b in zip(within.shape, index.shape, strict=True)]
        of_own, of_index = list(both), list(both)
        of_own[axis], of_index[axis] = within.shape[axis], index.shape[axis]
        return collapsed(np.take_along_axis(np.broadcast_to(within, of_own), np.broadcast_to(index, of_index), axis))

    return lambda coordinates, shape: [gather(own) for own in coordinates]


def repeated(times: Sequence[int]) -> Change:
    """As torch.Tensor.repeat does."""

    def repeat(own: Numbers) -> Numbers:
        deep = own.reshape((1,) * (len(times) - own.ndim) + own.shape)
        return np.tile(deep, [t if n > 1 else 1 for t, n in zip(times, deep.shape, strict=True)])

    return lambda coordinates, shape: [repeat(own) for own in coordinates]


def sized(new: Sizes) -> Change:
    """Of an operation that keeps its axes: along those whose length it changes nothing is known any more."""

    def change(coordinates: Coordinates, shape: Sizes) -> Coordinates:
        return [lost(own, [a for a, n in enumerate(shape) if n != new[a]]) for own in coordinates]

    return change


def reduced(axes: Sequence[int], kept: bool) -> Change:
    def change(coordinates: Coordinates, shape: Sizes) -> Coordinates:
        found = [lost(own, axes) for own in coordinates]
        return found if kept else [own.squeeze(tuple(axes)) for own in found]

    return change


def lost(own: Numbers, axes: Sequence[int]) -> Numbers:
    """Without coordinates that change along some axes, which get length 1."""
    if all(own.shape[axis] == 1 for axis in axes):
        return own
    last = own.ndim - 1
    return nowhere(own.ndim, COLUMN if last in axes and own.shape[last] > 1 else LOST)


def labelled(given: str, made: str) -> Change:
    """Of torch.einsum: axes by their letters."""
    gone = [axis for axis, letter in enumerate(given) if letter not in made]
    order = [given.index(letter) for letter in made if letter in given]
    new = [axis for axis, letter in enumerate(made) if letter not in given]

    def relabel(own: Numbers) -> Numbers:
        left = lost(own, gone).transpose([*order, *gone])
        return np.expand_dims(left.reshape(left.shape[: len(order)]), new)

    return lambda coordinates, shape: [relabel(own) for own in coordinates]


def joined(parts: Sequence[Lineage], main: Lineage, axis: int) -> Change:
    """Of torch.cat along an axis, of which `main` is a part. A part of another source has the coordinates of `main`
    where they do not change along the axis, else none.
    """

    def change(coordinates: Coordinates, shape: Sizes) -> Coordinates:
        found = []
        for number, reference in enumerate(coordinates):
            pieces = [
                part.coordinates[number] if part.source == main.source else lost(reference, [axis]) for part in parts
            ]
            if all(p.shape == reference.shape and p.shape[axis] == 1 and (p == reference).all() for p in pieces):
                found.append(reference)
                continue
            wide = np.broadcast_shapes(*((*p.shape[:axis], 1, *p.shape[axis + 1 :]) for p in pieces))
            to = [(*wide[:axis], part.shape[axis], *wide[axis + 1 :]) for part in parts]
            found.append(np.concatenate([np.broadcast_to(p, s) for p, s in zip(pieces, to, strict=True)], axis))
        return found

    return change


def put_into(own: Numbers, shape: Sizes, index: Sequence[Any], new: Numbers, adds: bool) -> Numbers:
    """Coordinates of a tensor in which others were written at an index, or added to it. An entry that different ones
    came to has none.
    """
    if own.size == new.size == 1 and own.reshape(-1)[0] == new.reshape(-1)[0]:
        return own
    if _is_column(new):
        return nowhere(own.ndim, COLUMN)
    lengths = _lengths(index, new)
    if lengths is None:
        return nowhere(own.ndim)
    free = [isinstance(part, slice) and part == slice(None) for part in index]
    sizes = zip(shape, free, own.shape, lengths, strict=True)
    whole = np.broadcast_to(own, [n if not whole or m > 1 or k > 1 else 1 for n, whole, m, k in sizes]).copy()
    place, clash = tuple(index), np.zeros(whole.shape, bool)
    if adds:
        np.logical_or.at(clash, place, (whole[place] != new) & (whole[place] != EMPTY))
    whole[place] = new
    np.logical_or.at(clash, place, whole[place] != new)
    whole[clash] = LOST
    return collapsed(whole)


def _lengths(index: Sequence[Any], new: Numbers) -> list[int] | None:
    """By axis of what is written to, along how many of its places `new` changes; None where NumPy would turn axes."""
    dims = max((part.ndim for part in index if isinstance(part, np.ndarray)), default=0)
    chosen = [axis for axis, part in enumerate(index) if not isinstance(part, slice)]
    total = len(index) - len(chosen) + dims
    if new.ndim > total or (dims and chosen[-1] - chosen[0] >= len(chosen)):
        return None
    its, lengths = [1] * (total - new.ndim) + list(new.shape), [1] * len(index)
    slices = [axis for axis, part in enumerate(index) if isinstance(part, slice)]
    for number, axis in enumerate(slices):
        lengths[axis] = its[number + (dims if dims and axis > chosen[0] else 0)]
    return lengths


def nowhere(dims: int, of: int = LOST) -> Numbers:
    """The coordinate of entries that are of no place along an axis."""
    return np.full((1,) * dims, of)


def unknown(coordinates: Coordinates) -> Coordinates:
    return [nowhere(own.ndim) for own in coordinates]


def numbers_of(index: Tensor) -> Callable[[], NDArray[Any] | None]:
    """Reads an index tensor later: int64 or bool; None where it was written to since. Axes along which it was expanded
    have length 1.
    """
    version = None if index.is_inference() else index._version
    own = index.detach()

    def read() -> NDArray[Any] | None:
        if version is not None and own._version != version:
            return None
        plain = own[tuple(slice(0, 1) if s == 0 else slice(None) for s in own.stride())]
        found: NDArray[Any] = plain.to("cpu", torch.int64 if plain.dtype != torch.bool else torch.bool).numpy()
        return found

    return read


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

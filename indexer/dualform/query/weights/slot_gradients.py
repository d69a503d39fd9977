"""The gradient of a block that the slots of some steps make, and biases' gradients that are rounding.

What a training rounded to half precision is rounded alike: each product, and the sum of those of one copy of a weight
(half_precision.py). Only the whole can be rounded; what that adds to the sum of all slots is no slot's part, which
stands whatever a mask leaves, so that the parts of masks still add up.

Shapes: d_out and columns of a weight.

Gradients of biases that are rounding alone, as the recorder kept them: no slot's part of an update.

They take the place of what slots make of those entries, in the whole and under every mask: like W_0 they stand whatever
a mask leaves, so that the parts of masks add up to the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow.compute as pc
from numpy.typing import DTypeLike, NDArray

from dualform.query.sums.key_sums import begins
from dualform.query.view import Check, View
from dualform.query.weights.slot_products import block_size, outer_product
from dualform.query.where.mask import Selection
from dualform.rules.half_precision import HalfType, with_product
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer, Parameter

_TABLE = "rounding_gradients"


@dataclass(frozen=True, eq=False)
class RoundingGradients:
    """Of one block."""

    by_step: Mapping[int, tuple[NDArray[np.int64], Doubles]]
    """Entries of the block and their gradient, by the step of the update."""

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes + gradient.nbytes for rows, gradient in self.by_step.values())

    @property
    def rows(self) -> NDArray[np.int64]:
        """int64[r]: the entries that had any."""
        return np.unique(np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in self.by_step.values())]))

    def rows_at(self, step: int) -> NDArray[np.int64]:
        """int64[r]: those that had any at an update."""
        return self.by_step[step][0] if step in self.by_step else np.empty(0, np.int64)

    def put(self, step: int, gradient: Doubles) -> Doubles:
        """A block's gradient at an update, with what is no slot's in its place; written to where there is any."""
        if step in self.by_step:
            rows, own = self.by_step[step]
            gradient[rows] = own
        return gradient


def rounding_gradients(view: View, block: str) -> RoundingGradients:
    """Of a block, by its name."""
    return view.cache.get((_TABLE, block), lambda: _read(view, block))


def _read(view: View, block: str) -> RoundingGradients:
    if _TABLE not in view.snapshot.manifest.tables():
        return RoundingGradients({})
    table = view.snapshot.table(_TABLE)
    own = table.filter(pc.equal(table["parameter"], block))
    lists = zip(own["rows"], own["gradient"], strict=True)
    return RoundingGradients(
        {
            step: (np.asarray(rows.values, dtype=np.int64), np.array(gradient.values, dtype=np.float64))
            for step, (rows, gradient) in zip(own["step"].to_pylist(), lists, strict=True)
        }
    )


Matmul: TypeAlias = Callable[..., Doubles]
"""As numpy.matmul."""
Holder: TypeAlias = tuple[Layer, Parameter, Selection]
"""A layer that holds a block, the block's place in it, and the slots of it that stay."""


class HeldSlots(Protocol):
    """A layer's slots, for whoever goes through them by entries more than once."""

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, d_out]: values."""

    def entry_block(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, d_in]: keys."""


class SlotGradients:
    """Of one block, as it is stored: the sum of the terms of every layer that holds it."""

    def __init__(
        self,
        view: View,
        holders: Sequence[Holder],
        shape: tuple[int, ...],
        read: Mapping[str, HeldSlots] | None = None,
        matmul: Matmul = np.matmul,
        dtype: DTypeLike = np.float64,
    ) -> None:
        """`shape`: of the block. `read`: by layer, what its keys and values are read through; the store where None.
        `matmul`: what multiplies them, in `dtype`; of gradients that were rounded, in float64.
        """
        self._shape = shape
        self._matmul = matmul
        self._whole, self._remaining = _Sum(shape, matmul, dtype), _Sum(shape, matmul, dtype)
        self._of_groups = list[_Sum]()
        self._terms = [
            _LayerTerms(view, *holder, None if read is None else read[holder[0].name], dtype) for holder in holders
        ]
        self.all_stay = all(bool(selection.stays.all()) for _, _, selection in holders)
        """Whether the mask leaves every slot."""

    def of(self, first_step: int, last_step: int, half: HalfType | None, check: Check) -> tuple[Doubles, Doubles]:
        """Both of the block's shape: what the slots of the steps made, both ends included, and what those
        that stay did. The same array where all stay. The caller's until the next call, to write to as well. `half`: the
        type of a gradient that is of half precision itself.
        """
        remaining = None if self.all_stay else self._remaining.cleared()
        whole = self._whole.cleared()
        for terms in self._terms:
            for start, stop in terms.unrounded(first_step, last_step):
                check()
                terms.add(start, stop, whole, remaining)
        if remaining is not None:
            whole.add(remaining.total())
        products = [product for terms in self._terms for product in terms.products(first_step, last_step)]
        rest = np.zeros(self._shape) if remaining is not None and products else None
        for _, of_copy in groupby(sorted(products, key=lambda product: product.order), lambda one: one.order[:2]):
            before = whole.total().copy() if rest is not None else None
            unrounded = self._add_copy(list(of_copy), whole, remaining, half, check)
            if rest is not None and before is not None:
                rest += whole.total() - before - unrounded
        if remaining is None:
            return whole.total(), whole.total()
        return whole.total(), remaining.total() if rest is None else remaining.total() + rest

    def of_groups(
        self,
        first_step: int,
        last_step: int,
        numbers: Sequence[NDArray[np.int64]],
        groups: int,
        check: Check,
        coefficients: Sequence[Doubles] | None = None,
    ) -> Doubles:
        """float64[groups, …]: what the slots of each group made of the steps, both ends included, nothing rounded.

        By holder, `numbers` are the group of each entry, `groups` for one in none, and `coefficients` what its gradient
        is multiplied by.
        """
        found = np.zeros((groups, *self._shape))
        sums = [_Sum(self._shape, self._matmul, into=own) for own in found]
        for place, (terms, own) in enumerate(zip(self._terms, numbers, strict=True)):
            times = None if coefficients is None else coefficients[place]
            terms.add_groups(*terms.entries(first_step, last_step), own, groups, times, sums.__getitem__, check)
        return found

    def by_group(
        self, first_step: int, last_step: int, numbers: Sequence[NDArray[np.int64]], groups: int, check: Check
    ) -> dict[int, Doubles]:
        """As `of_groups` without coefficients, of groups that have slots in these steps. The caller's until the next
        call, to write to as well.
        """
        found = dict[int, _Sum]()

        def sum_of(group: int) -> _Sum:
            if group not in found:
                if len(found) == len(self._of_groups):
                    self._of_groups.append(_Sum(self._shape, self._matmul))
                found[group] = self._of_groups[len(found)].cleared()
            return found[group]

        for terms, own in zip(self._terms, numbers, strict=True):
            terms.add_groups(*terms.entries(first_step, last_step), own, groups, None, sum_of, check)
        return {group: own.total() for group, own in found.items()}

    def _add_copy(
        self, products: Sequence[_Product], whole: _Sum, remaining: _Sum | None, half: HalfType | None, check: Check
    ) -> Doubles:
        """Add the products of one copy of the weight, in the order in which the training did; returns their sum."""
        rounded: Doubles | None = None
        unrounded, own = np.zeros(self._shape), _Sum(self._shape, self._matmul)
        stays = None if remaining is None else _Sum(self._shape, self._matmul)
        for product in products:
            check()
            product.terms.add(product.start, product.stop, own.cleared(), None if stays is None else stays.cleared())
            if remaining is not None and stays is not None:
                remaining.add(stays.total())
                own.add(stays.total())
            rounded = with_product(rounded, own.total(), product.dtype)
            unrounded += own.total()
        assert rounded is not None
        whole.add(rounded)
        if half is not None:
            whole.total()[...] = half(whole.total())
        return unrounded


class _Sum:
    """A sum of products, kept in one array: to fill a new one for each product takes longer than the product."""

    def __init__(
        self, shape: tuple[int, ...], matmul: Matmul, dtype: DTypeLike = np.float64, into: Doubles | None = None
    ) -> None:
        """`into`: the array that it is kept in, of zeros; one of its own where None."""
        self._total, self._empty, self._matmul = np.empty(shape, dtype) if into is None else into, True, matmul

    def cleared(self) -> _Sum:
        """This one, without what was added before."""
        self._empty = True
        return self

    def add(self, part: Doubles) -> None:
        if self._empty:
            self._total[...] = part
        else:
            self._total += part
        self._empty = False

    def add_product(self, left: Doubles, right: Doubles) -> None:
        if self._empty:
            self._matmul(left, right, out=self._total)
            self._empty = False
        else:
            self._total += self._matmul(left, right)

    def total(self) -> Doubles:
        """Valid until the sum is cleared; may be written to."""
        if self._empty:
            self._total[...] = 0.0
            self._empty = False
        return self._total


@dataclass(frozen=True, eq=False)
class _Product:
    """Of the entries from `start` to `stop` of one layer."""

    terms: _LayerTerms
    start: int
    stop: int
    dtype: str
    order: tuple[int, int, int]
    """Step, copy of the weight and place: products of one copy follow each other as they were added."""


class _LayerTerms:
    """Of one layer."""

    def __init__(
        self,
        view: View,
        layer: Layer,
        place: Parameter,
        selection: Selection,
        read: HeldSlots | None,
        dtype: DTypeLike,
    ) -> None:
        self._steps, self._stays = view.slot_steps(layer), selection.stays
        self._products = view.products(layer)
        self._values = view.snapshot.values(layer.name) if read is None else read
        keys = view.snapshot.keys(layer.name) if read is None else read
        self._keys = None if place in layer.biases else keys
        self._columns, self._transposed, self._groups = slice(place.start, place.stop), place.transposed, layer.groups
        self._size = block_size(max(layer.d_in, layer.d_out))
        self._scratch: dict[str, NDArray[Any]] = {}
        self._dtype = dtype

    def entries(self, first_step: int, last_step: int) -> tuple[int, int]:
        """The range of the entries of some steps."""
        first, stop = np.searchsorted(self._steps, [first_step, last_step + 1]).tolist()
        return first, stop

    def unrounded(self, first_step: int, last_step: int) -> Iterator[tuple[int, int]]:
        """Ranges of the entries of some steps that are no product of half precision."""
        place, end = np.searchsorted(self._steps, [first_step, last_step + 1]).tolist()
        for product in self.products(first_step, last_step):
            if place < product.start:
                yield place, product.start
            place = product.stop
        if place < end:
            yield place, end

    def products(self, first_step: int, last_step: int) -> Iterator[_Product]:
        """Those of some steps that the training rounded, in the order of their entries."""
        found = self._products
        for number in range(*np.searchsorted(found.step, [first_step, last_step + 1]).tolist()):
            order = (int(found.step[number]), int(found.copy[number]), int(found.place[number]))
            yield _Product(self, int(found.first[number]), int(found.stop[number]), found.dtype[number], order)

    def add(self, begin: int, end: int, rest: _Sum, remaining: _Sum | None) -> None:
        """Add what a range of entries makes: those that stay to `remaining`, the others to `rest`, which gets all where
        there is no `remaining`. So each entry is multiplied once, however many stay.
        """
        for start in range(begin, end, self._size):
            stop = min(start + self._size, end)
            order: slice | NDArray[np.int64] = slice(None)
            count = 0
            if remaining is not None:
                stays = self._stays[start:stop]
                order, count = np.argsort(~stays, kind="stable"), int(stays.sum())
            values, keys = self._wide(self._values.block(start, stop), order, "values"), None
            if self._keys is not None:
                own = self._keys.entry_block(start, stop)
                keys = self._wide(own if self._groups > 1 else own[:, self._columns], order, "keys")
            for total, first, last in ((remaining, 0, count), (rest, count, stop - start)):
                if total is not None and first < last:
                    self._add(total, values[first:last], None if keys is None else keys[first:last])

    def add_groups(
        self,
        begin: int,
        end: int,
        numbers: NDArray[np.int64],
        groups: int,
        coefficients: Doubles | None,
        sum_of: Callable[[int], _Sum],
        check: Check,
    ) -> None:
        """Add what each entry of a range makes, times its coefficient if there are any, to the sum of its group, if it
        is in one of so many.
        """
        for start in range(begin, end, self._size):
            check()
            stop = min(start + self._size, end)
            order = np.flatnonzero(numbers[start:stop] < groups)
            if not len(order):
                continue
            own = numbers[start:stop][order].astype(np.min_scalar_type(groups))  # small ones are sorted sooner
            order = order[np.argsort(own, kind="stable")]
            values, keys = self._wide(self._values.block(start, stop), order, "values"), None
            if coefficients is not None:
                times = coefficients[start:stop][order]
                values[times == 0] = 0  # whatever they are: no update used them
                values *= times[:, None]
            if self._keys is not None:
                rows = self._keys.entry_block(start, stop)
                keys = self._wide(rows if self._groups > 1 else rows[:, self._columns], order, "keys")
            ordered = numbers[start:stop][order]
            firsts = begins(ordered)
            for group, first, last in zip(ordered[firsts].tolist(), firsts, [*firsts[1:], len(order)], strict=True):
                self._add(sum_of(group), values[first:last], None if keys is None else keys[first:last])

    def _wide(self, rows: NDArray[Any], order: slice | NDArray[np.int64], what: str) -> NDArray[Any]:
        """In that order and in the sum's type: as they are, or in an array that is used again."""
        if rows.dtype == self._dtype and isinstance(order, slice):
            return rows
        if what not in self._scratch:
            self._scratch[what] = np.empty((self._size, rows.shape[1]), self._dtype)
        chosen = rows[order]
        wide = self._scratch[what][: len(chosen)]
        np.copyto(wide, chosen)
        return wide

    def _add(self, total: _Sum, values: Doubles, keys: Doubles | None) -> None:
        """sum_t delta_t x_t^T, or sum_t delta_t where there are no keys."""
        if keys is None:
            total.add(values.sum(0))
        elif self._groups > 1:
            total.add(outer_product(values, keys, self._groups)[:, self._columns])
        elif self._transposed:
            total.add_product(keys.T, values)
        else:
            total.add_product(values.T, keys)

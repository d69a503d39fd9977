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
from functools import partial
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
        self._sum: Callable[[], _Sum] = partial(_Sum, shape, matmul, dtype)
        self._remaining, self._rest = self._sum(), self._sum()
        self._of_groups = list[_Sum]()
        self.all_stay = all(bool(selection.stays.all()) for _, _, selection in holders)
        """Whether the mask leaves every slot."""
        self._terms = [
            _LayerTerms(view, layer, place, None if read is None else read[layer.name], dtype)
            for layer, place, _ in holders
        ]
        # Of what stays and of the rest; of the rest alone, as the whole, where all stays.
        self._parts = [None if self.all_stay else (~own.stays).astype(np.int8) for _, _, own in holders]

    def of(self, first_step: int, last_step: int, half: HalfType | None, check: Check) -> tuple[Doubles, Doubles]:
        """Both of the block's shape: what the slots of the steps made, both ends included, and what those
        that stay did. The same array where all stay. The caller's until the next call, to write to as well. `half`: the
        type of a gradient that is of half precision itself.
        """
        remaining, whole = self._remaining.cleared(), self._rest.cleared()
        sums = [whole] if self.all_stay else [remaining, whole]
        for terms, parts in zip(self._terms, self._parts, strict=True):
            for start, stop in terms.unrounded(first_step, last_step):
                terms.add(start, stop, parts, sums.__getitem__, check)
        if not self.all_stay:
            whole.add(remaining.total())
        pairs = zip(self._terms, self._parts, strict=True)
        products = [(one, parts) for terms, parts in pairs for one in terms.products(first_step, last_step)]
        rest = np.zeros(self._shape) if products and not self.all_stay else None
        products.sort(key=lambda own: own[0].order)
        for _, of_copy in groupby(products, lambda own: own[0].order[:2]):
            before = whole.total().copy() if rest is not None else None
            unrounded = self._add_copy(list(of_copy), whole, remaining, half, check)
            if rest is not None and before is not None:
                rest += whole.total() - before - unrounded
        if self.all_stay:
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
    ) -> dict[int, Doubles]:
        """By group that has slots in the steps, both ends included, what they made of the block, nothing rounded. The
        caller's until the next call, to write to as well.

        By holder, `numbers` are the group of each entry, `groups` for one in none, and `coefficients` what its gradient
        is multiplied by.
        """
        found = dict[int, _Sum]()

        def sum_of(group: int) -> _Sum:
            if group not in found:
                if len(found) == len(self._of_groups):
                    self._of_groups.append(self._sum())
                found[group] = self._of_groups[len(found)].cleared()
            return found[group]

        times = [None] * len(numbers) if coefficients is None else coefficients
        for terms, own, weights in zip(self._terms, numbers, times, strict=True):
            terms.add(*terms.entries(first_step, last_step), own, sum_of, check, groups, weights)
        return {group: own.total() for group, own in found.items()}

    def _add_copy(
        self,
        products: Sequence[tuple[_Product, NDArray[np.int8] | None]],
        whole: _Sum,
        remaining: _Sum,
        half: HalfType | None,
        check: Check,
    ) -> Doubles:
        """Add the products of one copy of the weight, in the order in which the training did; returns their sum."""
        rounded: Doubles | None = None
        unrounded, own, stays = np.zeros(self._shape), self._sum(), self._sum()
        for product, parts in products:
            sums = [own.cleared()] if parts is None else [stays.cleared(), own.cleared()]
            product.terms.add(product.start, product.stop, parts, sums.__getitem__, check)
            if parts is not None:
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

    def __init__(self, shape: tuple[int, ...], matmul: Matmul, dtype: DTypeLike) -> None:
        self._total: Doubles = np.empty(shape, dtype)
        self._empty, self._matmul = True, matmul

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
        read: HeldSlots | None,
        dtype: DTypeLike,
    ) -> None:
        self._steps, self._products = view.slot_steps(layer), view.products(layer)
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

    def add(
        self,
        begin: int,
        end: int,
        numbers: NDArray[np.integer[Any]] | None,
        sum_of: Callable[[int], _Sum],
        check: Check,
        groups: int | None = None,
        coefficients: Doubles | None = None,
    ) -> None:
        """Add what each entry of a range makes, times its coefficient if there are any, to the sum of its group: each
        is multiplied once, however many groups there are.

        `numbers`: the group of each entry of the layer; None where all are of the first one. `groups`: the number of
        those that are asked for, None for all.
        """
        for start in range(begin, end, self._size):
            check()
            stop = min(start + self._size, end)
            order: slice | NDArray[np.int64] = slice(None)
            ordered: NDArray[Any] = np.zeros(stop - start, np.int8) if numbers is None else numbers[start:stop]
            if groups is not None:
                ordered = ordered.astype(np.min_scalar_type(groups))  # small ones are sorted sooner
            if (ordered[1:] < ordered[:-1]).any():
                order = np.argsort(ordered, kind="stable")
                ordered = ordered[order]
            if groups is not None and ordered[-1] >= groups:
                own = slice(None, int(np.searchsorted(ordered, groups)))
                order, ordered = order[own] if isinstance(order, np.ndarray) else own, ordered[own]
            if not len(ordered):
                continue
            values, keys = self._wide(self._values.block(start, stop), order, "values"), None
            if coefficients is not None:
                times = coefficients[start:stop][order]
                values = np.where((times == 0)[:, None], 0.0, values)  # whatever they are: no update used them
                values *= times[:, None]
            if self._keys is not None:
                rows = self._keys.entry_block(start, stop)
                keys = self._wide(rows if self._groups > 1 else rows[:, self._columns], order, "keys")
            firsts = begins(ordered)
            for group, first, last in zip(ordered[firsts].tolist(), firsts, [*firsts[1:], len(ordered)], strict=True):
                self._add(sum_of(group), values[first:last], None if keys is None else keys[first:last])

    def _wide(self, rows: NDArray[Any], order: slice | NDArray[np.int64], what: str) -> NDArray[Any]:
        """In that order and in the sum's type: as they are, or in an array that is used again."""
        chosen = rows[order]
        if rows.dtype == self._dtype and isinstance(order, slice):
            return chosen
        if what not in self._scratch:
            self._scratch[what] = np.empty((self._size, rows.shape[1]), self._dtype)
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

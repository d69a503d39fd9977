"""What the slots of one block bring to the examples' losses, update by update.

A slot moves the weights in many updates under momentum, by another coefficient in each:

    the sum over updates s of c_t(s) (x_t . q) (delta_t . e(s))  =  (x_t . q) (delta_t . E_t)

with E_t the sum of c_t(s) e(s), where the layer takes the same of an example in all of them, as the first layer of a
network does. So E_t is added up while the slots of a step are followed, and they are multiplied once. Of other layers
the slots that are followed are multiplied in each update.

Shapes: n examples, r rows of theirs, m slots, T recorded steps, G groups, d_out of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.influence.followed_blocks import BlockUpdate
from dualform.influence.products import by_example, pairs, sides
from dualform.influence.slot_window import SlotRows, SlotWindow
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter

_MOST_BYTES = 256 << 20
"""Of sums E_t of one block."""


class Row(NamedTuple):
    """The examples' part of a block's gradient, of one layer."""

    layer: Layer
    place: Parameter
    keys: NDArray[Any]
    """[r, d_in], in the type that products are made in."""
    errors: NDArray[Any]
    """[r, d_out]."""
    examples: NDArray[np.int64]
    """int64[r]."""

    def of_examples(self, part: slice) -> Row:
        """The rows of some examples, numbered from the first of them."""
        chosen = (self.examples >= part.start) & (self.examples < part.stop)
        own = self.examples[chosen] - part.start
        return self._replace(keys=self.keys[chosen], errors=self.errors[chosen], examples=own)


class BlockScores:
    def __init__(
        self, holders: Sequence[tuple[Layer, Parameter]], windows: Mapping[str, SlotWindow], sums: Doubles, tail: float
    ) -> None:
        """`windows`: the slots of each layer; `sums` float64[G, n], which is added to; `tail` as Influence has it."""
        self._holders, self._windows, self._sums, self._tail = holders, windows, sums, tail
        self._count = sums.shape[1]
        self._rows: Sequence[Row] | None = None
        """Those that E_t are sums of, without their errors; None before there are any, and where they do not stay."""
        self._changes = False
        """Whether some layer took other keys of the examples than before."""
        self._added: dict[int, list[NDArray[Any]]] = {}
        """By step, E_t: [r, d_out] for each of the rows."""

    def add(self, update: BlockUpdate, rows: Sequence[Row]) -> Doubles:
        """Take in one update; returns float64[n]: what was entered into the sums meanwhile."""
        coefficients = update.coefficients
        assert coefficients is not None
        size = np.abs(coefficients)
        followed = np.flatnonzero(size > self._tail * size.max(initial=0.0))
        entered = np.zeros(self._count)
        if not len(followed):
            return entered
        if not self._stay(rows, len(followed)):
            entered += self.finish()
            self._changes = True
            return entered + self._multiplied(coefficients, followed, rows)
        entered += self._score([step for step in self._added if step < followed[0]])
        for step in followed.tolist():
            parts = [coefficients[step] * row.errors for row in rows]
            known = self._added.get(step)
            self._added[step] = parts if known is None else [a + b for a, b in zip(known, parts, strict=True)]
        return entered

    @property
    def nbytes(self) -> int:
        """Of sums E_t."""
        return sum(part.nbytes for parts in self._added.values() for part in parts)

    def finish(self) -> Doubles:
        """Enter what is still added up; returns it, float64[n]."""
        return self._score(list(self._added))

    def _stay(self, rows: Sequence[Row], steps: int) -> bool:
        """Whether the examples' keys are those of before, so that errors can be added up, and there is room for it."""
        if self._changes or steps * sum(row.errors.nbytes for row in rows) > _MOST_BYTES:
            return False
        if self._rows is None:
            self._rows = rows
            return True
        return len(rows) == len(self._rows) and all(
            one.place in one.layer.biases or np.array_equal(one.keys, other.keys)
            for one, other in zip(rows, self._rows, strict=True)
        )

    def _score(self, steps: Sequence[int]) -> Doubles:
        entered = np.zeros(self._count)
        for step in sorted(steps):
            assert self._rows is not None
            parts = self._added.pop(step)
            rows = [row._replace(errors=part) for row, part in zip(self._rows, parts, strict=True)]
            for layer, place in self._holders:
                entered += self._enter(self._windows[layer.name].between(step, step), layer, place, rows, None)
        return entered

    def _multiplied(self, coefficients: Doubles, followed: NDArray[np.int64], rows: Sequence[Row]) -> Doubles:
        entered = np.zeros(self._count)
        for layer, place in self._holders:
            slots = self._windows[layer.name].between(int(followed[0]), int(followed[-1]))
            entered += self._enter(slots, layer, place, rows, coefficients[slots.steps])
        return entered

    def _enter(
        self, slots: SlotRows, layer: Layer, place: Parameter, rows: Sequence[Row], weights: Doubles | None
    ) -> Doubles:
        """Enter the products of some slots with the rows under the slots' groups; `weights` float64[m], None for 1."""
        brought = np.zeros((len(slots.keys), self._count))
        for row in rows:
            dtype = row.errors.dtype
            own = sides(layer, place, slots.keys, slots.errors, dtype)
            found = pairs(own, sides(row.layer, row.place, row.keys, row.errors, dtype))
            brought += by_example(found, row.examples, self._count)
        if weights is not None:
            brought *= weights[:, None]
        return enter(self._sums, slots.groups, brought)


def enter(sums: Doubles, groups: NDArray[np.int64], brought: Doubles) -> Doubles:
    """Add what slots brought, float64[m, n], to the sums of their groups; returns float64[n], all of it."""
    if len(np.unique(groups)) == len(groups):
        sums[groups] += brought
    else:
        np.add.at(sums, groups, brought)
    entered: Doubles = brought.sum(axis=0)
    return entered

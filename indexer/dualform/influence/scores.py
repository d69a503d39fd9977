"""What the slots of one block bring to the examples' losses.

What the slots of one block bring to the examples' losses, update by update.

A slot moves the weights in many updates under momentum, by another coefficient in each:

    the sum over updates s of c_t(s) (x_t . q) (delta_t . e(s))  =  (x_t . q) (delta_t . E_t)

with E_t the sum of c_t(s) e(s), where the layer takes the same of an example in all of them, as the first layer of a
network does. So E_t is added up while the slots of a step are followed, and they are multiplied once. Of other layers
the slots that are followed are multiplied in each update.

Shapes: n examples, r rows of theirs, m slots, T recorded steps, G groups, d_out of a layer.

What the slots of one block bring to the examples' losses, where an update treats each number of it on its own.

No number weighs a step's gradient in a later update; so it is the examples' gradients that are carried back through the
updates, to what a gradient at an update u did to their losses by that update and all that follow:

    Gamma_u  =  a_u o G_u  +  k_u o lambda_u          lambda_(u-1)  =  b_u o G_u  +  m_u o lambda_u

with G_u the examples' gradients at update u, and a, b, k and m its gains (blocks.py). Each slot is multiplied
once. Updates are held until as many more have come as it takes for a gradient to fade from the buffer.

Shapes: n examples, r rows of theirs, m slots, g blocks along a weight's diagonal, G groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.influence.blocks import BlockUpdate, Gains, Sides, SlotRows, SlotWindow, by_example, matmul, pairs, sides
from dualform.rules import Update
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer, Parameter

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


_MATRICES_BYTES = 64 << 20
"""Of the examples' gradients at one update: they are carried back in parts, of which a few are held at a time."""
_MOST_UPDATES = 256
"""That a gradient is followed through, however slowly it fades."""


class _Held(NamedTuple):
    update: Update
    gains: Gains
    rows: Sequence[Row]


class AdjointScores:
    def __init__(
        self, holders: Sequence[tuple[Layer, Parameter]], windows: Mapping[str, SlotWindow], sums: Doubles, tail: float
    ) -> None:
        """As BlockScores."""
        self._holders, self._windows, self._sums, self._tail = holders, windows, sums, tail
        self._count = sums.shape[1]
        self._held: list[_Held] = []
        self._shape: tuple[int, ...] = ()
        """Of the block."""
        self._fading = 1
        """Updates until a gradient has faded from the buffer."""

    def add(self, update: BlockUpdate, rows: Sequence[Row]) -> Doubles:
        """Take in one update; returns float64[n]: what was entered into the sums meanwhile."""
        assert update.gains is not None
        assert update.way is not None
        left = float(np.max(np.abs(update.gains.kept_buffer)))
        if 0 < left < 1:
            steps = math.ceil(math.log(self._tail) / math.log(left)) if self._tail else _MOST_UPDATES
            self._fading = max(self._fading, min(steps, _MOST_UPDATES))
        self._shape = update.way.shape
        self._held.append(_Held(update.update, update.gains, rows))
        if len(self._held) < 2 * self._fading:
            return np.zeros(self._count)
        return self._carry_back(self._fading)

    @property
    def nbytes(self) -> int:
        """Of the updates that are held."""
        of_rows = sum(row.keys.nbytes + row.errors.nbytes for held in self._held for row in held.rows)
        return of_rows + sum(held.gains.nbytes for held in self._held)

    def finish(self) -> Doubles:
        """Enter what is still held; returns it, float64[n]."""
        return self._carry_back(len(self._held))

    def _carry_back(self, entered: int) -> Doubles:
        """Enter the first of the updates that are held, and let them go."""
        found = np.zeros(self._count)
        size = max(1, _MATRICES_BYTES // (8 * math.prod(self._shape)))
        for start in range(0, self._count, size):
            part = slice(start, min(start + size, self._count))
            found[part] = self._carry_back_of(part, entered)
        del self._held[:entered]
        return found

    def _carry_back_of(self, part: slice, entered: int) -> Doubles:
        """As `_carry_back`, of some examples; returns float64[those]."""
        found, later = np.zeros(part.stop - part.start), None
        for number in reversed(range(len(self._held))):
            update, gains, rows = self._held[number]
            gradients = self._gradients(rows, part)
            if number < entered:
                effect = gains.of_gradient * gradients
                if later is not None:
                    effect += gains.kept_gradient * later
                effect *= update.factor
                found += self._enter(update, effect, part)
            later = gains.of_buffer * gradients + (0.0 if later is None else gains.kept_buffer * later)
        return found

    def _gradients(self, rows: Sequence[Row], part: slice) -> Doubles:
        """float64[those, ...block]: of each example's loss."""
        found = np.zeros((part.stop - part.start, *self._shape))
        for row in rows:
            own = row.of_examples(part)
            if len(own.examples):
                outer = _of_examples(sides(own.layer, own.place, own.keys, own.errors), own.examples, len(found))
                found += outer.reshape(found.shape)
        return found

    def _enter(self, update: Update, effect: Doubles, part: slice) -> Doubles:
        """The products of the slots that an update used with what a gradient did by it."""
        found, sums = np.zeros(len(effect)), self._sums[:, part]
        for layer, place in self._holders:
            slots = self._windows[layer.name].between(update.first_step, update.last_step)
            if len(slots.keys):
                found += enter(sums, slots.groups, _products(layer, place, slots, effect))
        return found


def _of_examples(own: Sides, examples: NDArray[np.int64], count: int) -> Doubles:
    """float64[n, ...]: the sum of the outer products of each example's rows, blocks under one another."""
    if own.right is None:
        return by_example(own.left[0].T, examples, count).T
    found = np.zeros((count, len(own.left), own.left.shape[2], own.right.shape[2]))
    per_example = len(examples) // count
    if np.array_equal(examples, np.repeat(np.arange(count), per_example)):
        left = own.left.reshape(len(own.left), count, per_example, -1).transpose(1, 0, 3, 2)
        np.matmul(left, own.right.reshape(len(own.right), count, per_example, -1).transpose(1, 0, 2, 3), out=found)
        return found
    for example in np.unique(examples).tolist():
        chosen = examples == example
        np.matmul(own.left[:, chosen].transpose(0, 2, 1), own.right[:, chosen], out=found[example])
    return found


def _products(layer: Layer, place: Parameter, slots: SlotRows, effect: Doubles) -> Doubles:
    """float64[m, n]: the dot product of each slot's gradient with the examples' matrices, `effect` [n, ...block]."""
    own = sides(layer, place, slots.keys, slots.errors)
    if own.right is None:
        return matmul(own.left[0], effect.T)
    matrices = effect.reshape(len(effect), len(own.left), -1, effect.shape[-1])
    along = matmul(matrices, own.right.transpose(0, 2, 1))  # [n, g, height, m]
    products: Doubles = np.einsum("nghm,gmh->mn", along, own.left, optimize=True)
    return products

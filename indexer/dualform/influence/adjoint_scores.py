"""What the slots of one block bring to the examples' losses, where an update treats each number of it on its own.

No number weighs a step's gradient in a later update; so it is the examples' gradients that are carried back through the
updates, to what a gradient at an update u did to their losses by that update and all that follow:

    Gamma_u  =  a_u o G_u  +  k_u o lambda_u          lambda_(u-1)  =  b_u o G_u  +  m_u o lambda_u

with G_u the examples' gradients at update u, and a, b, k and m its gains (followed_blocks.py). Each slot is multiplied
once. Updates are held until as many more have come as it takes for a gradient to fade from the buffer.

Shapes: n examples, r rows of theirs, m slots, g blocks along a weight's diagonal, G groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.influence.block_scores import Row, enter
from dualform.influence.followed_blocks import BlockUpdate, Gains
from dualform.influence.matmul import matmul
from dualform.influence.products import Sides, by_example, sides
from dualform.influence.slot_window import SlotRows, SlotWindow
from dualform.rules import Update
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter

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

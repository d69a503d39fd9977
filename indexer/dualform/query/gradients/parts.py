"""Which products the gradients of slots and of examples have with each other, and what they come to.

The gradient that a row brings to a block of parameters is an outer product: of its error signal and a part of its key
for a weight, the other way round for one that is stored transposed, and its error signal alone for a bias. The dot
product of two of them is that of their left sides times that of their right ones, summed over the blocks along the
diagonal where a weight has several.

Shapes: b slots of a block, r rows of an example, d_in and d_out of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.query.score.rescoring import score_rows
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter


class Side(NamedTuple):
    """One side of outer products: columns of the rows' keys or error signals."""

    of_errors: bool
    start: int
    stop: int


class Sides(NamedTuple):
    left: Side
    right: Side | None
    """None of a bias."""


def sides(layer: Layer, place: Parameter) -> list[Sides]:
    """Of each block along the diagonal of a layer's block of parameters in its place there."""
    if place in layer.biases:
        return [Sides(Side(True, 0, layer.d_out), None)]
    if layer.groups > 1:
        width, height = layer.weight_width, layer.d_out // layer.groups
        return [
            Sides(
                Side(True, group * height, (group + 1) * height),
                Side(False, group * width + place.start, group * width + place.stop),
            )
            for group in range(layer.groups)
        ]
    errors, keys = Side(True, 0, layer.d_out), Side(False, place.start, place.stop)
    return [Sides(keys, errors) if place.transposed else Sides(errors, keys)]


@dataclass(frozen=True, eq=False)
class Pairing:
    """Slots of one layer and rows of one, the same or another, that share a block of parameters."""

    rows_of: str
    """The layer of the rows."""
    slots: Sequence[Sides]
    rows: Sequence[Sides]


def pairings(layers: Mapping[str, Layer]) -> dict[str, list[Pairing]]:
    """By the slots' layer, in the order of the layers and their parameters."""
    holders: dict[str, list[tuple[str, list[Sides]]]] = {}
    own: dict[str, list[tuple[str, list[Sides]]]] = {name: [] for name in layers}
    for name, layer in layers.items():
        for place in layer.parameters:
            found = sides(layer, place)
            holders.setdefault(place.block_name, []).append((name, found))
            own[name].append((place.block_name, found))
    return {
        name: [Pairing(other, slots, rows) for block, slots in found for other, rows in holders[block]]
        for name, found in own.items()
    }


class Rows(NamedTuple):
    """Keys and error signals of some rows."""

    keys: NDArray[np.float32]
    """float32[r, d_in]."""
    errors: NDArray[np.float32]
    """float32[r, d_out]."""

    def of(self, side: Side) -> NDArray[np.float32]:
        return np.ascontiguousarray((self.errors if side.of_errors else self.keys)[:, side.start : side.stop])


class Products:
    """Of a block of slots with the rows of one example, each made once."""

    def __init__(self, slots: Rows) -> None:
        self._slots = slots
        self._wide: dict[Side, NDArray[np.float64]] = {}

    def with_rows(self, pairs: Sequence[Pairing], rows: Mapping[str, Rows]) -> NDArray[np.float64]:
        """float64[b]: what all pairings come to, pairing after pairing and row after row; `rows` by layer."""
        found = np.zeros(len(self._slots.keys))
        made: dict[tuple[Side, str, Side], NDArray[np.float64]] = {}
        for pair in pairs:
            own = rows.get(pair.rows_of)
            if own is None or not len(own.keys):
                continue
            total = np.zeros((len(own.keys), len(found)))
            for slots, others in zip(pair.slots, pair.rows, strict=True):
                term = self._product(made, slots.left, pair.rows_of, others.left, own)
                if slots.right is not None and others.right is not None:
                    term = term * self._product(made, slots.right, pair.rows_of, others.right, own)
                total += term
            for one in total:
                found += one
        return found

    def _product(
        self,
        made: dict[tuple[Side, str, Side], NDArray[np.float64]],
        slots: Side,
        layer: str,
        others: Side,
        rows: Rows,
    ) -> NDArray[np.float64]:
        """float64[r, b]: canonical."""
        key = slots, layer, others
        if key not in made:
            if slots not in self._wide:
                self._wide[slots] = self._slots.of(slots).astype(np.float64)
            made[key] = score_rows(self._wide[slots], rows.of(others))
        return made[key]

"""Dot products of gradients: of slots, of examples, and of a matrix with those of examples.

The gradient that a row brings to a block is an outer product of two vectors, left and right: error signal and key of a
weight [d_out, columns], key and error signal of one that is stored transposed, error signal and 1 of a bias. The dot
product of two such gradients is that of their left vectors times that of their right ones; of a weight with blocks
along its diagonal it is the sum of that over the blocks.

Shapes: m slots, r rows of examples, n examples.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dualform.influence.matmul import matmul
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter


class Sides(NamedTuple):
    """The gradients of rows, each an outer product for each of g blocks along the diagonal."""

    left: NDArray[Any]
    """[g, rows, height of a block], in float32 or float64."""
    right: NDArray[Any] | None
    """[g, rows, width]; None of a bias, where it would be 1."""


def sides(
    layer: Layer, place: Parameter, keys: NDArray[Any], errors: NDArray[Any], dtype: DTypeLike = np.float64
) -> Sides:
    """The gradients of a layer's rows for a block in its place there, in `dtype`; `keys` and `errors` in float32 or
    float64.
    """
    errors = errors.astype(dtype, copy=False)
    if place in layer.biases:
        return Sides(errors[None], None)
    keys = keys.astype(dtype, copy=False)
    if layer.groups > 1:
        rows, parts = len(keys), layer.groups
        own = errors.reshape(rows, parts, -1).transpose(1, 0, 2)
        return Sides(own, keys.reshape(rows, parts, -1).transpose(1, 0, 2)[:, :, place.start : place.stop])
    columns = keys[None, :, place.start : place.stop]
    return Sides(columns, errors[None]) if place.transposed else Sides(errors[None], columns)


def pairs(slots: Sides, rows: Sides) -> Doubles:
    """float64[m, r]: the dot product of each slot's gradient with that of each row. Both are of one type."""
    left = matmul(slots.left, rows.left.transpose(0, 2, 1))
    if slots.right is None or rows.right is None:
        found: Doubles = left.sum(axis=0, dtype=np.float64)
        return found
    right = matmul(slots.right, rows.right.transpose(0, 2, 1))
    found = np.multiply(left[0], right[0], dtype=np.float64)
    for own, other in zip(left[1:], right[1:], strict=True):
        found += np.multiply(own, other, dtype=np.float64)
    return found


def along(matrix: Doubles, rows: Sides) -> Doubles:
    """float64[r]: the dot product of a matrix of the block's shape with each row's gradient."""
    if rows.right is None:
        return matmul(rows.left[0], matrix)
    parts = matrix.reshape(len(rows.left), -1, matrix.shape[1])
    of_weights: Doubles = np.einsum("grc,grc->r", matmul(rows.left, parts), rows.right)
    return of_weights


def by_example(products: Doubles, examples: NDArray[np.int64], count: int) -> Doubles:
    """float64[..., n]: the sums over the rows of each example; `examples` int64[r], `products` float64[..., r]."""
    if len(examples) == count and np.array_equal(examples, np.arange(count)):
        return products
    order = np.argsort(examples, kind="stable")
    present, starts = np.unique(examples[order], return_index=True)
    found = np.zeros((*products.shape[:-1], count))
    found[..., present] = np.add.reduceat(products[..., order], starts, axis=-1)
    return found

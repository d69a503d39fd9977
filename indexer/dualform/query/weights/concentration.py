"""How far a mask moves a layer's weights under a rule that scales gradients, and in how few of their entries.

    share       sum over the furthest 1 % of the entries of (w - w_whole)^2  /  sum over all of them
    greatest    max |w - w_whole|  /  ||W_T - W_0||

w: the entries of [W | b] as the slots that stay make them, through the scales that all slots made. No reconstruction
error sees what these say: shares add up to the whole however far single ones go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dualform.answers import Concentration
from dualform.query.view import Check, View
from dualform.query.weights.recorded_blocks import blocks_of, build, length
from dualform.query.weights.requirement import require
from dualform.query.where.mask import Selection
from dualform.questions.arguments import check_step
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer

_SHARE = 100
"""One in so many entries."""


def concentration(
    view: View,
    layer: Layer,
    selections: Mapping[str, Selection],
    at_step: int | None,
    allow_inexact: bool,
    check: Check,
) -> Concentration:
    """The figures of a layer under the masks of `selections`, by layer: its own and those it shares a block with.

    Raises Inexact as `require` says.
    """
    check_step(at_step, view.snapshot.steps)
    require(view, layer.stored, at_step, allow_inexact, check)
    key = ("concentration", layer.name, tuple(sorted((n, s.identity) for n, s in selections.items())), at_step)
    return view.cache.get(key, lambda: _measure(view, layer, selections, at_step, check))


def _measure(
    view: View, layer: Layer, selections: Mapping[str, Selection], at_step: int | None, check: Check
) -> Concentration:
    stored, rows = layer.stored, layer.own_values
    masked = build(view, stored, selections[stored.name], at_step, check, selections)
    whole = build(view, stored, selections[stored.name], at_step, check, selections, whole=True)
    initial = blocks_of(stored, view.stored_weights("initial"))
    moves = np.concatenate([np.abs(masked[name][rows] - own[rows]).reshape(-1) for name, own in whole.items()])
    return _figures(moves, length({name: own[rows] - initial[name][rows] for name, own in whole.items()}))


def _figures(moves: Doubles, way: float) -> Concentration:
    """`moves` float64[entries]: how far each moved."""
    furthest = float(moves.max())
    if not furthest:
        return Concentration(math.nan, 0.0)
    squares = np.square(moves / furthest)  # no square of a small move underflows
    few = math.ceil(len(squares) / _SHARE)
    held = np.partition(squares, len(squares) - few)[-few:]
    return Concentration(float(held.sum() / squares.sum()), furthest / way if way else math.inf)

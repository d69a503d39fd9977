"""How exact the blocks of a layer are, each by what its own training allows, and what the layer is called for it.

exact               each block is within EXACT of the distance that it moved, or within the rounding of its weights;
                    one that stood still beside the layer's others, and missed as little, is not asked
exact to bfloat16   within BFLOAT16 of it, or the rounding, where the block's training computed in bfloat16; and of
                    what is bfloat16 itself, or whose optimizer computes in it, nothing better is said
off                 anything else
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dualform.query.view import View
from dualform.query.weights.block_rules import BlockRules, rule_of
from dualform.store.layer import PRECISIONS
from dualform.store.parameter import Parameter

Name: TypeAlias = Literal["exact", "exact to bfloat16", "approximate"]
NAMES: Sequence[Name] = ("exact", "exact to bfloat16", "approximate")
"""The best first."""
EXACT = 1e-3
STILL = 1e-5
"""Of the distance that a layer moved: no output tells whether a parameter moved less. So little moves the bias of
attention's keys under SGD, whose gradient is rounding alone.
"""
BFLOAT16 = 2.0**-7


@dataclass(frozen=True)
class BlockDistance:
    """How far the record is from one block. Norms of all of its numbers."""

    block: Parameter
    accumulated: float
    """|| the record's - the real one ||."""
    way: float
    """How far it moved."""
    rounding: float
    """What rounding of float32 weights alone may account for."""

    @property
    def share(self) -> float:
        """Of how far the block moved."""
        if not self.way:
            return math.inf if self.accumulated else 0.0
        return self.accumulated / self.way

    def within(self, limit: float) -> bool:
        return self.share <= limit or self.accumulated <= self.rounding


def name_of(view: View, misses: Sequence[BlockDistance]) -> Name:
    """What a layer is called, from the misses of its blocks, or of those that were measured: what the worst is."""
    asked = _moved(misses) or misses  # a layer that stood still as a whole is asked as a whole
    return max((name_of_block(view, miss) for miss in asked), key=NAMES.index, default="exact")


def name_of_block(view: View, miss: BlockDistance) -> Name:
    coarse = _computed_in_bfloat16(view, miss.block)
    # One entry of bfloat16 weights that was rounded to the other side is seldom among those that are watched.
    if miss.share <= EXACT or (not coarse and miss.within(EXACT)):
        return "exact to bfloat16" if _at_best_bfloat16(view, miss) else "exact"
    return "exact to bfloat16" if coarse and miss.within(BFLOAT16) else "approximate"


def precision(view: View, blocks: Iterable[Parameter]) -> str:
    """The coarsest type that any layer was computed in that holds one of some blocks."""
    own = {block.block_name for block in blocks}
    holders = [o for o in view.snapshot.layers.values() if not own.isdisjoint(b.block_name for b in o.parameters)]
    return min((holder.dtype for holder in holders), key=PRECISIONS.index)


def _moved(misses: Sequence[BlockDistance]) -> list[BlockDistance]:
    """Without blocks that stood still beside the others: what such a one misses is in the layer's error alone."""
    still = STILL * math.hypot(*(miss.way for miss in misses))
    return [miss for miss in misses if not (miss.way <= still and miss.accumulated <= still)]


def _computed_in_bfloat16(view: View, block: Parameter) -> bool:
    """Whether the training computed a block's gradient, or an update of it, in bfloat16."""
    return precision(view, [block]) == "bfloat16" or bool(rule_of(view.snapshot, block.block_name).precision)


def _at_best_bfloat16(view: View, miss: BlockDistance) -> bool:
    """Whether a block is bfloat16 itself and its updates were rounded, or its optimizer computes in it."""
    if "bfloat16" in BlockRules(view.snapshot, miss.block).halves:
        return True
    return bool(rule_of(view.snapshot, miss.block.block_name).precision) and miss.accumulated > 0

"""What the slots of each shard brought to a layer's weights. See dualform.query.weights.slot_sum."""

from __future__ import annotations

from dataclasses import dataclass

from dualform.query.shards.share import OneShard, selection
from dualform.query.view import Check
from dualform.query.weights.slot_products import SlotSum
from dualform.query.weights.slot_sum import slot_coefficients, sum_of_shard
from dualform.query.where.mask import Source


@dataclass(frozen=True, eq=False)
class SlotSumShare:
    layer: str
    source: Source
    at_step: int | None
    stored: bool
    """As of the selection."""

    def answer(self, shard: OneShard, check: Check) -> SlotSum:
        layer = shard.layer(self.layer)
        chosen = selection(shard.whole, layer, self.source, check)
        key = ("slot sum", layer.name, chosen.identity, self.at_step, self.stored)

        def made() -> SlotSum:
            coefficients = slot_coefficients(shard.whole, layer, chosen, self.at_step)
            return sum_of_shard(shard.rows, layer, coefficients, check, self.stored)

        return shard.part.cache.get(key, made, check)

"""What a ledger will take, told from the first steps of the training that it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from time import perf_counter

import torch
from torch import nn

from dualform.errors import BadInput
from dualform.influence.influence import Influence
from dualform.influence.walk import walk
from dualform.store.byte_counts import readable

TRIED = 200
"""Steps: under momentum of 0.9 a slot is followed through 66, and those that come later are the ones that count."""


@dataclass(frozen=True)
class LedgerCost:
    """The estimated cost of a ledger. `str(cost)` is a sentence."""

    groups: int
    """The number of sums for each example."""
    examples: int
    steps: int
    tried: int
    """The number of steps that were run for the estimate."""
    bytes: int
    """Bytes of the ledger: 8 for each group and example."""
    held_bytes: int
    """The most bytes held meanwhile, for slots that later updates still move, in the steps that were run."""
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.examples:,} examples and {self.groups:,} groups through {self.steps:,} steps: about "
            f"{self.seconds:,.0f} s, {readable(self.bytes)} of sums and {readable(self.held_bytes)} held meanwhile, by "
            f"the first {self.tried:,} steps."
        )


@torch.inference_mode(False)
def estimate_ledger(
    path: str | PathLike[str],
    model: nn.Module,
    influence: Influence,
    *,
    allow_inexact: bool = False,
    tried: int = TRIED,
) -> LedgerCost:
    """Estimate the RAM and time that `ledger` needs on this machine, from its first steps.

    `tried`: how many steps to run, at least 2. Raises as `ledger`, and BadInput for a smaller `tried`.
    """
    if isinstance(tried, bool) or not isinstance(tried, int) or tried < 2:
        raise BadInput(
            f"tried must be a whole number from 2 on, not {tried!r}.", hint=f"For example tried={TRIED}.", field="tried"
        )
    began = perf_counter()
    own = walk(path, model, influence, allow_inexact=allow_inexact)
    taken, held = min(tried, own.steps), 0
    with own.attached():
        ends = [perf_counter()]
        for step in range(taken):
            own.advance(step)
            held = max(held, own.held_bytes)
            ends.append(perf_counter())
    # Slots go on moving weights for a while, so that steps cost more after the first of them.
    later = [after - before for before, after in pairwise(ends)][taken // 2 :]
    seconds = ends[-1] - began + (own.steps - taken) * (sum(later) / max(len(later), 1))
    groups, examples = own.sums.shape
    return LedgerCost(groups, examples, own.steps, taken, own.sums.nbytes, held, seconds)

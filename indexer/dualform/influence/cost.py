"""What a ledger, or an adjoint, will take, told from the first steps of the training that it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, pairwise
from os import PathLike
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import nn

from dualform.answers.table import counted
from dualform.errors import BadInput
from dualform.influence.adjoint import HELD, Queries, carried_back, half_of, queries_at_once, stride_within
from dualform.influence.ledger import Influence, walk
from dualform.influence.rerun import Batches, Position, recorded_training
from dualform.record.examples import Loss
from dualform.record.query_sets import Inputs, device_of
from dualform.store.files.ram_budget import readable

TRIED = 200
"""Steps: under momentum of 0.9 a slot is followed through 66, and those that come later are the ones that count."""
_TRIED_UPDATES = 20


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


@dataclass(frozen=True)
class AdjointCost:
    """The estimated cost of an adjoint, and of a retraining. `str(cost)` is a sentence."""

    queries: int
    updates: int
    passes: int
    """In how many groups the queries are carried back, as RAM allows."""
    bytes: int
    """Held for weights and derivatives."""
    seconds: float
    seconds_a_retraining: float

    def __str__(self) -> str:
        passes = f"{self.passes} passes" if self.passes > 1 else "1 pass"
        return (
            f"{counted(self.queries, 'query')} through {counted(self.updates, 'update')} in {passes}: about "
            f"{self.seconds:,.0f} s and {readable(self.bytes)}. A retraining takes about "
            f"{self.seconds_a_retraining:,.1f} s."
        )


@torch.inference_mode(False)
def estimate_adjoint(
    path: str | PathLike[str],
    model: nn.Module,
    queries: tuple[Inputs, Any],
    loss: Loss,
    batches: Batches,
    train_loss: Loss | None = None,
    *,
    ram: int | str | None = None,
) -> AdjointCost:
    """Estimate the RAM and time that `adjoint` and `retrain` need on this machine, from the first updates.

    Takes the arguments of `adjoint`, and raises as it does.
    """
    began = perf_counter()
    training = recorded_training(path, model, batches, train_loss or loss)
    asked, half, updates = Queries(queries, loss, training), half_of(ram), training.updates
    stride, at_once = stride_within(training, half), queries_at_once(training, half)
    positions, ends = list[Position](), list[float]()
    for position in islice(training.checked(), _TRIED_UPDATES + 1):
        positions.append(position)
        ends.append(perf_counter())
    count = len(asked.losses_at(positions[-1]))
    state = asked.slopes(positions[-1], slice(at_once))
    values = torch.zeros(min(at_once, count), len(training.seen), device=device_of(training.model))
    forward, backward = list[float](), list[float]()
    for update, position in reversed(list(zip(updates, positions[:-1], strict=False))):
        start = perf_counter()
        training.next(position, update)
        middle = perf_counter()
        state = carried_back(training, position, update, state, values)
        forward.append(middle - start)
        backward.append(perf_counter() - middle)
    checked = [after - before for before, after in pairwise(ends)]
    passes = -(-count // at_once)
    again = median(forward) if stride > 1 else 0.0
    seconds = checked[0] - median(checked) + len(updates) * (median(checked) + passes * (again + median(backward)))
    held = (len(updates) if stride == 1 else 2 * stride) + HELD * min(at_once, count)
    return AdjointCost(
        count,
        len(updates),
        passes,
        held * training.begin().nbytes,
        ends[0] - began + seconds,
        len(updates) * median(forward),
    )

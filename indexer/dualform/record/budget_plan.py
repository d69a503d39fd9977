"""What a recorder was asked to keep to on disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, TypeGuard

from torch import Tensor, nn
from torch.optim import Optimizer

from dualform.errors import BadInput
from dualform.record.budget import TABLES_BYTES, held_back
from dualform.record.disk_use import disk_use
from dualform.record.training_shard import TrainingShard
from dualform.store.byte_counts import bytes_of, readable
from dualform.store.manifest import shard_folder
from dualform.store.sampling import KEEPS, Keep, Sampling


@dataclass(frozen=True)
class BudgetPlan:
    """What a recorder was asked to keep to."""

    rule: Sampling
    steps: int | None
    """How many are planned, of all runs."""
    memory: Path
    """The folder that the budget is of, which a further run's own lies in."""
    rank: int = 0
    ranks: int = 1
    """Processes that share the budget, each with as much."""

    @classmethod
    def of(
        cls, budget: int | str, keep: Keep, steps: int | None, seed: int, memory: Path, ranks: TrainingShard | None
    ) -> BudgetPlan:
        """Of a recorder's arguments; of processes that say how many they are, each gets an equal part. Raises BadInput
        for what they cannot be.
        """
        if keep not in KEEPS:
            raise BadInput(f"Unknown keep {keep!r}.", hint=f"Choose {' or '.join(map(repr, KEEPS))}.", field="keep")
        if not (is_whole(seed) and -(2**63) <= seed < 2**64):
            raise BadInput(
                f"seed must be a whole number of 64 bits, not {seed!r}.",
                hint="Pass -2**63 to 2**64 - 1, for example seed=0.",
                field="seed",
            )
        count = int(getattr(ranks, "count", 1))
        rule = Sampling(keep, int(seed), bytes_of(budget) // count)
        return cls(rule, whole_steps(steps), memory, ranks.number if ranks else 0, count)

    def check(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Raises BadInput where the budget does not hold what every memory of a model has, and what the optimizers kept
        before; of a further run, beside what the earlier ones take.
        """
        weights = _bytes([*model.parameters(), *model.buffers()])
        kept = [own for optimizer in optimizers for state in optimizer.state.values() for own in state.values()]
        need = held_back(self.rule.budget) + TABLES_BYTES + self.taken()
        need += (2 * weights + _bytes(kept)) * (self.rank == 0)
        if self.rule.budget < need:
            whose = f", {readable(self.rule.budget)} for each of {self.ranks} ranks," if self.ranks > 1 else ""
            raise BadInput(
                f"budget={readable(self.rule.budget * self.ranks)}{whose} is too small: weights, optimizer state, "
                f"tables and earlier runs take {readable(need)} before the first slot.",
                hint=f'Pass at least budget="{readable(2 * need * self.ranks)}".',
                field="budget",
            )

    def taken(self) -> int:
        """Bytes that all files of this process's part take by now."""
        return disk_use(self.memory, shard_folder(self.rank) if self.ranks > 1 else None)

    def __str__(self) -> str:
        what = "samples" if self.rule.keep == "samples" else "whole steps"
        whose = f", {readable(self.rule.budget)} for each of {self.ranks} ranks" if self.ranks > 1 else ""
        planned = f" in {self.steps:,} steps" if self.steps else ""
        return (
            f"at most {readable(self.rule.budget * self.ranks)} on disk{whose}{planned}. If that is too little, a "
            f"share of the {what} is kept; outputs and weights need all of them"
        )


def whole_steps(steps: int | None) -> int | None:
    """How many are planned, as an int. Raises BadInput for what is no such number."""
    if steps is not None and not (is_whole(steps) and steps >= 1):
        raise BadInput(
            f"steps must be a whole number of at least 1, or None, not {steps!r}.",
            hint="Pass the number of planned steps, for example steps=10_000.",
            field="steps",
        )
    return None if steps is None else int(steps)


def is_whole(number: object) -> TypeGuard[int]:
    return isinstance(number, Integral) and not isinstance(number, bool)


def _bytes(tensors: Iterable[Any]) -> int:
    return sum(own.numel() * own.element_size() for own in tensors if isinstance(own, Tensor))

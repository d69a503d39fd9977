"""How concentrated the attention is: scores by rank over all slots, and the share of it that the best have together."""

from __future__ import annotations

from dataclasses import dataclass

from dualform.answers import MemoryInfo
from dualform.methods import Answers
from dualform_explorer.questions import scored
from dualform_explorer.state import State

_NAMED = (10, 100, 1000, 10_000, 100_000)
"""Ranks whose shares are said in words."""


@dataclass(frozen=True)
class RankPoint:
    rank: int
    score: float
    share: float
    """Of the absolute scores of all slots, that of the ranks up to this one."""


@dataclass(frozen=True)
class RanksPanel:
    points: tuple[RankPoint, ...]
    """From the best slot to the last, evenly on a logarithmic axis."""
    named: tuple[RankPoint, ...]
    """Those at round ranks, or the next one behind them."""
    count: int
    """Slots that have a rank."""
    effective: float
    """How many slots, weighed alike, would be as concentrated: (sum of |s|)^2 over the sum of s^2."""

    @property
    def curve(self) -> list[tuple[int, float, float]]:
        """What is drawn: of each point its rank, score and share."""
        return [(own.rank, own.score, own.share) for own in self.points]


def ranks_panel(memory: Answers, info: MemoryInfo, state: State) -> RanksPanel:
    answer = memory.distribution(**scored(memory, info, state))
    columns = (answer.ranks.tolist(), answer.scores[0].tolist(), answer.shares[0].tolist())
    points = tuple(RankPoint(*own) for own in zip(*columns, strict=True))
    named = [next(own for own in points if own.rank >= rank) for rank in _NAMED if rank < answer.count]
    return RanksPanel(
        points=points,
        named=tuple(named),
        count=answer.count,
        effective=float(answer.effective_slots[0]),
    )

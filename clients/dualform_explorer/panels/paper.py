"""One layer as the paper shows it: its best samples (figure 10), sums by group (figure 5), and in each group the best
scores in descending order (figure 4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dualform.answers import MemoryInfo
from dualform.methods import Answers
from dualform_explorer.chip import alike
from dualform_explorer.groups import MOST_GROUPS, GroupRow
from dualform_explorer.panels.slots import Slot, slots_panel
from dualform_explorer.panels.sums import SumsPanel, sums_panel
from dualform_explorer.questions import scored
from dualform_explorer.state import State

_BEST = 5
_RANKED = 500
"""Of each group, as in the paper."""
_FEWER = 200
"""In its place where all groups together would have more than _MOST_POINTS."""
_MOST_POINTS = 10_000
"""Of a figure."""


@dataclass(frozen=True)
class PaperPanel:
    layer: str
    best: tuple[Slot, ...]
    sums: SumsPanel
    largest: GroupRow | None
    """Of the groups that the mask leaves, that whose sum is largest in size; None where it leaves none."""
    curves: tuple[tuple[GroupRow, tuple[float, ...]], ...]
    """Of each group its best scores, best first; none of one that the mask leaves out. Empty where there are more
    groups than a figure can show."""
    ranked: int
    """Scores that each group has at most."""


def paper_panel(memory: Answers, info: MemoryInfo, state: State, layer: str) -> PaperPanel:
    """Contributions are those of one layer: elsewhere the score is the signed one."""
    score = state.score if layer == state.layer or state.score != "contribution" else "dot"
    own = replace(state, layer=layer, score=score, k=120, by_sample=True)
    sums = sums_panel(memory, info, own)
    rows = [row for row in sums.rows if not row.gone]
    largest = max(rows, key=lambda row: abs(row.group.sum), default=None)
    ranked = _RANKED if len(rows) * _RANKED <= _MOST_POINTS else _FEWER
    curves: list[tuple[GroupRow, tuple[float, ...]]] = []
    if sums.total <= MOST_GROUPS:
        hits = memory.topk(**scored(memory, info, own), k=ranked, by=state.by)
        groups = [tuple(map(alike, group)) for group in hits.groups or ()]
        scores = dict(zip(groups, hits.scores[0], strict=True))
        curves = [(row, tuple(map(float, scores.get(row.group.values, ())))) for row in sums.rows]
    best = slots_panel(memory, info, own).slots[:_BEST]
    return PaperPanel(layer, best, sums, largest, tuple(curves), ranked)

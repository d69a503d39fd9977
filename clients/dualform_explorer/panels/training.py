"""How the attention is spread over the training, step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dualform.answers import MemoryInfo
from dualform.methods import Answers
from dualform_explorer.groups import hue_of, scored
from dualform_explorer.state import State

MOST_BARS = 200


@dataclass(frozen=True)
class StepBar:
    first: int
    last: int
    """Both included."""
    sum: float
    count: int
    """Slots."""
    parts: tuple[tuple[str | None, int, float], ...]
    """By dataset: its name, its hue and its share of the sum."""


@dataclass(frozen=True)
class StepsPanel:
    bars: tuple[StepBar, ...]
    steps: int
    """Recorded ones."""
    each: int
    """Steps of a bar."""
    total: float
    datasets: tuple[tuple[str | None, int], ...]
    """Those that occur, each with its hue."""

    @property
    def drawn(self) -> list[tuple[int, int, list[tuple[int, float]], float]]:
        """Of each bar its first and last step, the hue and size of its parts, and its sum."""
        return [(own.first, own.last, [(hue, size) for _, hue, size in own.parts], own.sum) for own in self.bars]


def steps_panel(memory: Answers, info: MemoryInfo, state: State, most: int | None = None) -> StepsPanel:
    """`most`: bars; MOST_BARS where nothing is said."""
    by = ("dataset", "step") if info.datasets else ("step",)
    sums = memory.group_sum(**scored(memory, info, state), by=by)
    steps = np.array([group[-1] for group in sums.groups], dtype=np.int64)
    datasets = [group[0] if len(by) == 2 else None for group in sums.groups]
    each = max(1, -(-info.steps // (most or MOST_BARS)))
    names = sorted(set(datasets), key=lambda own: (own is None, own or ""))
    bars = -(-info.steps // each)
    parts = np.zeros((len(names), bars))
    counts = np.zeros(bars, dtype=np.int64)
    place = {name: number for number, name in enumerate(names)}
    np.add.at(parts, (np.array([place[name] for name in datasets], dtype=np.int64), steps // each), sums.sums[0])
    np.add.at(counts, steps // each, sums.counts)
    hues = {name: hue_of(info, ("dataset",), (name,)) for name in names}
    return StepsPanel(
        bars=tuple(
            StepBar(
                first=bar * each,
                last=min((bar + 1) * each, info.steps) - 1,
                sum=float(parts[:, bar].sum()),
                count=int(counts[bar]),
                parts=tuple(
                    (name, hues[name], float(parts[place[name], bar])) for name in names if parts[place[name], bar]
                ),
            )
            for bar in range(bars)
        ),
        steps=info.steps,
        each=each,
        total=float(sums.sums[0].sum()),
        datasets=tuple((name, hues[name]) for name in names),
    )

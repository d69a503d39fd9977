"""When the datapoints of greatest weight were trained on (the end of the paper's section 5.2).

The ranking is by signed weight. Behind the first layer no weight is negative, and signed is what the paper ranks by.
Shapes: n queries, k datapoints of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.methods import Answers
from dualform_studies.claims import Claim, judge, judged, verdict
from dualform_studies.images.attention import Datapoints, best_slots, sampled_rows
from dualform_studies.images.training import Checkpoint
from dualform_studies.report import in_fraction

BEST = 500
"""Datapoints of each query, as in the paper."""
SAMPLED = 200
"""Test images over which a mean is taken."""
EVEN = 1 / 3
"""The share of a third of the training whose datapoints are as likely among the best as all others."""
_PREFERRED = 0.38
"""A third of the training is preferred where more of the best datapoints than this come from it."""
_LEAST, _GREATEST = EVEN / 2, 2 / 3
"""Datapoints are spread out while each third has at least half of its even share, in part while none has most."""


@dataclass(frozen=True, eq=False)
class Dates:
    """The updates that the best datapoints of each query were part of."""

    steps: NDArray[np.int64]
    """int64[n, k]."""
    updates: int
    """Of the training."""

    @property
    def thirds(self) -> list[float]:
        """The share of the datapoints in the first, middle and last third of the training, a mean over the queries."""
        numbers = 3 * self.steps // self.updates
        return [float((numbers == third).mean(axis=1).mean()) for third in range(3)]

    def distance(self) -> NDArray[np.float64]:
        """float64[n]: Kolmogorov's, of each query's dates from an even spread over the updates, from 0 to 1."""
        queries, best = self.steps.shape
        cells = self.steps + self.updates * np.arange(queries)[:, None]
        by_update = np.bincount(cells.ravel(), minlength=queries * self.updates).reshape(queries, self.updates)
        even = np.arange(1, self.updates + 1) / self.updates
        distance: NDArray[np.float64] = np.abs(by_update.cumsum(axis=1) / best - even).max(axis=1)
        return distance


def ask_dates(
    memory: Answers, layers: Sequence[str], checkpoint: Checkpoint, datapoints: Datapoints, seed: int = 0
) -> dict[str, Dates]:
    """By layer, the dates of the best datapoints of SAMPLED test images drawn by chance."""
    rows = sampled_rows(len(checkpoint.dataset.test), SAMPLED, seed)
    return {
        layer: Dates(
            datapoints.steps[best_slots(memory, layer, checkpoint.query_set, rows, BEST, checkpoint.where, "dot")],
            checkpoint.step,
        )
        for layer in layers
    }


def date_claims(dates: Mapping[str, Dates]) -> list[Claim]:
    """That recent datapoints are not preferred, and that datapoints are spread out, behind the first layer."""
    behind = dict(list(dates.items())[1:])
    thirds = {layer: one.thirds for layer, one in behind.items()}
    distances = {layer: f"{one.distance().mean():.3f}" for layer, one in behind.items()}
    of = f"of the {BEST} best of {len(next(iter(behind.values())).steps)} test images"
    names = " and ".join(thirds)
    spread = [2 if min(shares) >= _LEAST else int(max(shares) <= _GREATEST) for shares in thirds.values()]
    return [
        judged(
            "single.recent",
            verdict(sum(shares[2] <= _PREFERRED for shares in thirds.values()), len(behind), 1),
            f"{_listed({layer: _percent([shares[2]]) for layer, shares in thirds.items()})} {of} come from the last "
            "third of the updates",
            names=names,
            preferred=_percent([_PREFERRED]),
            even=_percent([EVEN]),
        ),
        judge(
            "single.spread",
            min(spread),
            f"{_listed({layer: _percent(shares) for layer, shares in thirds.items()})} {of} come from the first, "
            f"middle and last third of the updates; Kolmogorov distance to an even spread {_listed(distances)}",
            names=names,
            best=BEST,
            least=in_fraction(_LEAST),
            greatest=in_fraction(_GREATEST),
        ),
    ]


def _percent(shares: Sequence[float]) -> str:
    return " / ".join(f"{100 * share:.1f}" for share in shares) + " %"


def _listed(said: Mapping[str, str]) -> str:
    return ", ".join(f"{words} at {layer}" for layer, words in said.items())

"""What section 5.2 of the paper says of whole trainings: Table 1, when the best datapoints were seen, and error norms.

Table 1 counts how often the class that draws most attention, the argmax of a layer's absolute attention weights summed
over each class, is the true one, or the one recognised.

The dates of the datapoints of greatest weight are ranked by signed weight. After the first layer no weight is negative,
and signed is what the paper ranks by.

A side note varies the sum:    sum_t |alpha_t| ||e_t||        over the slots t of a class; e_t = a_s c_s delta_t is the
value at a step.

Shapes: T slots, G classes, n test images, k datapoints of each, d_in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.methods import Answers
from dualform.query.engine import Engine
from dualform.questions import QuerySetExamples
from dualform_studies.claims import Beside, Claim, judge, judged, verdict
from dualform_studies.images.attention import Datapoints, best_slots, sampled_rows
from dualform_studies.images.training import Checkpoint
from dualform_studies.recorded_memory import distinct_slots, key_blocks, layer_info, open_recorded, stored_queries
from dualform_studies.report import Report, in_fraction, percent

Cells: TypeAlias = dict[str, dict[str, float | None]]
"""By layer and cell, in per cent; None where no test image is of that kind."""

CELLS = {
    "no_target": "network wrong, the true class leads",
    "no_output": "network wrong, the recognised class leads",
    "yes": "network right, its class leads",
}

PAPER = {
    "layer-0": {"no_target": (17.2, 2.7), "no_output": (49.5, 1.5), "yes": (75.1, 0.0)},
    "layer-1": {"no_target": (18.0, 2.9), "no_output": (52.9, 2.9), "yes": (78.8, 0.8)},
    "layer-2": {"no_target": (20.6, 2.6), "no_output": (60.1, 4.5), "yes": (84.7, 1.1)},
}
"""Mean and standard deviation of five runs (the paper's Table 1)."""

CODE = {
    5000: {"layer-0": (75.03, 75.05), "layer-1": (79.61, 78.08), "layer-2": (85.66, 83.97)},
    3000: {"layer-0": (75.75, 75.59), "layer-1": (79.50, 78.27), "layer-2": (84.05, 84.01)},
}
"""By number of updates and layer: the cells "yes" that the paper's code gave, run again with the seeds 1 and 2."""

DEVIATIONS, POINTS = 2, 0.1
"""A cell is met within so many of the paper's deviations, or within so many points where its deviation is 0.0."""


def ask_checkpoints(
    folder: Path, layers: Sequence[str], checkpoints: Sequence[Checkpoint]
) -> tuple[list[Cells], list[float]]:
    """Cells and accuracy of a recorded run at each checkpoint. Its keys, gigabytes of them, are let go on return."""
    with open_recorded(folder) as memory:
        cells = [ask_cells(memory, layers, checkpoint) for checkpoint in checkpoints]
        return cells, [checkpoint.accuracy(memory) for checkpoint in checkpoints]


def ask_cells(memory: Answers, layers: Sequence[str], checkpoint: Checkpoint) -> Cells:
    """One run's cells, over all test images."""
    labels, given = checkpoint.dataset.test.labels, checkpoint.classes_given(memory)
    found = {}
    for layer in layers:
        answer = memory.group_sum(
            layer, QuerySetExamples(checkpoint.query_set), by="label", where=checkpoint.where, score="abs"
        )
        classes = np.array([label for (label,) in answer.groups], dtype=np.int64)
        found[layer] = count_cells(classes[answer.sums.argmax(axis=1)], labels, given)
    return found


def count_cells(
    strongest: NDArray[np.int64], labels: NDArray[np.int64], given: NDArray[np.int64]
) -> dict[str, float | None]:
    """Cells of one layer, from int64[n]: the class that draws most attention, the true one, and the one recognised."""
    right = given == labels
    return {
        "no_target": _percent(strongest[~right] == labels[~right]),
        "no_output": _percent(strongest[~right] == given[~right]),
        "yes": _percent(strongest[right] == labels[right]),
    }


def over_runs(runs: Sequence[Cells]) -> Report:
    """By layer and cell: what each run gave, mean, deviation, and how far that is from the paper."""
    found: Report = {layer: {} for layer in runs[0]}
    for layer, cells in found.items():
        for cell in CELLS:
            paper, each = PAPER[layer][cell], [run[layer][cell] for run in runs]
            known = [value for value in each if value is not None]
            mean = float(np.mean(known)) if known else None
            cells[cell] = {
                "runs": each,
                "mean": mean,
                "deviation": float(np.std(known, ddof=1)) if len(known) > 1 else None,
                "paper": list(paper),
                "points_off": None if mean is None else mean - paper[0],
            }
    return found


def is_met(cell: Report) -> bool:
    """Whether a cell is within two of the paper's deviations, or within 0.1 point where that deviation is 0.0."""
    points, deviation = cell["points_off"], cell["paper"][1]
    return points is not None and abs(points) <= (DEVIATIONS * deviation or POINTS)


def cells_met(layers: Report) -> int:
    """Of the nine cells that `over_runs` gives, how many are met."""
    return sum(is_met(layers[layer][cell]) for layer in PAPER for cell in CELLS)


def _percent(hits: NDArray[np.bool_]) -> float | None:
    return 100 * float(hits.mean()) if len(hits) else None


MET = f"within {DEVIATIONS} of the paper's deviations, or within {POINTS} point where its deviation is 0.0"


def table_1_claims(layers: Report) -> tuple[Claim, ...]:
    """What section 5.2 concludes from Table 1, put to `layers` as `over_runs` gives them."""
    right = [layers[layer]["yes"] for layer in PAPER]
    met, every = cells_met(layers), len(PAPER) * len(CELLS)
    rising = [_rises(of_run) for of_run in zip(*(cell["runs"] for cell in right), strict=True)]
    paper = " / ".join(f"{cell['paper'][0]:.1f}" for cell in right)
    ours = " / ".join(in_words(cell["mean"], None) for cell in right)
    return (
        judge("table-1.correlates", met, f"{met} of {every} cells met; {ours} %", paper=paper, met=MET),
        judge(
            "table-1.late-layers",
            sum(rising) / len(rising),
            f"rises from layer to layer in {sum(rising)} of {len(rising)} runs",
            paper=paper,
        ),
    )


def beside_table_1(layers: Report, steps: int) -> Iterator[Beside]:
    """The nine cells after so many updates, as `over_runs` gives them, beside the paper's."""
    for layer, cells in PAPER.items():
        for cell, paper in cells.items():
            found, code = layers[layer][cell], CODE.get(steps, {}).get(layer, ()) if cell == "yes" else ()
            what, ours = f"Table 1, {layer}, {CELLS[cell]} (%)", in_words(found["mean"], found["deviation"])
            yield Beside(what, ours, in_words(*paper), ", ".join(f"{value:.2f}" for value in code))


def in_words(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "-"
    return f"{mean:.1f}" if deviation is None else f"{mean:.1f} ± {deviation:.1f}"


def _rises(by_layer: Sequence[float | None]) -> bool:
    """Whether each layer has a cell, and each more than the one before it."""
    return all(low is not None and high is not None and low < high for low, high in pairwise(by_layer))


BEST = 500
"""Datapoints of each query whose dates are looked at, as in the paper."""
SAMPLED = 200
"""Test images over which a mean is taken."""
EVEN = 1 / 3
"""The share of a third of the training whose datapoints are as likely among the best as all others."""
_PREFERRED = 0.38
"""A third of the training is preferred where more of the best datapoints than this come from it."""
_LEAST, _GREATEST = EVEN / 2, 2 / 3
"""Datapoints are spread out while each third has at least half of its even share, in part while none has most."""


def ask_dates(
    memory: Answers, layers: Sequence[str], checkpoint: Checkpoint, points: Datapoints
) -> dict[str, NDArray[np.int64]]:
    """By layer, int64[n, k]: the updates of the best datapoints of SAMPLED test images drawn by chance."""
    rows = sampled_rows(len(checkpoint.dataset.test), SAMPLED)
    return {layer: points.steps[best_slots(memory, layer, checkpoint, rows, BEST, "dot")] for layer in layers}


def thirds(steps: NDArray[np.int64], updates: int) -> list[float]:
    """The share of the dates int64[n, k] in the first, middle and last third of so many updates, a mean over n."""
    numbers = 3 * steps // updates
    return [float((numbers == third).mean(axis=1).mean()) for third in range(3)]


def kolmogorov(steps: NDArray[np.int64], updates: int) -> NDArray[np.float64]:
    """float64[n]: the distance of each row of the dates from an even spread over so many updates, from 0 to 1."""
    queries, best = steps.shape
    cells = steps + updates * np.arange(queries)[:, None]
    by_update = np.bincount(cells.ravel(), minlength=queries * updates).reshape(queries, updates)
    even = np.arange(1, updates + 1) / updates
    return np.asarray(np.abs(by_update.cumsum(axis=1) / best - even).max(axis=1))


def date_claims(dates: Mapping[str, NDArray[np.int64]], updates: int) -> list[Claim]:
    """That recent datapoints are not preferred, and that datapoints are spread out, after the first layer."""
    later = dict(list(dates.items())[1:])
    shares = {layer: thirds(steps, updates) for layer, steps in later.items()}
    of = f"of the {BEST} best of {len(next(iter(later.values())))} test images"
    names = " and ".join(shares)

    def listed(told: Mapping[str, str]) -> str:
        return ", ".join(f"{words} at {layer}" for layer, words in told.items())

    last = {layer: _in_percent(own[2]) for layer, own in shares.items()}
    distances = {layer: f"{kolmogorov(steps, updates).mean():.3f}" for layer, steps in later.items()}
    spread = [2 if min(own) >= _LEAST else int(max(own) <= _GREATEST) for own in shares.values()]
    return [
        judged(
            "single.recent",
            verdict(sum(own[2] <= _PREFERRED for own in shares.values()), len(later), 1),
            f"{listed(last)} {of} come from the last third of the updates",
            names=names,
            preferred=_in_percent(_PREFERRED),
            even=_in_percent(EVEN),
        ),
        judge(
            "single.spread",
            min(spread),
            f"{listed({layer: _in_percent(*own) for layer, own in shares.items()})} {of} come from the first, middle "
            f"and last third of the updates; Kolmogorov distance to an even spread {listed(distances)}",
            names=names,
            best=BEST,
            least=in_fraction(_LEAST),
            greatest=in_fraction(_GREATEST),
        ),
    ]


def _in_percent(*shares: float) -> str:
    return " / ".join(f"{100 * share:.1f}" for share in shares) + " %"


MOST = 2 / 3
"""The share of images that makes a trend."""
TRENDS = {
    "greatest": "its own class has the greatest sum",
    "least": "its own class has the least sum",
    "same": "one class, the same for all, has the greatest sum",
}
"""What a recognised test image might show, and with it most of the others."""
_ROWS = 4096


def ask_trends(memory: Engine, layers: Sequence[str], checkpoint: Checkpoint) -> Report:
    """By layer, `trends` of the test images of a checkpoint."""
    given, labels = checkpoint.classes_given(memory), checkpoint.dataset.test.labels
    found: Report = {}
    for layer in layers:
        classes, sums = error_norm_sums(memory, layer, checkpoint.query_set, checkpoint.step)
        found[layer] = trends(sums, classes, labels, given == labels)
    return found


def trends(
    sums: NDArray[np.float64], classes: NDArray[np.int64], labels: NDArray[np.int64], right: NDArray[np.bool_]
) -> dict[str, float | None]:
    """Each of TRENDS as a share of the recognised test images, from 0 to 1; None without any.

    `sums` is float64[n, G] with the classes int64[G]; `labels` is int64[n], and bool[n] `right` where they are given.
    """
    if not right.any():
        return dict.fromkeys(TRENDS)
    greatest, least = classes[sums[right].argmax(axis=1)], classes[sums[right].argmin(axis=1)]
    return {
        "greatest": float((greatest == labels[right]).mean()),
        "least": float((least == labels[right]).mean()),
        "same": float(np.unique(greatest, return_counts=True)[1].max() / len(greatest)),
    }


def trend_claims(layers: Mapping[str, Report]) -> list[Claim]:
    """That there is no consistent trend; `layers` holds `trends` by layer. No claim where no image is recognised."""
    if any(share is None for shares in layers.values() for share in shares.values()):
        return []
    without = sum(max(shares.values()) < MOST for shares in layers.values())
    told = (f"{words}: {', '.join(percent(one[kind]) for one in layers.values())}" for kind, words in TRENDS.items())
    return [
        judged(
            "single.error-norm",
            verdict(without, len(layers), 1),
            f"{'; '.join(told)} ({', '.join(layers)})",
            most=in_fraction(MOST),
            trends="; ".join(TRENDS.values()),
        )
    ]


def error_norm_sums(
    memory: Engine, layer: str, query_set: str, at_step: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """int64[G], the labels in ascending order, and float64[n, G], the sums of each row of a query set.

    Values are as the layer's weight has them after `at_step` updates, None for all of them: a slot of a later step has
    brought nothing yet.
    """
    queries, info = stored_queries(memory, query_set, layer), layer_info(memory, layer)
    slots = np.arange(info.slots)
    norms = np.abs(memory.coefficients(layer, slots, at_step))
    for start in range(0, info.slots, _ROWS):
        block = slice(start, start + _ROWS)
        norms[block] *= np.linalg.norm(memory.values(layer, slots[block]).astype(np.float64), axis=1)
    classes, numbers = np.unique(np.asarray(memory.slots(slots, info.space)["label"]), return_inverse=True)
    # Slots that share a key are scored once: the norms of all of them weigh in it.
    first, rows = distinct_slots(memory, layer)
    cells = np.bincount(rows * len(classes) + numbers, norms, len(first) * len(classes))
    weights = cells.astype(np.float64).reshape(len(first), len(classes))
    sums = _of_one_sign(memory, layer, first, weights, queries)
    return classes, _scanned(memory, layer, first, weights, queries) if sums is None else sums


def _of_one_sign(
    memory: Engine, layer: str, slots: NDArray[np.int64], weights: NDArray[np.float64], queries: NDArray[np.float32]
) -> NDArray[np.float64] | None:
    """Where neither keys nor queries are negative, no score is: weighted key sums, and one product. Else None."""
    if queries.min() < 0:
        return None
    sums = np.zeros((weights.shape[1], queries.shape[1]))
    for block, keys in key_blocks(memory, layer, slots):
        if keys.min() < 0:
            return None
        sums += weights[block].T @ keys
    return np.asarray(queries @ sums.T)


def _scanned(
    memory: Engine, layer: str, slots: NDArray[np.int64], weights: NDArray[np.float64], queries: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Every score, in float32, and what they add up to in float64."""
    sums = np.zeros((len(queries), weights.shape[1]))
    for block, keys in key_blocks(memory, layer, slots):
        scores = queries @ keys.T
        sums += np.abs(scores, out=scores) @ weights[block]
    return sums

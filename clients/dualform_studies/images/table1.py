"""Table 1 of the paper: how often the class that draws most attention is the true one, or the one recognised.

The class that draws most attention is the argmax of a layer's absolute attention weights summed over each class.
Shapes: n test images, r runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.methods import Answers
from dualform.questions import QuerySetExamples
from dualform_studies.claims import Beside, Claim, judge
from dualform_studies.images.training import Checkpoint
from dualform_studies.recorded_memory import open_recorded
from dualform_studies.report import Report

Cells: TypeAlias = dict[str, dict[str, float | None]]
"""By layer and cell, in per cent; None where no test image is of that kind."""

CELLS = {
    "no_target": ("no", "true class"),
    "no_output": ("no", "recognised class"),
    "yes": ("yes", "either"),
}
"""Whether the network is right, and what the argmax is held against."""

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
        return cells, [ask_accuracy(memory, checkpoint) for checkpoint in checkpoints]


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


def ask_accuracy(memory: Answers, checkpoint: Checkpoint) -> float:
    """Fraction of the test images that the network classified as labelled."""
    return float((checkpoint.classes_given(memory) == checkpoint.dataset.test.labels).mean())


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
    return {
        layer: {cell: _cell(layer, cell, [run[layer][cell] for run in runs]) for cell in CELLS} for layer in runs[0]
    }


def is_met(cell: Report) -> bool:
    """Whether a cell is within two of the paper's deviations, or within 0.1 point where that deviation is 0.0."""
    points, deviation = cell["points_off"], cell["paper"][1]
    return points is not None and abs(points) <= (DEVIATIONS * deviation or POINTS)


def cells_met(layers: Report) -> int:
    """Of the nine cells that `over_runs` gives, how many are met."""
    return sum(is_met(layers[layer][cell]) for layer in PAPER for cell in CELLS)


def _cell(layer: str, cell: str, runs: Sequence[float | None]) -> Report:
    known = [value for value in runs if value is not None]
    mean = float(np.mean(known)) if known else None
    paper = PAPER[layer][cell]
    points = None if mean is None else mean - paper[0]
    return {
        "runs": list(runs),
        "mean": mean,
        "deviation": float(np.std(known, ddof=1)) if len(known) > 1 else None,
        "paper": list(paper),
        "points_off": points,
    }


def _percent(hits: NDArray[np.bool_]) -> float | None:
    return 100 * float(hits.mean()) if len(hits) else None


_CASES = {
    "no_target": "network wrong, the true class leads",
    "no_output": "network wrong, the recognised class leads",
    "yes": "network right, its class leads",
}

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
            found = layers[layer][cell]
            what = f"Table 1, {layer}, {_CASES[cell]} (%)"
            code = _of_code(steps, layer, cell)
            yield Beside(what, in_words(found["mean"], found["deviation"]), in_words(*paper), code.strip("-"))


def in_words(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "-"
    return f"{mean:.1f}" if deviation is None else f"{mean:.1f} ± {deviation:.1f}"


def _rises(by_layer: Sequence[float | None]) -> bool:
    known = [value for value in by_layer if value is not None]
    return len(known) == len(by_layer) and all(low < high for low, high in pairwise(known))


def _of_code(steps: int, layer: str, cell: str) -> str:
    found = CODE.get(steps, {}).get(layer) if cell == "yes" else None
    return "-" if found is None else ", ".join(f"{value:.2f}" for value in found)

"""Table 1 of the paper: how often the class that draws most attention is the true one, or the one recognised.

The class that draws most attention is the argmax of a layer's absolute attention weights summed over each class.
Shapes: n test images, r runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.methods import Answers
from dualform.query.engine import open_memory
from dualform.questions import ProbeRows
from dualform_studies.images.recorded import Checkpoint
from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Cell, Table

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

_DEVIATIONS, _POINTS = 2, 2
"""A cell is met within so many of the paper's deviations, or so many points."""


def ask_checkpoints(
    folder: Path, layers: Sequence[str], checkpoints: Sequence[Checkpoint]
) -> tuple[list[Cells], list[float]]:
    """Cells and accuracy of a recorded run at each checkpoint. Its keys, gigabytes of them, are let go on return."""
    with open_memory(folder) as memory:
        cells = [ask_cells(memory, layers, checkpoint) for checkpoint in checkpoints]
        return cells, [ask_accuracy(memory, checkpoint) for checkpoint in checkpoints]


def ask_cells(memory: Answers, layers: Sequence[str], checkpoint: Checkpoint) -> Cells:
    """One run's cells, over all test images."""
    labels, given = checkpoint.dataset.test.labels, checkpoint.classes_given(memory)
    found = {}
    for layer in layers:
        answer = memory.group_sum(layer, ProbeRows(checkpoint.probe), by="label", where=checkpoint.where, score="abs")
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
    """Whether a cell is within two of the paper's deviations, or two points."""
    points, deviation = cell["points_off"], cell["paper"][1]
    return points is not None and abs(points) <= max(_POINTS, _DEVIATIONS * deviation)


def table_1(by_moment: Mapping[int, Report], runs: int) -> Table:
    """`by_moment`: what `over_runs` says after so many updates."""
    moments = list(by_moment)
    columns = ["layer", "network right", "argmax beside", "paper"]
    for moment in moments:
        columns += [f"{moment:,} updates", "points off", "deviations off"]
    rows: list[list[Cell]] = []
    for layer, cells in PAPER.items():
        for cell, paper in cells.items():
            found = [by_moment[moment][layer][cell] for moment in moments]
            row: list[Cell] = [layer, *CELLS[cell], in_words(*paper)]
            for one in found:
                row += [in_words(one["mean"], one["deviation"])]
                row += [_signed(one["points_off"]), _signed(one["deviations_off"])]
            fitting = [f"{moment:,}" for moment, one in zip(moments, found, strict=True) if is_met(one)]
            rows.append([*row, " and ".join(fitting) or "none"])
    met = "within 2 deviations or 2 points after"
    caption = (
        "Table 1 of the paper: how often, in per cent, the class that draws most attention is the true class, or the "
        f"one recognised; over the full test set, mean and standard deviation of {runs} run{'s' * (runs > 1)}. "
        "Differences are in points, and in units of the paper's own deviations (0.0 at layer-0 where the network is "
        "right)."
    )
    return Table("table-1", caption, [*columns, met], rows)


def in_words(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "-"
    return f"{mean:.1f}" if deviation is None else f"{mean:.1f} ± {deviation:.1f}"


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
        "deviations_off": None if points is None or not paper[1] else points / paper[1],
    }


def _percent(hits: NDArray[np.bool_]) -> float | None:
    return 100 * float(hits.mean()) if len(hits) else None


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f}"

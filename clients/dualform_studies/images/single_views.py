"""What the memory of one training on MNIST is asked beside Table 1, and the figures (paper section 5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualform.query.engine import Engine, open_memory
from dualform.questions import ProbeRows
from dualform_studies.certificates import certificate_report
from dualform_studies.images.datasets import Dataset
from dualform_studies.images.error_norm import error_norm_sums
from dualform_studies.images.example import PaperFigures, choose_recognised, draw_example
from dualform_studies.images.figures import draw_weighted_sums
from dualform_studies.images.query_figure import Query
from dualform_studies.images.recency import ask_recency, draw_recency, recency_report
from dualform_studies.images.recorded import Checkpoint
from dualform_studies.images.spotlight import LayerSpotlight
from dualform_studies.images.table1 import count_cells
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.progress import Progress, or_silent

BESIDE = {6: PaperFigures("Figure 4", "Figure 5", "Figure 10"), 3: PaperFigures("Figure 14", "Figure 15", "Figure 13")}
"""The digits whose attention is drawn."""

_DATED = 200
"""Test images whose best datapoints are dated."""


def ask_single(
    dataset: Dataset, layers: Sequence[str], checkpoint: Checkpoint, out: Path, progress: Progress | None
) -> Report:
    """Examples, dates of the best datapoints, sums weighted by the error's norm, and the certificate."""
    say = or_silent(progress)
    say("drawing figures", 0, 2)
    report, query = _ask(out, dataset, layers, checkpoint)
    say("weighting by the error's norm", 1, 2)
    report["error_norm"] = _weigh(out, dataset, layers, checkpoint, query)
    say("weighting by the error's norm", 2, 2)
    return report


def _ask(out: Path, dataset: Dataset, layers: Sequence[str], checkpoint: Checkpoint) -> tuple[Report, Query]:
    """What the engine is asked, and the query of the figures that show one. Its keys are let go on return."""
    with open_memory(out) as memory:
        given = checkpoint.classes_given(memory)
        chosen = {digit: choose_recognised(dataset, given, digit) for digit in BESIDE}
        queries = {digit: query for digit, query in chosen.items() if query is not None}
        one = next(iter(queries.values()), None) or Query(dataset, 0, int(given[0]))
        report: Report = {
            "slots": sum(memory.info().slots.values()),
            "examples": {
                str(digit): draw_example(
                    memory,
                    query,
                    layers,
                    [dataset],
                    report_folder(out),
                    f"digit-{digit}",
                    BESIDE[digit],
                    probe=checkpoint.probe,
                    where=checkpoint.where,
                )
                for digit, query in queries.items()
            },
            "recency": _date(memory, layers, checkpoint, one, report_folder(out)),
            "verify": {name: certificate_report(certificate) for name, certificate in memory.verify().items()},
        }
        return report, one


def _date(memory: Engine, layers: Sequence[str], checkpoint: Checkpoint, query: Query, folder: Path) -> Report:
    """When the best datapoints of the query and of the first test images were trained on."""
    rows = [query.row, *(row for row in range(min(_DATED, len(query.dataset.test))) if row != query.row)][:_DATED]
    recency = ask_recency(memory, layers, ProbeRows(checkpoint.probe, tuple(rows)), checkpoint.step)
    draw_recency(folder / "recency.png", recency, query)
    return recency_report(recency)


def _weigh(out: Path, dataset: Dataset, layers: Sequence[str], checkpoint: Checkpoint, query: Query) -> Report:
    """The cells of Table 1 for sums weighted by the error's norm, by layer; the query's own sums are drawn."""
    cells: Report = {}
    drawn = []
    with open_memory(out) as memory:
        given = checkpoint.classes_given(memory)
        for layer in layers:
            classes, sums = error_norm_sums(memory, layer, checkpoint.probe, checkpoint.step)
            cells[layer] = count_cells(classes[sums.argmax(axis=1)], dataset.test.labels, given)
            drawn.append(_spotlight(dataset, layer, classes, sums[query.row]))
    draw_weighted_sums(report_folder(out) / "error-norm-sums.png", drawn, query, [dataset])
    return cells


def _spotlight(dataset: Dataset, layer: str, classes: NDArray[np.int64], sums: NDArray[np.float64]) -> LayerSpotlight:
    groups = tuple((dataset.name, int(label)) for label in classes)
    return LayerSpotlight(layer, groups, [], sums, np.zeros(len(groups), dtype=np.int64), [])

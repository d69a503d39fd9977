"""What the memory of one training on MNIST is asked beside Table 1, and the figures (paper section 5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualform_studies.images.claims.dates import Period
from dualform_studies.images.claims.error_norm import trend_claims, trends
from dualform_studies.images.claims.examined import ask_all_attention, ask_hubs_and_dates
from dualform_studies.images.claims.single import ask_sixes, single_findings
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.prediction.example import PaperFigures, draw_example
from dualform_studies.images.prediction.figures import draw_weighted_sums
from dualform_studies.images.prediction.spotlight import LayerSpotlight
from dualform_studies.images.query_figure import Query
from dualform_studies.images.single.error_norm import error_norm_sums
from dualform_studies.images.table1.cells import count_cells
from dualform_studies.images.training.recorded import Checkpoint
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.progress import Progress, or_silent
from dualform_studies.reconstructions import reconstruction_report
from dualform_studies.recorded_memory import open_recorded

BESIDE = {
    "digit-6": PaperFigures("Figure 4", "Figure 5", "Figure 10"),
    "digit-3": PaperFigures("Figure 14", "Figure 15", "Figure 13"),
}
"""The digits whose attention is drawn."""


def ask_single(
    dataset: Dataset, layers: Sequence[str], checkpoint: Checkpoint, out: Path, progress: Progress | None
) -> Report:
    """Claims and the examples that show them, hubs, dates, sums weighted by the error's norm, and the reconstruction
    error.
    """
    say = or_silent(progress)
    say("asking what all test images attend to", 0, 2)
    report, query = _ask(out, dataset, layers, checkpoint)
    say("weighting by the error's norm", 1, 2)
    report["error_norm"], report["error_norm_trends"] = _weigh(out, dataset, layers, checkpoint, query)
    report["claims"] += [claim.plain() for claim in trend_claims(report["error_norm_trends"])]
    say("weighting by the error's norm", 2, 2)
    return report


def _ask(out: Path, dataset: Dataset, layers: Sequence[str], checkpoint: Checkpoint) -> tuple[Report, Query]:
    """What the engine is asked, and the query of the figures that show one. Its keys are let go on return."""
    folder = report_folder(out)
    with open_recorded(out) as memory:
        given = checkpoint.classes_given(memory)
        attention = ask_all_attention(memory, layers, [checkpoint], [dataset])
        sixes = ask_sixes(memory, layers, checkpoint)
        found = single_findings(attention.layers[dataset.name], sixes, attention.datapoints, checkpoint, given)
        queries = [choice.query for choice in found.shown.values()] or [Query(dataset, 0, int(given[0]))]
        periods = {dataset.name: Period(0, checkpoint.step, checkpoint.where)}
        measured, claims = ask_hubs_and_dates(memory, attention, queries, periods, folder)
        report: Report = measured | {
            "slots": sum(memory.info().slots.values()),
            "prevalence": [row.plain() for row in found.rows],
            "claims": [claim.plain() for claim in (*found.claims, *claims)],
            "examples": {
                name: draw_example(memory, choice.query, layers, [dataset], folder, name, BESIDE[name], how=choice.how)
                for name, choice in found.shown.items()
            },
            "verify": {name: reconstruction_report(reconstruction) for name, reconstruction in memory.verify().items()},
        }
        return report, queries[0]


def _weigh(
    out: Path, dataset: Dataset, layers: Sequence[str], checkpoint: Checkpoint, query: Query
) -> tuple[Report, Report]:
    """Of sums weighted by the error's norm, by layer, the cells of Table 1 and trends; the query's own are drawn."""
    cells: Report = {}
    shown: Report = {}
    drawn = []
    with open_recorded(out) as memory:
        given, labels = checkpoint.classes_given(memory), dataset.test.labels
        for layer in layers:
            classes, sums = error_norm_sums(memory, layer, checkpoint.query_set, checkpoint.step)
            cells[layer] = count_cells(classes[sums.argmax(axis=1)], labels, given)
            shown[layer] = trends(sums, classes, labels, given == labels)
            drawn.append(_spotlight(dataset, layer, classes, sums[query.row]))
    draw_weighted_sums(report_folder(out) / "error-norm-sums.png", drawn, query, [dataset])
    return cells, shown


def _spotlight(dataset: Dataset, layer: str, classes: NDArray[np.int64], sums: NDArray[np.float64]) -> LayerSpotlight:
    groups = tuple((dataset.name, int(label)) for label in classes)
    return LayerSpotlight(layer, groups, [], sums, np.zeros(len(groups), dtype=np.int64), [])

"""How much attention crosses from one dataset to another (the paper's section 5.3). Shapes: n queries, k datapoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dualform.methods import Answers
from dualform.questions import ProbeRows
from dualform_studies.images.recorded import Checkpoint
from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Table


def ask_crossing(
    memory: Answers, layers: Sequence[str], checkpoint: Checkpoint, images: int = 200, k: int = 500
) -> Report:
    """By layer, for the first test images of a dataset: the shares of attention that go to other datasets' datapoints.

    `best` is the share of the k datapoints of greatest weight that are of another dataset, `sums` the share of all
    absolute attention weights; each a mean over the images.
    """
    own = checkpoint.dataset.name
    queries = ProbeRows(checkpoint.probe, tuple(range(min(images, len(checkpoint.dataset.test)))))
    report: Report = {}
    for layer in layers:
        hits = memory.topk(layer, queries, k=k, score="abs")
        of_best = np.asarray(memory.slots(hits)["dataset"], dtype=object).reshape(len(hits), -1)
        answer = memory.group_sum(layer, queries, by="dataset", score="abs")
        others = [at for at, (name,) in enumerate(answer.groups) if name != own]
        report[layer] = {
            "queries": len(hits),
            "datapoints": of_best.shape[1],
            "best": float((of_best != own).mean()),
            "sums": float((answer.sums[:, others].sum(axis=1) / answer.sums.sum(axis=1)).mean()),
        }
    return report


def crossing_table(crossing: Mapping[str, Report]) -> Table:
    """`crossing` by dataset of the queries."""
    first = next(iter(next(iter(crossing.values())).values()))
    rows = [
        (dataset, layer, f"{100 * found['best']:.1f}", f"{100 * found['sums']:.1f}")
        for dataset, layers in crossing.items()
        for layer, found in layers.items()
    ]
    caption = (
        f"Attention across datasets, mean over the first {first['queries']} test images of each: the share of the "
        f"{first['datapoints']} datapoints of greatest weight, and of all attention weights, that is the other "
        "dataset's."
    )
    columns = ("queries of", "layer", "of the best datapoints (%)", "of all weights (%)")
    return Table("crossing", caption, columns, rows)


def strongest_table(examples: Mapping[str, Report]) -> Table:
    """The class that draws most attention at each layer, and how the class of the query fares, of each example."""
    rows = []
    for example in examples.values():
        for layer, found in example["layers"].items():
            sums = {(one["dataset"], one["label"]): one["sum"] for one in found["sums"]}
            own = sums[tuple(example["group"])]
            rank = 1 + sum(other > own for other in sums.values())
            top = ", ".join(f"{hit['dataset']} {hit['label']}" for hit in found["top"][:3])
            strongest = f"{found['strongest']['dataset']} {found['strongest']['label']}"
            rows.append((example["label"], layer, top, strongest, f"{100 * own / sum(sums.values()):.1f}", rank))
    caption = (
        "Of each query and layer: dataset and class of the three images attended to most, the class of greatest summed "
        "attention, and share and rank, among all classes, of the query's own."
    )
    columns = ("query", "layer", "images attended to most", "greatest sum", "own class (%)", "rank")
    return Table("strongest", caption, columns, rows)

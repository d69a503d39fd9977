"""What all studies of images ask alike: attention of all test images, then hubs and dates with their figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dualform.query.engine import Engine
from dualform_studies.images.claims.attention import LayerAttention, ask_attention
from dualform_studies.images.claims.datapoints import Datapoints, ask_datapoints, ask_key_norms
from dualform_studies.images.claims.date_figure import draw_dates
from dualform_studies.images.claims.dates import Period, ask_dates, date_claims, dates_report
from dualform_studies.images.claims.hub_figures import draw_hub_distribution, draw_hubs
from dualform_studies.images.claims.hubs import ask_hubs, hubs_report
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.query_figure import Query
from dualform_studies.images.training.recorded import Checkpoint
from dualform_studies.pages.claims import Claim
from dualform_studies.pages.folder import Report


@dataclass(frozen=True, eq=False)
class Attention:
    """The attention of all test images of some datasets to all datapoints of a training."""

    datasets: Sequence[Dataset]
    """Those that were trained on, in their order."""
    checkpoints: Mapping[str, Checkpoint]
    """By name of the dataset whose test images were asked."""
    layers: Mapping[str, Sequence[LayerAttention]]
    """By the same."""
    datapoints: Datapoints


def ask_all_attention(
    memory: Engine, layers: Sequence[str], checkpoints: Sequence[Checkpoint], datasets: Sequence[Dataset]
) -> Attention:
    """What the test images of each checkpoint attend to; of each dataset there may be one checkpoint."""
    datapoints = ask_datapoints(memory)
    found = {
        checkpoint.dataset.name: ask_attention(memory, layers, checkpoint, datasets, datapoints)
        for checkpoint in checkpoints
    }
    by_name = {checkpoint.dataset.name: checkpoint for checkpoint in checkpoints}
    return Attention(datasets, by_name, found, datapoints)


def ask_hubs_and_dates(
    memory: Engine, attention: Attention, queries: Sequence[Query], periods: Mapping[str, Period], folder: Path
) -> tuple[Report, list[Claim]]:
    """Both measures by layer, their figures in `folder`, and what the paper claims of dates.

    The dates of the first of `queries` of each dataset are drawn beside those of others, of the first test image where
    there is none. `periods` is, by dataset, the part of the training that dates are of.
    """
    layers = [one.layer for one in next(iter(attention.layers.values()))]
    norms = {layer: ask_key_norms(memory, layer) for layer in layers}
    points = attention.datapoints
    asked = [(attention.checkpoints[name], found) for name, found in attention.layers.items()]
    hubs = ask_hubs(memory, asked, points, norms)
    report: Report = {"hubs": hubs_report(hubs, points), "dates": {}}
    draw_hub_distribution(folder / "hub-distribution.png", hubs)
    draw_hubs(folder / "hubs.png", report["hubs"], attention.datasets)
    claims: list[Claim] = []
    for name, checkpoint in attention.checkpoints.items():
        shown = next((query for query in queries if query.dataset.name == name), None) or _first(memory, checkpoint)
        dates = ask_dates(memory, layers, checkpoint, shown.row, periods[name], points, norms)
        draw_dates(folder / f"dates-{name}.png", dates, shown)
        report["dates"][name] = dates_report(dates)
        if len(attention.datasets) == 1:
            # The sentence of section 5.2 is about the single task.
            claims += date_claims(dates)
    return report, claims


def _first(memory: Engine, checkpoint: Checkpoint) -> Query:
    return Query(checkpoint.dataset, 0, int(checkpoint.classes_given(memory)[0]))

"""Asks what all test images attend to, with hubs and dates, and shows the results on a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dualform.query.engine import Engine
from dualform_studies.claims import Claim
from dualform_studies.images import dates, hubs, observations
from dualform_studies.images.attention import (
    TOP,
    Datapoints,
    LayerAttention,
    ask_attention,
    ask_datapoints,
    ask_key_norms,
)
from dualform_studies.images.datasets import Dataset
from dualform_studies.images.dates import Period, ask_dates, date_claims, dates_report, draw_dates
from dualform_studies.images.hubs import ask_hubs, draw_hub_distribution, draw_hubs, hubs_report
from dualform_studies.images.query_figure import Query
from dualform_studies.images.training import Checkpoint
from dualform_studies.report import Cell, Page, Report, Table, report_folder


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


_CAUSES = {
    "length": "it is the length of their keys that makes them hubs",
    "direction": "it is the direction of their keys that makes them hubs",
    "both": "both length and direction make them hubs",
    "neither": "the others give way, though their keys are no longer than most",
}
_WHY_EARLY = {
    "length": "long early keys are the cause",
    "part": "the length of keys is part of the cause",
    "other": "the length of keys is not the cause",
}


def show_prevalence(page: Page, rows: Sequence[Report]) -> None:
    """`rows` as `Prevalence.plain` gives them."""
    page.heading(observations.HEADING)
    page.paragraph(
        "Each observation that the paper makes of one example, counted over the whole test set. The examples below are "
        "chosen because they show it; each says how many do."
    )
    page.show(observations.prevalence_table(rows))


def show_hubs(page: Page, found: Mapping[str, Report]) -> None:
    """`found` as `hubs_report` gives it."""
    first = next(iter(found.values()))
    page.heading(hubs.HEADING)
    page.paragraph(
        f"How often each of the {first['images']:,} training images is among the {TOP} best of the "
        f"{first['queries']:,} test images, by absolute weight. A datapoint is one visit of an image; an image stands "
        "where the best of its visits does, and counts once."
    )
    page.paragraph(
        f"Of {first['compared']:,} of these test images, drawn by chance, the {TOP} best images are also taken by "
        "cosine, in which the length of keys has no say. The cosine is signed, and so is the weight that it is "
        "compared with; behind the first layer no weight is negative. "
        + " ".join(f"{sentence}." for sentence in _causes(found))
    )
    compared = f"{first['compared']:,} test images"
    page.figure(
        report_folder(page.run) / "hub-distribution.png",
        f"How unevenly the attention of {compared} falls on the training images, by signed weight and by cosine (no "
        "figure of the paper; its appendix A).",
    )
    page.figure(
        report_folder(page.run) / "hubs.png",
        f"The {hubs.GREATEST} greatest hubs of {compared}, by signed weight and by cosine: their class, how many of "
        f"these test images have them among their {TOP} best, and the length of their key (Figure 10a of the paper "
        "shows one).",
    )
    page.show(_summary_table(found), _hubs_table(found))
    page.paragraph(
        'The paper finds one training image, a "0", often in different settings. Its settings are the studies, so that '
        f'is judged over their reports together. Such a hub: {hubs.SAME}. It is a "0": {hubs.ZERO}.'
    )


def _causes(found: Mapping[str, Report]) -> Iterator[str]:
    for layer, one in found.items():
        yield (
            f"At {layer}, {one['surviving']} of the {hubs.GREATEST} greatest hubs by signed weight are among the "
            f"{hubs.GREATEST} greatest by cosine: {_CAUSES[one['cause']]}"
        )


def _summary_table(found: Mapping[str, Report]) -> Table:
    rows: list[list[Cell]] = []
    for layer, one in found.items():
        rows.append(
            [
                layer,
                one["ever"],
                one["half"],
                f"{100 * one['greatest'][0]['weight']:.1f}",
                f"{100 * one['greatest_signed'][0]['signed']:.1f}",
                f"{100 * one['greatest_by_cosine'][0]['cosine']:.1f}",
                _figure(one["norm_correlation"]),
                _figure(one["cosine_norm_correlation"]),
                one["surviving"],
            ]
        )
    columns = [
        "layer",
        "images ever among them",
        "images that take half of all places",
        "test images of the greatest hub (%)",
        "of those compared, by signed weight (%)",
        "of those compared, by cosine (%)",
        "correlation of count and length, by signed weight",
        "the same by cosine",
        f"of the {hubs.GREATEST} greatest by signed weight, also by cosine",
    ]
    first = next(iter(found.values()))
    caption = (
        f"Hubs by layer: by absolute weight of all {first['queries']:,} test images, and of the {first['compared']:,} "
        "that signed weight and cosine are compared on. The correlation is Spearman's, over all training images, of "
        "the count over those compared; the length of an image's key is the mean over its visits."
    )
    return Table("hubs", caption, columns, rows)


def _hubs_table(found: Mapping[str, Report]) -> Table:
    rows: list[list[Cell]] = [
        [
            layer,
            rank,
            image["dataset"],
            image["sample"],
            image["label"],
            *(f"{100 * image[share]:.1f}" for share in ("weight", "signed", "cosine")),
            f"{image['norm']:.2f}",
            f"{100 * image['longer_than']:.1f}",
        ]
        for layer, one in found.items()
        for rank, image in enumerate(one["greatest"], start=1)
    ]
    columns = [
        "layer",
        "rank",
        "dataset",
        "image",
        "class",
        f"among the {TOP} best (%)",
        "by signed weight, of those compared (%)",
        "by cosine, of those compared (%)",
        "length of its key",
        "longer than of the images (%)",
    ]
    caption = "The greatest hubs of each layer, by absolute weight of all test images."
    return Table("greatest-hubs", caption, columns, rows)


def show_dates(page: Page, found: Mapping[str, Report]) -> None:
    """`found` by dataset of the test images, each as `dates_report` gives it."""
    page.heading(dates.HEADING)
    page.paragraph(
        f"The paper finds the {dates.BEST} datapoints of greatest weight spread over time, with no clear pattern that "
        "recent ones are more important. "
        + " ".join(_cause(dataset, layer, one) for dataset, layers in found.items() for layer, one in layers.items())
    )
    for dataset, layers in found.items():
        period = next(iter(layers.values()))["period"]
        page.figure(
            report_folder(page.run) / f"dates-{dataset}.png",
            f"When the {dates.BEST} datapoints of greatest weight of test images of {dataset} were trained on, over "
            f"{period} (no figure of the paper; the end of its section 5.2).",
        )
    page.show(_dates_table(found))


def _cause(dataset: str, layer: str, one: Report) -> str:
    """Whether the best datapoints are early, and why."""
    early, cosine = (100 * one[ranking]["mean"][0] for ranking in ("product", "cosine"))
    said = f"At {layer}, of test images of {dataset}, {early:.1f} % come from the first third of {one['period']}"
    if one["cause"] == "none":
        return f"{said}."
    means, greatest = (f"{_figure(lengths[0])} and {_figure(lengths[2])}" for lengths in (one["norms"], one["longest"]))
    return (
        f"{said}, and {cosine:.1f} % by cosine: {_WHY_EARLY[one['cause']]}. In the first and the last third a key is "
        f"{means} long in the mean, the longest of a batch {greatest}."
    )


def _dates_table(found: Mapping[str, Report]) -> Table:
    rows: list[list[Cell]] = []
    for dataset, layers in found.items():
        for layer, one in layers.items():
            for ranking, words in (("product", "weight"), ("cosine", "cosine")):
                shares = zip(one[ranking]["mean"], one[ranking]["deviation"], strict=True)
                own = one["shown"] if ranking == "product" else [None] * 3
                rows.append(
                    [
                        dataset,
                        one["period"],
                        layer,
                        words,
                        *(f"{100 * mean:.1f} ± {100 * deviation:.1f}" for mean, deviation in shares),
                        f"{one[ranking]['distance']:.3f}",
                        ", ".join("-" if share is None else f"{100 * share:.1f}" for share in own),
                        ", ".join(map(_figure, one["norms"])),
                        ", ".join(map(_figure, one["longest"])),
                    ]
                )
    first = next(iter(next(iter(found.values())).values()))
    caption = (
        f"The thirds of the training that the {first['datapoints']} best datapoints come from, in per cent (even: "
        f"{100 * dates.EVEN:.1f}); where datapoints of a part of the training are ranked, and all others masked, the "
        f"thirds of that part. Mean and deviation over {first['queries']} test images drawn by chance, and of the one "
        "that is drawn; the mean Kolmogorov distance to an even spread, from 0 to 1; and in each third the mean length "
        "of keys, and that of the longest of a batch. Both rankings are signed."
    )
    columns = [
        "test images of",
        "datapoints of",
        "layer",
        "ranked by",
        "first",
        "middle",
        "last",
        "distance to even",
        "the one drawn",
        "length of keys",
        "longest of a batch",
    ]
    return Table("dates", caption, columns, rows)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"

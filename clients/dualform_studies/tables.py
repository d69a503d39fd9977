"""A report as tables, for whoever prints it: accuracies, the certificate, and what a prediction attends to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dualform_studies.report import Report


class Table(NamedTuple):
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


_IN_WORDS = {
    "after_first": "before: after the first part",
    "final": "after: at the end",
    "masked": "at the end, masked: {mask}",
    "as_of_first": "rebuilt as of the end of the first part",
}


def report_tables(report: Report) -> list[Table]:
    """What there is to read of a demo's or a succession's report, in the order in which one asks."""
    tables = [_accuracy(report["accuracy"], report["mask"]), _certificate(report)]
    examples = {"prediction": report["prediction"]} if "prediction" in report else report.get("examples", {})
    for name, example in examples.items():
        tables += _example(name, example)
    tables.append(Table("cost", ("", "seconds"), list(report["seconds"].items())))
    return tables


def _accuracy(accuracy: Report, mask: str) -> Table:
    rows = [
        (words.format(mask=mask), *(f"{100 * moments[moment]:.1f} %" for moments in accuracy.values()))
        for moment, words in _IN_WORDS.items()
    ]
    return Table("test accuracy", ("network", *accuracy), rows)


def _certificate(report: Report) -> Table:
    """How far the rebuilt weights are from those trained, and how much the terms cancel that the mask leaves out."""
    rows = [
        (layer, found["relative_error"], "yes" if found["exact"] else found["reason"], f"{cancelled:.0f}")
        for (layer, found), cancelled in zip(report["verify"].items(), report["cancellation"].values(), strict=True)
    ]
    columns = ("layer", "relative error of rebuilt weights", "exact", "cancellation of the masked terms")
    return Table("certificate", columns, rows)


def _example(name: str, example: Report) -> Iterator[Table]:
    final, masked = example["recognised_as"]["final"], example["recognised_as"]["masked"]
    title = f"{name}: {example['query']}, class {example['label']}, recognised as {final}, with the mask as {masked}"
    layers = example["layers"]
    yield Table(
        f"{title}\ntraining images attended to most",
        ("layer", "dataset", "label", "image", "step", "slot", "attention weight"),
        [
            (layer, *(hit[key] for key in ("dataset", "label", "sample", "step", "slot", "score")))
            for layer, found in layers.items()
            for hit in found["top"]
        ],
    )
    groups = [(each["dataset"], each["label"], each["count"]) for each in next(iter(layers.values()))["sums"]]
    sums = [[each["sum"] for each in found["sums"]] for found in layers.values()]
    yield Table(
        "attention weights summed over each class",
        ("dataset", "label", "datapoints", *layers),
        [(*group, *(f"{of_layer[at]:,.0f}" for of_layer in sums)) for at, group in enumerate(groups)],
    )

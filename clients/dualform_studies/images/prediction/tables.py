"""Tables of the image studies: accuracies, the reconstruction error, and what a prediction attends to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dualform_studies.images.claims.attention import TOP
from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Table
from dualform_studies.pages.words import percent


def accuracy_table(accuracy: Mapping[str, Mapping[str, float]], moments: Mapping[str, str]) -> Table:
    """`accuracy` by dataset and moment; `moments` says each in words."""
    rows = [
        (words.replace("\n", " "), *(percent(by_moment[moment]) for by_moment in accuracy.values()))
        for moment, words in moments.items()
    ]
    return Table("accuracy", "Test accuracy.", ("network", *accuracy), rows)


def example_tables(name: str, example: Report) -> Iterator[Table]:
    """The images attended to most and the sums over classes, of one query at each layer."""
    layers = example["layers"]
    yield Table(
        f"{name}-top-images",
        f"{describe(example)}: the training images attended to most, each with its visit of greatest weight.",
        ("layer", "rank", "dataset", "label", "image", "step", "slot", "attention weight"),
        [
            (layer, rank, *(hit[key] for key in ("dataset", "label", "sample", "step", "slot")), f"{hit['score']:,.2f}")
            for layer, found in layers.items()
            for rank, hit in enumerate(found["top"], start=1)
        ],
    )
    groups = [(each["dataset"], each["label"], each["count"]) for each in next(iter(layers.values()))["sums"]]
    sums = [[each["sum"] for each in found["sums"]] for found in layers.values()]
    yield Table(
        f"{name}-sums",
        f"{describe(example)}: attention weights summed over each class.",
        ("dataset", "label", "datapoints", *layers),
        [(*group, *(f"{of_layer[at]:,.0f}" for of_layer in sums)) for at, group in enumerate(groups)],
    )


def strongest_table(examples: Mapping[str, Report]) -> Table:
    """The class that draws most attention at each layer, and how the class of the query fares, of each example."""
    rows = []
    for example in examples.values():
        for layer, found in example["layers"].items():
            sums = {(one["dataset"], one["label"]): one["sum"] for one in found["sums"]}
            own = sums[tuple(example["group"])]
            rank = 1 + sum(other > own for other in sums.values())
            top = ", ".join(f"{hit['dataset']} {hit['label']}" for hit in found["top"][:TOP])
            strongest = f"{found['strongest']['dataset']} {found['strongest']['label']}"
            rows.append((example["label"], layer, top, strongest, f"{100 * own / sum(sums.values()):.1f}", rank))
    caption = (
        f"Of each query and layer: dataset and class of the {TOP} different images attended to most, the class of "
        "greatest summed attention, and share and rank, among all classes, of the query's own."
    )
    columns = ("query", "layer", "images attended to most", "greatest sum", "own class (%)", "rank")
    return Table("strongest", caption, columns, rows)


def describe(example: Report) -> str:
    """One line: which query, its class, and what the network takes it for."""
    given = example["recognised_as"]
    masked = f", with the mask as {given['masked']}" if "masked" in given else ""
    return f"Query {example['query']}, class {example['label']}, recognised as {given['final']}{masked}"

"""The page of the study, made from its report alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dualform_studies.networks.certificates import show_certificates
from dualform_studies.networks.commands import show_commands
from dualform_studies.networks.resnet18.figures import short
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.page import Page
from dualform_studies.pages.words import percent

_KINDS = {
    "right": "The surest image that is recognised",
    "wrong": "The surest image that is mistaken",
    "unsure": "The least sure image that is recognised",
}


def resnet18_page(out: Path, report: Report) -> Page:
    page = Page(out, "A ResNet-18 by Lightning, AdamW in bfloat16")
    _describe(page, report)
    for example in report["examples"]:
        _show_example(page, example, report)
    _show_labels(page, report)
    _show_masks(page, report)
    show_certificates(page, report)
    show_commands(page, report)
    return page


def _describe(page: Page, report: Report) -> None:
    recipe, asked = report["recipe"], report["asked"]
    slots = sum(report["slots"].values())
    page.paragraph(
        f"ResNet-18 with an eighth of its channels ({recipe['width']} in place of 64 in the first stage; "
        f"{report['parameters']:,} parameters), its stem a 3 x 3 convolution of stride 2 without a pool, as the images "
        f"have 28 x 28 pixels. It learns {recipe['images']:,} of the training images of Fashion-MNIST in "
        f"{recipe['updates']} updates, {recipe['updates'] * recipe['batch'] / recipe['images']:.1f} epochs, by "
        f"{recipe['words']}, and recognises {percent(report['accuracy'])} of the 10,000 test images."
    )
    page.paragraph(
        "Width and number of images are small for the sake of the disk: a convolution has a datapoint for every place "
        f"of its output, {slots:,} in all here, and its values are as large as its output. The memory takes "
        f"{report['disk_bytes'] / 1e9:.2f} GB; the training took {report['seconds']['training'] / 60:.0f} minutes and "
        f"the questions {report['asking_seconds'] / 60:.0f}, on a processor that others used, too."
    )
    page.paragraph(
        f"{asked['images']} test images, drawn by chance, were asked about; {percent(asked['right'])} of them are "
        "recognised. What `dualform output` says of the last layer from the memory alone is the class that the network "
        f"says for {percent(asked['as_the_network'])}. The attention of a test image at a convolution is that of all "
        "places of its output together, to all places of a training image, in the mean over its slots."
    )
    page.paragraph(
        "What attention says: a score is the inner product of two inputs of a layer. Under AdamW a score times a value "
        "is no contribution, for the value goes through the scale that all slots made. And most inputs here are not "
        "negative, for they come out of relu: an image that is bright at many places draws much attention from every "
        "other, which is why one image may lead at many layers whatever is asked."
    )


def _show_example(page: Page, example: Report, report: Report) -> None:
    names = report["label_names"]
    said, true = names[example["said"]], names[example["label"]]
    page.heading(f"{_KINDS[example['kind']]}: {said}")
    mistaken = "" if said == true else f" It is of the class {true}."
    images = Counter(one["image"] for one in example["layers"])
    labels = sum(one["label"] == example["said"] for one in example["layers"])
    page.paragraph(
        f"Test image {example['row']}: the network says {said} with {percent(example['probability'])}.{mistaken} The "
        f"training image that draws most attention is of the class {said} at {labels} of {len(example['layers'])} "
        f"layers; they are {len(images)} different images, and one leads at {max(images.values())} layers."
    )
    page.figure(
        report_folder(page.run) / f"images-{example['kind']}.png",
        "The test image, and layer by layer the training image that draws most of its attention, with their classes.",
    )
    page.table(
        f"example-{example['kind']}",
        "By layer: the training image that draws most attention, by how much beside the mean over all images, and the "
        "class that does, beside the mean over all classes.",
        ["layer", "training image", "its class", "of the mean", "leading class", "of the mean"],
        [
            [
                short(one["layer"]),
                str(one["image"]),
                names[one["label"]],
                _times(one["of_mean"]),
                names[one["leading_label"]],
                _times(one["label_of_mean"]),
            ]
            for one in example["layers"]
        ],
    )


def _times(of_mean: float | None) -> str:
    return "-" if of_mean is None else f"{of_mean:.3g}"


def _show_labels(page: Page, report: Report) -> None:
    told, best = report["labels"], report["best"]
    page.heading("Whether attention goes to the class")
    page.paragraph(
        f"For each of the {report['asked']['images']} test images and every layer, the class whose datapoints draw "
        "most attention in the mean; chance is 10 %. At the layers of few places, the single datapoints that draw "
        "most, too: how many are of the class that the network says, and how many images they come from."
    )
    page.figure(
        report_folder(page.run) / "labels.png",
        "By layer, from the stem to the classifier: of how many test images the training class that draws most "
        "attention is the one that the network says, and the true one. Dotted: chance.",
    )
    rows: list[list[Cell]] = []
    for layer, own in told.items():
        single: list[Cell] = ["-", "-", "-"]
        if layer in best:
            one = best[layer]
            single = [percent(one["said"]), str(one["images"]), percent(one["most_frequent"])]
        rows.append([short(layer), own["places"], percent(own["said"]), percent(own["true"]), *single])
    columns = [
        "layer", "places", "leading class is what is said", "is true", "best datapoint is of what is said",
        "different images", "most frequent one",
    ]  # fmt: skip
    page.table("labels", f"Of {report['asked']['images']} test images.", columns, rows)


def _show_masks(page: Page, report: Report) -> None:
    page.heading("A class masked")
    page.paragraph(
        "The share of one class was taken out of the updates that were made, in every layer, and the masked network "
        "run on all test images; and so was a tenth of the training images, by the last digit of their row. It is "
        "arithmetic, not a training without them: what remains was learned beside what is masked, and the norms' "
        f"running statistics stay as they are. {_beside_chance(report)}"
    )
    page.show(Table("masks", _MASKS, _columns(report), list(_rows(report))))


def _beside_chance(report: Report) -> str:
    """What the controls say of the masks of classes."""
    whole, *masks = (sum(mask["recognised"]) / len(mask["recognised"]) for mask in report["masks"])
    labels = [mask["label"] for mask in report["masks"][1:]]
    of_label, by_chance = (
        [share for share, label in zip(masks, labels, strict=True) if (label is None) == chance]
        for chance in (False, True)
    )
    measured = (
        f"Of all test images {percent(whole)} are recognised without a mask, {_range(of_label)} with a class masked, "
        f"and {_range(by_chance)} with a tenth masked that was drawn by chance."
    )
    if (whole - max(by_chance)) < (whole - min(of_label)) / 2:
        return measured
    return (
        f"{measured} So what a class brought cannot be told here by masking it: a tenth that is drawn by chance ruins "
        "the network as much. How much of that is due to the norms' running statistics, which are those of the whole "
        "network, was not measured."
    )


def _range(shares: list[float]) -> str:
    least, most = percent(min(shares)), percent(max(shares))
    return least if least == most else f"{least} to {most}"


_MASKS = (
    "How many test images are recognised, in per cent: all, those of the class that is masked, and the others; and the "
    "concentration of the mask: the share of the squared distance from the whole in one per cent of the entries, and "
    "the furthest move of an entry in multiples of its layer's way (medians over the layers, and the furthest of "
    "any)."
)


def _columns(report: Report) -> list[str]:
    return ["kept", "all", "the masked class", "the others", "share in 1 %", "furthest", "of any layer"]


def _rows(report: Report) -> Iterator[list[Cell]]:
    names = report["label_names"]
    for mask in report["masks"]:
        found, label = mask["recognised"], mask["label"]
        others = [own for at, own in enumerate(found) if at != label]
        yield [
            "everything"
            if mask["where"] is None
            else f"`{mask['where']}`" + (f" ({names[label]})" if label is not None else ""),
            percent(sum(found) / len(found)),
            "-" if label is None else percent(found[label]),
            percent(sum(others) / len(others)),
            percent(mask["share"], ".0f") if "share" in mask else "-",
            f"{mask['greatest']:.2g}" if "greatest" in mask else "-",
            f"{mask['furthest']:.2g}" if "furthest" in mask else "-",
        ]

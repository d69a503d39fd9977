"""The page of the study and its figures, made from its report alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dualform_studies.networks.commands import show_commands
from dualform_studies.networks.reconstructions import show_reconstructions
from dualform_studies.networks.resnet18.figures import draw_classes, draw_images, short
from dualform_studies.networks.resnet18.findings import classes_finding, example_finding, masks_finding
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.items import Cell
from dualform_studies.pages.page import Page
from dualform_studies.pages.words import percent

_KINDS = {"right": "An image that is recognised, drawn at random", "wrong": "A mistaken image, drawn at random"}


def resnet18_page(out: Path, report: Report) -> Page:
    recipe = report["recipe"]
    report["subject"] = (
        f"a ResNet-18 with {recipe['width']} channels in its first stage in place of 64 ({report['parameters']:,} "
        f"parameters), trained by Lightning on {recipe['images']:,} images of Fashion-MNIST"
    )
    page = Page(out, "A small ResNet-18 by Lightning, AdamW under bfloat16 autocast")
    _describe(page, report)
    for example in report["examples"]:
        _show_example(page, example, report)
    _show_classes(page, report)
    _show_masks(page, report)
    show_reconstructions(page, report)
    show_commands(page, report)
    return page


def _describe(page: Page, report: Report) -> None:
    recipe, asked = report["recipe"], report["asked"]
    slots = sum(report["slots"].values())
    page.paragraph(
        f"ResNet-18 with {recipe['width']} channels in place of 64 in its first stage, which makes "
        f"{report['parameters']:,} parameters in place of 11 million, float32 weights under bfloat16 autocast; its "
        "stem is a 3 x 3 convolution of stride 2 without a pool, as the images have 28 x 28 pixels. It learns "
        f"{recipe['images']:,} of the 60,000 training images of Fashion-MNIST in {recipe['updates']} updates, "
        f"{recipe['updates'] * recipe['batch'] / recipe['images']:.1f} epochs, by {recipe['words']}, and recognises "
        f"{percent(report['accuracy'])} of the 10,000 test images."
    )
    page.paragraph(
        "Width and number of images are small for the sake of the disk: a convolution has a slot for every place of "
        f"its output, {slots:,} in all here, and its values are as large as its output. The memory takes "
        f"{report['disk_bytes'] / 1e9:.2f} GB; the training took {report['seconds']['training'] / 60:.0f} minutes and "
        f"the questions {report['asking_seconds'] / 60:.0f}, on a processor that others used, too."
    )
    page.paragraph(
        f"{asked['images']} test images, drawn at random (seed {report['seed']}), were asked about; "
        f"{percent(asked['right'])} of them are recognised. `dualform output` computes the last layer, `fc`, from its "
        "slots and its initial weights, for the inputs that the network gave that layer; its class is the network's "
        f"own for {percent(asked['as_the_network'])} of them."
    )
    page.paragraph(
        "What attention means here: a score is the inner product of two inputs of a layer. The attention of a test "
        "image at a convolution is that of all places of its output together, to all slots of a training image or of a "
        "class, in the mean over these; as a score is linear in the query, the sum of the places' queries is asked "
        "(QUERIES.npy below). Under AdamW a score times a value is not a contribution, for the value goes through a "
        "scale that all slots made. And most inputs here are not negative, for they come out of relu: an image that is "
        "bright at many places draws much attention from every other, so that one image may lead at a layer whatever "
        "is asked. How many different images lead at each layer is told below."
    )


def _show_example(page: Page, example: Report, report: Report) -> None:
    names, asked = report["class_names"], report["asked"]["images"]
    predicted, true = names[example["said"]], names[example["label"]]
    kind = "recognised" if example["said"] == example["label"] else "mistaken"
    page.heading(f"{_KINDS[example['kind']]}: {predicted}")
    mistaken = "" if predicted == true else f" It is of the class {true}."
    page.paragraph(
        f"Drawn at random (seed {report['seed']}) among those of the {asked} test images that are {kind}. Test image "
        f"{example['row']}: the network predicts {predicted} with {percent(example['probability'])}.{mistaken}"
    )
    page.figure(
        draw_images(report_folder(page.run) / f"images-{example['kind']}.png", example, report),
        "The test image, and layer by layer the training image that draws most of its attention, with its class and "
        f"its row in the training file; “leads for” is for how many of the {asked} test images this same image "
        "draws most attention at that layer.",
    )
    page.table(
        f"example-{example['kind']}",
        "By layer: the training image that draws most attention, in multiples of the mean over all images; for how "
        "many of all test images it does; and the class that draws most, in multiples of the mean over all classes. A "
        "hyphen stands where some attention is negative, so that multiples of a mean say nothing.",
        [
            "layer", "leading image", "its class", "its attention / mean over images", "test images that it leads for",
            "leading class", "its attention / mean over classes",
        ],
        [
            [
                short(one["layer"]),
                str(one["image"]),
                names[one["label"]],
                _times(one["of_mean"]),
                percent(report["attention"][one["layer"]]["leads_for"][str(one["image"])]),
                names[one["leading_class"]],
                _times(one["class_of_mean"]),
            ]
            for one in example["layers"]
        ],
    )  # fmt: skip
    page.paragraph(example_finding(example, report))


def _times(of_mean: float | None) -> str:
    return "-" if of_mean is None else f"{of_mean:.3g}"


def _show_classes(page: Page, report: Report) -> None:
    told, asked = report["attention"], report["asked"]["images"]
    page.heading("Whether attention goes to the class that is predicted")
    page.paragraph(
        f"For each of the {asked} test images and every layer, the class whose slots draw most attention in the mean, "
        "for which chance is 10 %, and the training image that does; and how many different images lead at a layer, "
        "over all test images."
    )
    page.figure(
        draw_classes(report_folder(page.run) / "classes.png", told),
        "By layer, from the stem to the classifier: for how many test images the training class that draws most "
        "attention is the one that the network predicts, and the true one. Shortcuts are hollow; dotted is chance.",
    )
    page.table(
        "classes",
        f"By layer, over {asked} test images; a layer has a query for each place of its output.",
        [
            "layer", "places of its output", "leading class is the one predicted", "leading class is the true one",
            "leading image is of the class predicted", "different leading images",
            "test images that the most frequent one leads for",
        ],
        [
            [
                short(layer),
                own["places"],
                percent(own["said"]),
                percent(own["true"]),
                percent(own["image_said"]),
                own["images"],
                percent(max(own["leads_for"].values())),
            ]
            for layer, own in told.items()
        ],
    )  # fmt: skip
    page.paragraph(classes_finding(report))


def _show_masks(page: Page, report: Report) -> None:
    images, names = report["masked_images"], report["class_names"]
    page.heading("A class removed")
    page.paragraph(
        f"The share of one class ({images} training images; the one that the first example above is predicted to be) "
        "was taken out of the updates that were made, in every layer, and the masked network run on all test images; "
        f"and so was the share of {images} training images that were drawn at random (seed {report['seed']}) among "
        "all. A mask is arithmetic, not a training without these images: what remains was learned beside what is "
        "masked. Normalisations have running statistics, which no mask reaches: each network was also run with "
        "statistics taken anew on all images that were learned."
    )
    page.table(
        "masks",
        "How many test images are recognised: all, those of the class that is masked, and the others; and where in the "
        "weights the mask lies: the share of the squared distance to the whole network that one per cent of the "
        "entries hold (median over the layers), and the greatest change of an entry in multiples of the distance that "
        "its layer's weights moved in training (median over the layers, and greatest of any).",
        [
            "masked", "all recognised", "of the masked class", "of the others", "all, new statistics",
            "of the masked class, new statistics", "of the others, new statistics", "distance in 1 % of the entries",
            "greatest change of an entry, median layer", "greatest change of an entry, any layer",
        ],
        [_mask_row(mask, names, images) for mask in report["masks"]],
    )  # fmt: skip
    page.paragraph(masks_finding(report))


def _mask_row(mask: Report, names: Sequence[str], images: int) -> list[Cell]:
    label, whole = mask["label"], "share" not in mask
    masked = f"the class {names[label]}" if label is not None else f"{images} images drawn at random"
    return [
        "nothing" if whole else masked,
        *_recognised(mask["recognised"], label),
        *_recognised(mask["new_statistics"], label),
        "-" if whole else percent(mask["share"], ".0f"),
        "-" if whole else f"{mask['greatest']:.2g}",
        "-" if whole else f"{mask['furthest']:.2g}",
    ]


def _recognised(shares: Sequence[float], label: int | None) -> list[Cell]:
    others = [share for own, share in enumerate(shares) if own != label]
    return [
        percent(sum(shares) / len(shares)),
        "-" if label is None else percent(shares[label]),
        percent(sum(others) / len(others)),
    ]

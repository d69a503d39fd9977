"""The page of the study "attribution", made from its report alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dualform_studies.attribution.figure import draw_ways
from dualform_studies.attribution.findings import findings, leaders
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.page import Page
from dualform_studies.pages.words import listed, percent

_PACKAGES = ("captum", "dattri")
_PARTS = {"brittleness": "predictions that turn", "wrong_labels": "wrong labels"}
"""Of what the report says of a way, what a study that is cut off lacks."""


def attribution_page(out: Path, report: Report) -> Page:
    """The page, with its figure drawn."""
    page = Page(out, "Which training data made it say this: ways to attribute, put to the test")
    for text in _settings(report):
        page.paragraph(text)
    page.heading("What each way foresees")
    page.figure(
        draw_ways(report_folder(out) / "ways.png", report),
        "Spearman's correlation of what a way foresees with what trainings without some images did, in the mean over "
        "the test images, with the interval of 95 % that a bootstrap over tests and trainings leaves.",
    )
    page.show(_foreseen(report))
    page.heading("What finds and turns")
    page.show(_found(report))
    page.heading("What each is good for")
    page.show(leaders(report))
    for text in findings(report):
        page.paragraph(text)
    page.heading("How each way was run")
    for text in _ways(report):
        page.paragraph(text)
    page.show(_clock(report))
    return page


def _settings(report: Report) -> Iterator[str]:
    sizes, recipe = report["sizes"], report["sizes"]["recipe"]
    yield (
        f"The network and the data of dattri's MNIST benchmark: a perceptron, {report['recipe']}; the benchmark has 50 "
        f"epochs. It learns the first {recipe['trained']:,} training images and is asked about the first "
        f"{recipe['tested']:,} test images, of which it recognises {percent(report['accuracy'])}. dualform recorded "
        "the training once. Networks without some of the images are trained from the same initial weights, in the same "
        "order and from the same seed, many at once; trained so on all images, no test's loss departs from that "
        f"of the recorded network by more than {report['retrained_apart']:.1e}."
    )
    yield (
        f"The linear datamodeling score (LDS; Park et al., 2023): of {sizes['subsets']} subsets of "
        f"{listed([percent(share, 'g') for share in sizes['shares']])} of the images each, drawn by chance, whether "
        "the sum of a subset's scores ranks them as the loss of a network that is trained on it. Batches are those "
        "that a loader over the subset would make. Leave one out: whether the scores of "
        f"{sizes['removed']} images, drawn by chance, rank them as the loss does when one is removed from its batches, "
        "everything else the same (Wang et al., 2024: trajectory-specific). Both are Spearman's correlation, in the "
        "mean over the test images; brackets hold the interval of 95 % that a bootstrap over tests and trainings "
        "leaves, and say nothing of other seeds."
    )
    wrong = percent(sizes["wrong"], "g")
    yield (
        f"Brittleness: the images that are said to help a test most are removed, {_counts(sizes['counts'])} of them, "
        "until the network that is trained without them gives another class; the mean of these numbers over "
        f"the {sizes['turned']} of the first {sizes['turned_among']} test images that are recognised by the least "
        f"margin, where one that none of them turns counts {2 * sizes['counts'][-1]}. Fewer is better. Wrong labels: a "
        f"second training of {sizes['flipped']:,} images and {sizes['flipped_epochs']} epochs, {wrong} of them with "
        "another label than their own; the share of pairs of a wrong and a right one (AUC) of which the wrong one has "
        f"the greater score for itself, and the lower mean score for {sizes['clean']} test images."
    )
    if cut_off := [words for key, words in _PARTS.items() if not any(key in way for way in report["ways"].values())]:
        yield f"The study was cut off: it has no figures of {listed(cut_off)}."
    if report["missing"]:
        yield f"Not run, as their packages are not installed: the ways of {listed(report['missing'])}."
    for name, error in report["raised"].items():
        yield f"Without a row in some table: {name}, which ended with `{error}`."
    if not sizes["heavy"]:
        yield "Not run, as this is the quick form of the study: ways of other packages that take minutes."


def _counts(counts: Sequence[int]) -> str:
    return listed([str(count) for count in counts])


def _foreseen(report: Report) -> Table:
    shares = [f"{share:g}" for share in report["sizes"]["shares"]]
    rows: list[list[Cell]] = []
    for name, way in report["ways"].items():
        row: list[Cell] = [name, way["package"]]
        row += [_interval(way["lds"][share]) for share in shares]
        row += [_interval(way["leave_one_out"]), f"{way['seconds']:.1f}"]
        rows.append(row)
    columns = ("way", "package", *(f"LDS, {share} kept" for share in shares), "leave one out", "seconds")
    caption = (
        "What each way foresees of trainings without some images: correlations, the greater the better. Seconds are "
        "those of all scores, of every training image for every test image, on the threads that are named above and "
        "whatever else the machine was doing; recording the training and writing the memory is none of them, training "
        "a way's own networks is."
    )
    return Table("foreseen", caption, columns, rows)


def _found(report: Report) -> Table:
    rows: list[list[Cell]] = []
    for name, way in report["ways"].items():
        turned, wrong = way.get("brittleness"), way.get("wrong_labels")
        row: list[Cell] = [name]
        row += [_interval(turned["mean"], ".0f"), f"{turned['turned']} of {turned['of']}"] if turned else [None, None]
        row += [_interval(wrong["self"]), _interval(wrong["group"])] if wrong else [None, None]
        rows.append(row)
    return Table(
        "found",
        "How few removed images turn a prediction, the fewer the better; and whether wrong labels are found, where 0.5 "
        "is chance and 1 finds all of them first.",
        ("way", "removed until it turns", "turned", "wrong labels, by oneself", "wrong labels, by clean images"),
        rows,
    )


def _interval(measured: Sequence[float], form: str = ".3f") -> str:
    value, low, high = (f"{number:{form}}" for number in measured)
    return f"{value} [{low}, {high}]"


def _ways(report: Report) -> Iterator[str]:
    versions = [f"{name} {report['machine'][name]}" for name in _PACKAGES if name in report.get("machine", {})]
    theirs = f" ({listed(versions)})" if versions else ""
    yield (
        "dualform: `group_sum` by sample with each score of attention, at each linear layer; attention times value is "
        '`score="gradient"` in one layer, GradDot in all of them; the contribution is `target` the output of the '
        "test's label less the strongest other; ledgers are `dualform.ledger` by both methods, with their signs turned."
    )
    yield (
        f"Other packages{theirs}: TracInCP over 5 checkpoints at equal distances; similarity is the cosine of what the "
        "last linear layer takes at the end; IF-CG with 10 iterations and a damping of 0.01 on the Hessian of the "
        "first 1,000 images; EK-FAC with a damping of 0.01; TRAK with 512 projections, of the network itself, and of "
        "ten that are trained from ten seeds; RPS with dattri's own settings. None was tuned on these measures, where "
        "dattri's benchmark picks the best of several regularisations: tuned, they may do better. IF-CG is judged by "
        "the tests that its name says, and not by the wrong labels."
    )


def _clock(report: Report) -> Table:
    rows = [(part, f"{seconds:,.0f}") for part, seconds in report["seconds"].items() if part != "all"]
    return Table("clock", "Seconds of each part of the study.", ("part", "seconds"), rows)

"""The page of the continual study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dualform_studies.images.claims.crossing import crossing_table
from dualform_studies.images.claims.forgetting import HEADING
from dualform_studies.images.claims.page import show_dates, show_hubs, show_prevalence
from dualform_studies.images.prediction.example import PaperFigures, show_example
from dualform_studies.images.training.recipe import named_recipe
from dualform_studies.images.training.succession import Pair, moments
from dualform_studies.pages.claims import Beside, Claim, claims_table
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.page import Page
from dualform_studies.pages.words import percent
from dualform_studies.reconstructions import reconstruction_table

_TEXT = {
    "after_first": {"mnist": "97 %"},
    "final": {"mnist": "45 %", "fashion-mnist": "85 %"},
    "masked": {"mnist": "as after MNIST"},
}
_CODE = {"after_first": {"mnist": "96.4 %"}, "final": {"mnist": "47.8 %", "fashion-mnist": "87.6 %"}}
"""Accuracies by moment and dataset: those that section 5.4 names, and those that its code gave when it was run again.
Of the mask, the text says that it would reproduce what the first part gave."""


def beside_paper(report: Report, words: Mapping[str, str]) -> Iterator[Beside]:
    """Accuracies beside the paper's, none of a variant; `words` says each moment."""
    for moment, by_dataset in {} if report["variant"] else _TEXT.items():
        for dataset, text in by_dataset.items():
            what = f"{dataset}, {words[moment]}".replace("\n", " ")
            code = _CODE.get(moment, {}).get(dataset, "")
            yield Beside(what, percent(report["accuracy"][dataset][moment]), text, code)


def continual_page(out: Path, report: Report, pair: Pair, beside: Mapping[str, PaperFigures]) -> Page:
    page = Page(out, "Continual learning: MNIST, then Fashion-MNIST (section 5.4)")
    page.paragraph(
        f"One network learns MNIST for {report['steps']:,} updates, then Fashion-MNIST for as many, with one "
        f"optimizer whose momentum goes on. It does so by {named_recipe(variant=report['variant'])}: "
        f"{report['recipe']}. Of each dataset it is trained on {report['trained_on']}. In the record that the paper's "
        "code keeps, the first 256 slots after the switch carry the wrong dataset's label, for it stamps the label on "
        "batches that were fetched before; here the label comes with its batch, and is right."
    )
    page.show(claims_table([Claim(**claim) for claim in report["claims"]]))
    page.heading(HEADING)
    page.figure(report_folder(out) / "accuracy.png", "Test accuracy of each dataset (no figure of the paper).")
    page.show(_accuracy_table(report, moments(pair)))
    page.paragraph(_forgetting(report, pair))
    page.heading("Interference")
    page.paragraph(interference_in_words(report))
    page.show(crossing_table(report["crossing"]))
    show_prevalence(page, report["prevalence"])
    for name, example in report["examples"].items():
        show_example(page, name, example, beside[name])
    show_hubs(page, report["hubs"])
    show_dates(page, report["dates"])
    _show_masks(page, report, pair)
    page.heading("The reconstruction error")
    left_out = f"the terms that the mask `{report['mask']}` leaves out"
    page.show(
        reconstruction_table(report["verify"], report["cancellation"], left_out),
        _rebuilt_table(report),
    )
    same = "the same weights, bit for bit" if report["unharmed"] else "OTHER WEIGHTS"
    page.paragraph(
        f"The same training without a recorder gave {same}. The memory of {report['slots']:,} datapoints takes "
        f"{report['disk_bytes'] / 1e9:.2f} GB on disk."
    )
    return page


def _accuracy_table(report: Report, words: Mapping[str, str]) -> Table:
    """With what the paper says beside each accuracy, but for a variant."""
    accuracy = report["accuracy"]
    paper = {} if report["variant"] else {"the paper's text": _TEXT, "the paper's code": _CODE}
    columns = ["network"]
    for dataset in accuracy:
        columns += [dataset, *(f"{dataset}, {source}" for source in paper)]
    rows: list[list[Cell]] = []
    for moment, said in words.items():
        row: list[Cell] = [said.replace("\n", " ")]
        for dataset, by_moment in accuracy.items():
            row.append(percent(by_moment[moment]))
            row += [said.get(moment, {}).get(dataset, "-") for said in paper.values()]
        rows.append(row)
    beside = ", beside what section 5.4 of the paper says and what its code gave when it was run again" if paper else ""
    return Table("accuracy", f"Test accuracy{beside}.", columns, rows)


def _forgetting(report: Report, pair: Pair) -> str:
    """What the second dataset does to the first, and what leaving it out gives back."""
    first, second = (dataset.name for dataset in pair)
    told = {moment: percent(reached) for moment, reached in report["accuracy"][first].items()}
    off = max(report["weights_as_of_first"].values())
    return (
        f"Of the test images of {first}, {told['after_first']} are recognised after {first}, {told['final']} at the "
        f"end, and {told['masked']} once the datapoints of {second} are left out of the sum at the end. Between the "
        f"network that {first} left and this sum lies the momentum that was still to come when {first} ended. The sum "
        f"as of step {report['steps']:,} has none of it: its weights are those of the training within {off:.1g} of how "
        f"far they had moved, and {told['as_of_first']} are recognised."
    )


def interference_in_words(report: Report) -> str:
    """How many test images the second dataset spoils, and which examples are shown."""
    found, examples = report["interference"], report["examples"]
    true, given = found["mistake"]
    said = (
        f"{found['spoilt']:,} MNIST test images are recognised after MNIST, mistaken at the end, and recognised again "
        f"with Fashion-MNIST masked. {found['like_the_papers']:,} of them are, as the paper's example, a {true} taken "
        f"for a {given}. "
    )
    said += "One of them is shown." if "interference" in examples else "So there is no example of interference."
    if any(name.startswith("recognised-") for name in examples):
        said += " The examples that are recognised at the end are of the classes of the paper's, where there are such."
    return said


def _show_masks(page: Page, report: Report, pair: Pair) -> None:
    rows, folder = report["masks"], report_folder(page.run)
    second = pair[1].name
    page.heading("Masks, and training without what they mask")
    page.paragraph(
        "A mask is arithmetic: it removes terms from the sum that this training ended with. It is not a training "
        "without them, for every later term was computed by a network that had seen them. So beside each masked "
        "network stands one that was trained again from the end of MNIST, momentum included, without the part: without "
        "a class of images, in the same order and for as many updates; without its last n steps, n updates fewer. The "
        "cancellation is the sum of the norms of the terms left out over the norm of their sum: where it is large, the "
        "mask takes a small difference of large terms. Where it is small, their sum is large: beside it stands how far "
        "they moved the weights together, over how far all of training did."
    )
    page.figure(
        folder / "masks.png",
        f"Test accuracy when all of {second}, or one class of it, is left out (no figure of the paper; its section 5.4 "
        "says that the first could be done).",
    )
    page.paragraph(_classes(rows, second))
    page.figure(
        folder / "last-steps.png",
        f"Test accuracy when the last steps on {second} are left out, up to all of them (no figure of the paper).",
    )
    page.paragraph(
        "Here masking and stopping earlier differ by momentum alone: the mask leaves the steps before with the "
        "coefficients of the end, when their momentum has run out, and stopping takes them as they stood."
    )
    page.show(_mask_table(rows, pair), _cancellation_table(rows[1:]))


def _classes(rows: Sequence[Report], second: str) -> str:
    """What masking one class does, in the figures of this training; `rows` as `sweep` gives them."""
    whole, classes = rows[1], [row for row in rows if row["label"] is not None]
    masked, retrained = ([100 * row[kind][second] for row in classes] for kind in ("masked", "retrained"))
    moved, cancelled = ([_most(row[figure]) for row in classes] for figure in ("moved", "cancellation"))
    said = (
        f"Trained again without one class of {second}, the network gets {_span(retrained, '.0f')} % of {second} right, "
        f"of whose test images the class is a tenth. With the class masked it gets {_span(masked, '.0f')} % right. At "
        f"the layer where it is most, the terms of one class move the weights {_span(moved, '.1f')} times as far as "
        f"all of training did, and those of all of {second} {_most(whole['moved']):.1f} times; the cancellation is "
        f"{_span(cancelled, '.1f')} of one class, and {_most(whole['cancellation']):.1f} of all."
    )
    if min(moved) <= _most(whole["moved"]) or any(one >= other for one, other in zip(masked, retrained, strict=True)):
        return said
    return (
        f"{said} So the terms of each class go further than all of {second} together: those of the other classes push "
        "against them, and training is the small difference. With one class masked, that push stands alone."
    )


def _most(by_layer: Mapping[str, float]) -> float:
    return max(by_layer.values())


def _span(values: Sequence[float], form: str) -> str:
    return f"{min(values):{form}} to {max(values):{form}}"


def _mask_table(rows: Sequence[Report], pair: Pair) -> Table:
    kinds = ("masked", "retrained")
    columns = ["part left out", "mask", "datapoints", *(f"{one.name}, {kind}" for one in pair for kind in kinds)]
    accuracies = [[percent(row[kind][one.name]) for one in pair for kind in kinds] for row in rows]
    return Table(
        "masks",
        "Test accuracy of the network with a part of its memory masked, and of one retrained without that part.",
        columns,
        [
            (row["part"], row.get("mask", ""), row["datapoints"], *accuracy)
            for row, accuracy in zip(rows, accuracies, strict=True)
        ],
    )


def _cancellation_table(rows: Sequence[Report]) -> Table:
    figures, layers = ("cancellation", "moved"), list(rows[0]["cancellation"])
    return Table(
        "cancellation",
        "Of each part, the cancellation, and how far it moved the weights, as a multiple of how far training did.",
        ["part left out", *(f"{figure}, {layer}" for figure in figures for layer in layers)],
        [(row["part"], *(f"{row[figure][layer]:.3g}" for figure in figures for layer in layers)) for row in rows],
    )


def _rebuilt_table(report: Report) -> Table:
    rows = [(layer, f"{error:.2g}") for layer, error in report["weights_as_of_first"].items()]
    caption = (
        f"The weights as of step {report['steps']:,}, rebuilt at the end, against those that training had then: "
        "‖W - rebuilt‖ / ‖W - W₀‖."
    )
    return Table("as-of-first", caption, ("layer", "relative error"), rows)

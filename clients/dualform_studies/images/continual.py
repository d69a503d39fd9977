"""The study `continual`: MNIST, then Fashion-MNIST (the paper's section 5.4).

The paper's section 5.4: MNIST, then Fashion-MNIST, and what the memory makes of the forgetting.

The second dataset spoils what was learned of the first; left out of the sum, it gives the earlier network back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from dualform.query.engine import Engine
from dualform_studies.assignment import Assignment, Progress, named, or_silent
from dualform_studies.claims import CHANCE, Beside, Claim, claims_table, is_gain, judged, verdict_of
from dualform_studies.images.attention import LayerAttention
from dualform_studies.images.datasets import Dataset, load_dataset
from dualform_studies.images.dates import Period
from dualform_studies.images.masking import draw_last_steps, draw_masks, parts, retrain, sweep
from dualform_studies.images.observations import (
    Choice,
    Findings,
    Prevalence,
    choose_showing,
    crossing,
    crossing_claim,
    crossing_prevalence,
    crossing_table,
    over_layers,
    prevalence_claim,
)
from dualform_studies.images.prediction import PaperFigures, draw_accuracies, draw_example, show_example
from dualform_studies.images.survey import ask_all_attention, ask_hubs_and_dates, show_dates, show_hubs, show_prevalence
from dualform_studies.images.training import (
    Checkpoint,
    Pair,
    Recipe,
    TrainedNetwork,
    Verdict,
    build_network,
    judge,
    layer_names,
    moments,
    named_recipe,
    train_in_succession,
    weights_by_moment,
    without,
)
from dualform_studies.recorded_memory import (
    open_recorded,
    reconstruction_errors,
    reconstruction_report,
    reconstruction_table,
)
from dualform_studies.report import Cell, Page, Report, Table, bytes_on_disk, check_free, percent, report_folder

MISTAKE = (1, 3)
"""The paper's example: a "1" taken for a "3", for the attention that it gives to Fashion-MNIST's dresses."""
_OWN_LEADS = "the query's own class of its own dataset has the greatest sum"
_LEADS = "class 3 of Fashion-MNIST, dress, has the greatest sum"
_LEADS_SECOND = "of Fashion-MNIST's classes, the one with the label recognised has the greatest sum"
_OUTPUT = "the output"
_SPOILT = "it was recognised before Fashion-MNIST was learned, and is with Fashion-MNIST masked"


def continual_findings(
    attention: Sequence[LayerAttention],
    crossed: Sequence[Prevalence],
    checkpoint: Checkpoint,
    second: str,
    given: NDArray[np.int64],
    spoilt: NDArray[np.bool_],
) -> Findings:
    """The observations of MNIST after Fashion-MNIST, the dataset `second`; the checkpoint's test images are MNIST's.

    `crossed` is what `crossing_prevalence` says of the second dataset's test images. `given` is int64[n], the class
    that the network gives each test image at the end; `spoilt` is bool[n], those that were recognised before the second
    dataset was learned, are mistaken, and are recognised with it masked. The example of interference is one of them.
    """
    dataset, last = checkpoint.dataset, attention[-1]
    labels = dataset.test.labels
    one, three = MISTAKE
    wrong = given != labels
    mistaken = wrong & (labels == one) & (given == three)
    among, wrongs = f"{one}s taken for {three} at the end", "MNIST test images mistaken at the end"
    own = {layer.layer: layer.leading() == layer.columns(dataset.name, labels) for layer in attention}
    dress = {
        layer.layer: layer.leading() == layer.columns(second, np.array([three], dtype=np.int64)) for layer in attention
    }
    columns = [at for at, (name, _) in enumerate(last.groups) if name == second]
    recognised = {layer.layer: layer.sums[:, columns].argmax(axis=1) == given for layer in attention}
    dresses = over_layers(_LEADS, among, mistaken, dress)
    of_label = over_layers(_LEADS_SECOND, wrongs, wrong, recognised)
    spoilt_ones = Prevalence(_SPOILT, _OUTPUT, among, mistaken, spoilt)
    spoilt_all = Prevalence(_SPOILT, _OUTPUT, wrongs, wrong, spoilt)
    claims = [
        *prevalence_claim("continual.dress", dresses[-1]),
        *prevalence_claim("continual.mistakes", of_label[-1]),
        crossing_claim("continual.crossing", crossed),
    ]
    choice = choose_showing(dataset, given, [_of_spoilt(dresses[-1], spoilt)]) or choose_showing(
        dataset, given, [_of_spoilt(of_label[-1], spoilt)]
    )
    rows = [*over_layers(_OWN_LEADS, among, mistaken, own), *dresses, *of_label, spoilt_ones, spoilt_all, *crossed]
    return Findings(rows, claims, {} if choice is None else {"interference": choice})


def _of_spoilt(observed: Prevalence, spoilt: NDArray[np.bool_]) -> Prevalence:
    """The same of those alone that the second dataset spoils: no other is an example of interference."""
    return replace(observed, among=f"{observed.among}, spoilt by Fashion-MNIST", concerned=observed.concerned & spoilt)


def choose_recognised_as(dataset: Dataset, given: NDArray[np.int64], label: int) -> Choice | None:
    """The first recognised test image of a class, or of any where there is none; None where none is recognised.

    `given` is int64[n], the class that the network gives each test image.
    """
    labels = dataset.test.labels
    of_class = f"it is of class {dataset.label_names[label]}"
    among = f"{dataset.name} test images recognised at the end"
    return choose_showing(dataset, given, [Prevalence(of_class, "its label", among, given == labels, labels == label)])


HEADING = "Forgetting"
_AFTER, _END = 0.97, 0.45
"""The paper's accuracies on MNIST after the first part and at the end."""
_SEVERE = (_AFTER - _END) / 2
_POINT = 0.01
"""The paper's accuracies are whole per cents."""
_HALF = 1 / 2


def forgetting_claims(recognised: Mapping[str, NDArray[np.bool_]]) -> list[Claim]:
    """That MNIST is forgotten, and comes back with Fashion-MNIST masked.

    `recognised` is bool[n] by moment, as `Verdict.recognised` gives it.
    """
    after, end, masked = (recognised[moment] for moment in ("after_first", "final", "masked"))
    lost, gained = int((after & ~end).sum()), int((end & ~after).sum())
    fallen, returned = float(after.mean() - end.mean()), float(masked.mean() - end.mean())
    forgotten = is_gain(lost, gained)
    half = forgotten and returned >= _HALF * fallen
    near = masked.mean() >= after.mean() - _POINT
    reached = f"{percent(after.mean())} after MNIST, {percent(end.mean())} at the end"
    test = f"beyond chance (paired sign test, p < {CHANCE:g})"
    return [
        judged(
            "continual.forgetting",
            verdict_of(forgotten and fallen >= _SEVERE, forgotten),
            f"{reached}; of {len(after):,} test images {lost:,} are lost and {gained:,} gained",
            after=percent(_AFTER, ".0f"),
            end=percent(_END, ".0f"),
            test=test,
            severe=100 * _SEVERE,
        ),
        judged(
            "continual.removal",
            verdict_of(half and bool(near), half),
            f"{percent(masked.mean())} with them removed; {reached}",
            after=percent(_AFTER, ".0f"),
            test=test,
            point=100 * _POINT,
        ),
    ]


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


CONTINUAL_RECIPE = Recipe(steps=3000)
"""On each of the two datasets."""

_RECOGNISED = (7, 3)
"""The paper's two other examples: an MNIST "7" and a Fashion-MNIST dress."""
_BESIDE = {
    "interference": PaperFigures("Figure 8", "Figure 9", "Figure 22"),
    "recognised-fashion-mnist": PaperFigures("Figure 24", "Figure 25", "Figure 23"),
    "recognised-mnist": PaperFigures("Figure 27", "Figure 28", "Figure 26"),
}


def run_continual(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train, record, mask, retrain and draw; the memory is `out`, the page and report.json lie in `out/report`.

    `steps` updates on each dataset (3,000 where none are given). The same training is run unrecorded, too, to see that
    recording changed nothing. Raises AlreadyExists where `out` holds something, and what `load_dataset` raises.
    """
    out, seed, progress, start = assignment.out, assignment.first_seed, assignment.progress, perf_counter()
    check_free(out)
    recipe = (recipe or CONTINUAL_RECIPE).with_steps(assignment.steps)
    pair = load_dataset("mnist", assignment.data), load_dataset("fashion-mnist", assignment.data)
    plain = train_in_succession(pair, recipe, seed, progress=named(progress, "unrecorded"))
    recorded = train_in_succession(pair, recipe, seed, record_to=out, progress=named(progress, "recorded"))
    chosen = parts(pair, recipe)
    retrained = retrain(recorded, chosen, pair, recipe, seed, progress)
    with open_recorded(out) as memory:
        report = _examine(memory, recorded, pair, recipe, seed, out, progress)
        report["masks"] = sweep(memory, chosen, retrained, recorded, pair, recipe, progress)
    draw_masks(report_folder(out) / "masks.png", report["masks"], pair)
    draw_last_steps(report_folder(out) / "last-steps.png", report["masks"], pair)
    report["beside_paper"] = [row.plain() for row in beside_paper(report, moments(pair))]
    report["command"] = assignment.command("continual")
    report["unharmed"] = all(torch.equal(plain.final[name], recorded.final[name]) for name in plain.final)
    report["seconds"] = {"recorded_training": recorded.seconds, "all": perf_counter() - start}
    continual_page(out, report, pair, _BESIDE).write(report)
    return report


def _examine(
    memory: Engine, trained: TrainedNetwork, pair: Pair, recipe: Recipe, seed: int, out: Path, progress: Progress | None
) -> Report:
    """Everything that the memory is asked, and the figures."""
    layers = layer_names(recipe.widths(pair[0]))
    say = or_silent(progress)
    say("rebuilding networks", 0, 4)
    weights = weights_by_moment(memory, trained, pair, recipe)
    judged = judge(weights, pair, recipe)
    say("checking the reconstruction error", 1, 4)
    verified = memory.verify()
    initial = dict(build_network(recipe.widths(pair[0]), seed).state_dict())
    say("asking for cancellation", 2, 4)
    report: Report = {
        "study": "continual",
        "seed": seed,
        "steps": recipe.steps,
        "recipe": recipe.in_words(),
        "variant": recipe != CONTINUAL_RECIPE,
        "training_images": sum(len(dataset.split.trained) for dataset in pair),
        "trained_on": pair[0].trained_in_words(),
        "mask": without(pair[1]),
        "slots": sum(memory.info().slots.values()),
        "accuracy": judged.accuracy(),
        "verify": {name: reconstruction_report(reconstruction) for name, reconstruction in verified.items()},
        "weights_as_of_first": reconstruction_errors(trained.after_first, weights["as_of_first"], initial, layers),
        "cancellation": dict(memory.cancellation(where=without(pair[1]))),
        "disk_bytes": bytes_on_disk(out),
        "interference": {
            "spoilt": len(judged.interfered()),
            "mistake": list(MISTAKE),
            "like_the_papers": len(judged.interfered(MISTAKE)),
        },
    }
    say("asking what all test images attend to", 3, 4)
    report |= _ask_attention(memory, judged, layers, recipe, report_folder(out))
    draw_accuracies(report_folder(out) / "accuracy.png", judged.accuracy(), moments(pair))
    say("asking what all test images attend to", 4, 4)
    return report


def _ask_attention(memory: Engine, judged: Verdict, layers: Sequence[str], recipe: Recipe, folder: Path) -> Report:
    """Claims and the examples that show them, attention across datasets, hubs and dates."""
    first, second = judged.pair
    given = {dataset.name: judged.classes["final"][dataset.name] for dataset in judged.pair}
    checkpoints = [Checkpoint(dataset, 2 * recipe.steps, last=True) for dataset in judged.pair]
    attention = ask_all_attention(memory, layers, checkpoints, judged.pair)
    spoilt = np.zeros(len(first.test), dtype=np.bool_)
    spoilt[judged.interfered()] = True
    found = continual_findings(
        attention.layers[first.name],
        crossing_prevalence(attention.layers[second.name], attention.datapoints, second.name),
        checkpoints[0],
        second.name,
        given[first.name],
        spoilt,
    )
    chosen = dict(found.shown)
    for dataset, label in reversed(list(zip(judged.pair, _RECOGNISED, strict=True))):
        choice = choose_recognised_as(dataset, given[dataset.name], label)
        chosen |= {} if choice is None else {f"recognised-{dataset.name}": choice}
    periods = {
        first.name: Period(0, recipe.steps, f"step < {recipe.steps}", f"the training on {first.name}"),
        second.name: Period(
            recipe.steps, 2 * recipe.steps, f"step >= {recipe.steps}", f"the training on {second.name}"
        ),
    }
    measured, claims = ask_hubs_and_dates(
        memory, attention, [choice.query for choice in chosen.values()], periods, folder
    )
    forgotten = forgetting_claims(judged.recognised(first))
    return measured | {
        "prevalence": [row.plain() for row in found.rows],
        "claims": [claim.plain() for claim in (*forgotten, *found.claims, *claims)],
        "crossing": {name: crossing(own, attention.datapoints, name) for name, own in attention.layers.items()},
        "examples": {name: _draw(memory, judged, choice, layers, folder, name) for name, choice in chosen.items()},
    }


def _draw(memory: Engine, judged: Verdict, choice: Choice, layers: Sequence[str], folder: Path, name: str) -> Report:
    query, beside = choice.query, _BESIDE[name]
    masked = judged.masked(query)
    return draw_example(memory, query, layers, judged.pair, folder, name, beside, masked=masked, how=choice.how)

"""The study `single`: networks on MNIST (the paper's section 5.2).

Whether sums weighted by the error's norm show a trend (the side note of section 5.2).

Shapes: n test images, G classes.

Attention weights times the norm of what they bring: the variant in the side note of the paper's section 5.2.

    sum_t |alpha_t| ||e_t||        over the slots t of a class; e_t = a_s c_s delta_t is the value at a step

Shapes: T slots, R distinct keys, G classes, n queries, d_in, d_out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dualform.methods import Answers
from dualform.query.engine import Engine
from dualform_studies.assignment import Assignment, Progress, named, or_silent
from dualform_studies.claims import Beside, Claim, claims_table, judged, verdict
from dualform_studies.images.attention import Datapoints, LayerAttention, ask_greatest
from dualform_studies.images.datasets import Dataset, load_dataset
from dualform_studies.images.dates import Period
from dualform_studies.images.kernels import KernelsRecipe, ask_kernels, draw_kernels, kernel_claims, show_kernels
from dualform_studies.images.observations import (
    EVERY,
    MOST,
    SOME,
    Findings,
    choose_showing,
    over_layers,
    prevalence_claim,
)
from dualform_studies.images.prediction import (
    LayerSpotlight,
    PaperFigures,
    draw_example,
    draw_weighted_sums,
    show_example,
)
from dualform_studies.images.query_figure import Query
from dualform_studies.images.survey import ask_all_attention, ask_hubs_and_dates, show_dates, show_hubs, show_prevalence
from dualform_studies.images.table1 import (
    CELLS,
    HEADING,
    ask_checkpoints,
    beside_table_1,
    cells_met,
    count_cells,
    in_words,
    over_runs,
    runs_table,
    table_1,
    table_1_claims,
)
from dualform_studies.images.training import Checkpoint, Recipe, batch_rows, batches, layer_names, named_recipe, record
from dualform_studies.recorded_memory import layer_info, open_recorded, reconstruction_report, reconstruction_table
from dualform_studies.report import (
    Cell,
    Page,
    Report,
    Table,
    bytes_on_disk,
    check_free,
    in_fraction,
    percent,
    report_folder,
)

ERROR_NORM_HEADING = "Weighted by the error's norm"
TRENDS = {
    "greatest": "its own class has the greatest sum",
    "least": "its own class has the least sum",
    "same": "one class, the same for all, has the greatest sum",
}
"""What a recognised test image might show, and with it most of the others."""


def trends(
    sums: NDArray[np.float64], classes: NDArray[np.int64], labels: NDArray[np.int64], right: NDArray[np.bool_]
) -> dict[str, float | None]:
    """Each of TRENDS as a share of the recognised test images, from 0 to 1; None without any.

    `sums` is float64[n, G] with the classes int64[G]; `labels` is int64[n], and bool[n] `right` where they are given.
    """
    if not right.any():
        return dict.fromkeys(TRENDS)
    greatest, least = classes[sums[right].argmax(axis=1)], classes[sums[right].argmin(axis=1)]
    return {
        "greatest": float((greatest == labels[right]).mean()),
        "least": float((least == labels[right]).mean()),
        "same": float(np.unique(greatest, return_counts=True)[1].max() / len(greatest)),
    }


def trend_claims(layers: Mapping[str, Report]) -> list[Claim]:
    """That there is no consistent trend; `layers` holds `trends` by layer. No claim where no image is recognised."""
    if any(share is None for shares in layers.values() for share in shares.values()):
        return []
    without = sum(max(shares.values()) < MOST for shares in layers.values())
    told = (f"{words}: {', '.join(percent(one[kind]) for one in layers.values())}" for kind, words in TRENDS.items())
    return [
        judged(
            "single.error-norm",
            verdict(without, len(layers), 1),
            f"{'; '.join(told)} ({', '.join(layers)})",
            most=in_fraction(MOST),
            trends="; ".join(TRENDS.values()),
        )
    ]


def trend_table(layers: Mapping[str, Report]) -> Table:
    """`trends` by layer."""
    rows = [
        (layer, *("-" if one[kind] is None else f"{100 * one[kind]:.1f}" for kind in TRENDS))
        for layer, one in layers.items()
    ]
    caption = "Of how many recognised test images each holds of the weighted sums, in per cent."
    return Table("error-norm-trends", caption, ("layer", *TRENDS.values()), rows)


SIX, ZERO, THREE = 6, 0, 3
_CLOSE = 0.9
"""A weight is comparable to another from this share of it on."""
_LEADS = "the query's own class has the greatest sum"
_ZERO = "the best datapoint of class 0 weighs at least as much as the best of class 6"
_NEAR = f"the best datapoint of class 0 weighs at least {in_fraction(_CLOSE)} of the best of class 6"
_OTHER = "the best image is of another class"

Greatest = Mapping[str, NDArray[np.float64]]
"""By layer, float64[n, G]: the greatest weight in each class, of sixes; of other images it is not asked, and 0."""


def ask_sixes(memory: Answers, layers: Sequence[str], checkpoint: Checkpoint) -> Greatest:
    """The greatest weight in each class, of all test images of a six."""
    dataset = checkpoint.dataset
    sixes = np.flatnonzero(dataset.test.labels == SIX)
    found = {}
    for layer in layers:
        found[layer] = np.zeros((len(dataset.test), len(dataset.label_names)))
        found[layer][sixes] = ask_greatest(memory, layer, checkpoint, sixes, [dataset])
    return found


def single_findings(
    attention: Sequence[LayerAttention],
    greatest: Greatest,
    datapoints: Datapoints,
    checkpoint: Checkpoint,
    given: NDArray[np.int64],
) -> Findings:
    """Whether a recognised digit's class leads, and whether zeros are among a six's best.

    `given` is int64[n], the class that the network gives each test image.
    """
    dataset = checkpoint.dataset
    labels = dataset.test.labels
    right = given == labels
    leads = {one.layer: one.leading() == one.columns(dataset.name, labels) for one in attention}
    zeros = {layer: best[:, ZERO] >= best[:, SIX] for layer, best in greatest.items()}
    near = {layer: best[:, ZERO] >= _CLOSE * best[:, SIX] for layer, best in greatest.items()}
    other = {one.layer: datapoints.image_labels[one.best[:, 0]] != labels for one in attention}

    def of_digit(digit: int) -> tuple[str, NDArray[np.bool_]]:
        return f"recognised {dataset.label_names[digit]}s", right & (labels == digit)

    six_leads = over_layers(_LEADS, *of_digit(SIX), leads, EVERY)
    three_leads = over_layers(_LEADS, *of_digit(THREE), leads, EVERY)
    six_zero = over_layers(_ZERO, *of_digit(SIX), zeros, SOME)
    six_near = over_layers(_NEAR, *of_digit(SIX), near, SOME)
    any_leads = over_layers(_LEADS, "recognised digits", right, leads, EVERY)
    any_other = over_layers(_OTHER, "recognised digits", right, other, SOME)
    others = [digit for digit in range(len(dataset.label_names)) if digit != SIX]
    by_digit = [over_layers(_LEADS, *of_digit(digit), leads, EVERY)[-1] for digit in others]
    claims = [
        *prevalence_claim("single.six-leads", six_leads[-1]),
        *prevalence_claim("single.six-zeros", six_near[-1]),
        *prevalence_claim("single.other-class", any_other[-1]),
        *prevalence_claim("single.three-leads", three_leads[-1]),
    ]
    chosen = {
        f"digit-{SIX}": choose_showing(dataset, given, [six_leads[-1], six_near[-1]]),
        f"digit-{THREE}": choose_showing(dataset, given, [three_leads[-1]]),
    }
    return Findings(
        [*six_leads, *six_zero, *six_near, *by_digit, *any_leads, *any_other],
        claims,
        {name: choice for name, choice in chosen.items() if choice is not None},
    )


_ROWS = 4096


def error_norms(memory: Engine, layer: str, at_step: int | None = None) -> NDArray[np.float64]:
    """float64[T]: ||e_t|| of each slot, as the layer's weight has it after `at_step` updates, None for all of them.

    A slot of a later step has brought nothing yet: 0. Raises NotFound where no values were recorded.
    """
    slots = np.arange(layer_info(memory, layer).slots)
    norms = np.abs(memory.coefficients(layer, slots, at_step))
    for block in _blocks(slots):
        norms[block] *= np.linalg.norm(memory.values(layer, block).astype(np.float64), axis=1)
    return norms


def error_norm_sums(
    memory: Engine, layer: str, query_set: str, at_step: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """int64[G], the labels in ascending order, and float64[n, G], the sums of each row of a query set.

    Raises NotFound where the layer, its values or the query set are missing.
    """
    queries, info = memory.query_set(query_set, layer).queries, layer_info(memory, layer)
    assert queries is not None, "the layer was named"
    slots = np.arange(info.slots)
    labels = memory.slots(slots, info.space)["label"]
    classes, numbers = np.unique(np.asarray(labels), return_inverse=True)
    # Slots that share a key are scored once: `first` has that key, and the norms of all of them weigh in it.
    _, first, rows = np.unique(memory.key_rows(layer, slots), return_index=True, return_inverse=True)
    cells = np.bincount(rows * len(classes) + numbers, error_norms(memory, layer, at_step), len(first) * len(classes))
    weights = cells.astype(np.float64).reshape(len(first), len(classes))
    sums = _of_one_sign(memory, layer, first, weights, queries)
    return classes, _scanned(memory, layer, first, weights, queries) if sums is None else sums


def _of_one_sign(
    memory: Engine,
    layer: str,
    slots: NDArray[np.int64],
    weights: NDArray[np.float64],
    queries: NDArray[np.float32],
) -> NDArray[np.float64] | None:
    """Where neither keys nor queries are negative, no score is: weighted key sums, and one product. Else None."""
    if queries.min() < 0:
        return None
    sums = np.zeros((weights.shape[1], queries.shape[1]))
    for block in _blocks(np.arange(len(slots))):
        keys = memory.keys(layer, slots[block])
        if keys.min() < 0:
            return None
        sums += weights[block].T @ keys
    products: NDArray[np.float64] = queries @ sums.T
    return products


def _scanned(
    memory: Engine,
    layer: str,
    slots: NDArray[np.int64],
    weights: NDArray[np.float64],
    queries: NDArray[np.float32],
) -> NDArray[np.float64]:
    """Every score, in float32, and what they add up to in float64."""
    sums = np.zeros((len(queries), weights.shape[1]))
    for block in _blocks(np.arange(len(slots))):
        scores = queries @ memory.keys(layer, slots[block]).T
        sums += np.abs(scores, out=scores) @ weights[block]
    return sums


def _blocks(numbers: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (numbers[start : start + _ROWS] for start in range(0, len(numbers), _ROWS))


BESIDE = {
    "digit-6": PaperFigures("Figure 4", "Figure 5", "Figure 10"),
    "digit-3": PaperFigures("Figure 14", "Figure 15", "Figure 13"),
}
"""The digits whose attention is drawn."""


def ask_single(
    dataset: Dataset, layers: Sequence[str], checkpoint: Checkpoint, out: Path, progress: Progress | None
) -> Report:
    """Claims and the examples that show them, hubs, dates, sums weighted by the error's norm, and the reconstruction
    error.
    """
    say = or_silent(progress)
    say("asking what all test images attend to", 0, 2)
    report, query = _ask(out, dataset, layers, checkpoint)
    say("weighting by the error's norm", 1, 2)
    report["error_norm"], report["error_norm_trends"] = _weigh(out, dataset, layers, checkpoint, query)
    report["claims"] += [claim.plain() for claim in trend_claims(report["error_norm_trends"])]
    say("weighting by the error's norm", 2, 2)
    return report


def _ask(out: Path, dataset: Dataset, layers: Sequence[str], checkpoint: Checkpoint) -> tuple[Report, Query]:
    """What the engine is asked, and the query of the figures that show one. Its keys are let go on return."""
    folder = report_folder(out)
    with open_recorded(out) as memory:
        given = checkpoint.classes_given(memory)
        attention = ask_all_attention(memory, layers, [checkpoint], [dataset])
        sixes = ask_sixes(memory, layers, checkpoint)
        found = single_findings(attention.layers[dataset.name], sixes, attention.datapoints, checkpoint, given)
        queries = [choice.query for choice in found.shown.values()] or [Query(dataset, 0, int(given[0]))]
        periods = {dataset.name: Period(0, checkpoint.step, checkpoint.where)}
        measured, claims = ask_hubs_and_dates(memory, attention, queries, periods, folder)
        report: Report = measured | {
            "slots": sum(memory.info().slots.values()),
            "prevalence": [row.plain() for row in found.rows],
            "claims": [claim.plain() for claim in (*found.claims, *claims)],
            "examples": {
                name: draw_example(memory, choice.query, layers, [dataset], folder, name, BESIDE[name], how=choice.how)
                for name, choice in found.shown.items()
            },
            "verify": {name: reconstruction_report(reconstruction) for name, reconstruction in memory.verify().items()},
        }
        return report, queries[0]


def _weigh(
    out: Path, dataset: Dataset, layers: Sequence[str], checkpoint: Checkpoint, query: Query
) -> tuple[Report, Report]:
    """Of sums weighted by the error's norm, by layer, the cells of Table 1 and trends; the query's own are drawn."""
    cells: Report = {}
    shown: Report = {}
    drawn = []
    with open_recorded(out) as memory:
        given, labels = checkpoint.classes_given(memory), dataset.test.labels
        for layer in layers:
            classes, sums = error_norm_sums(memory, layer, checkpoint.query_set, checkpoint.step)
            cells[layer] = count_cells(classes[sums.argmax(axis=1)], labels, given)
            shown[layer] = trends(sums, classes, labels, given == labels)
            drawn.append(_spotlight(dataset, layer, classes, sums[query.row]))
    draw_weighted_sums(report_folder(out) / "error-norm-sums.png", drawn, query, [dataset])
    return cells, shown


def _spotlight(dataset: Dataset, layer: str, classes: NDArray[np.int64], sums: NDArray[np.float64]) -> LayerSpotlight:
    groups = tuple((dataset.name, int(label)) for label in classes)
    return LayerSpotlight(layer, groups, [], sums, np.zeros(len(groups), dtype=np.int64), [])


_TEXT, _CODE = {3000: "97 %"}, {5000: "97.2 %, 97.4 %"}
"""Accuracies by number of updates: that of section 5.2, and those that the paper's code gave with the seeds 1 and 2."""


def beside_paper(report: Report) -> Iterator[Beside]:
    """Accuracies after those numbers of updates that the paper's text or code had, and Table 1 after the recipe's."""
    for step, runs in ((int(step), runs) for step, runs in reversed(report["accuracy"].items())):
        if step in _TEXT or step in _CODE:
            ours = percent(sum(runs) / len(runs))
            yield Beside(f"accuracy after {step:,} updates", ours, _TEXT.get(step, ""), _CODE.get(step, ""))
    if not report["variant"]:
        yield from beside_table_1(report["table_1"], report["steps"])


def single_page(out: Path, report: Report) -> Page:
    page = Page(out, "Single task: MNIST (section 5.2)")
    page.paragraph(_recipe(report))
    page.show(_accuracy_table(report), claims_table([Claim(**claim) for claim in report["claims"]]))
    page.heading(HEADING)
    page.paragraph(_cells(report))
    steps = report["steps"]
    page.show(
        table_1(report["table_1"], steps, report["runs"], variant=report["variant"]),
        runs_table(report["table_1"][str(steps)], steps, report["seed"]),
    )
    show_prevalence(page, report["prevalence"])
    for name, example in report["examples"].items():
        show_example(page, name, example, BESIDE[name])
    show_hubs(page, report["hubs"])
    page.heading(ERROR_NORM_HEADING)
    page.paragraph(
        "The side note of section 5.2: each attention weight times the norm of the error that it brings. The paper saw "
        f"no consistent trend in it. {_agreement(report)} The first table holds the cells of Table 1 for these sums "
        "and, of the same run, for the plain ones."
    )
    page.show(_error_norm_table(report), trend_table(report["error_norm_trends"]))
    page.figure(
        report_folder(out) / "error-norm-sums.png",
        "Attention weights times error norms summed over each training class (the side note of section 5.2; beside "
        "Figure 5 of the paper).",
    )
    show_dates(page, report["dates"])
    show_kernels(page, report["kernels"])
    page.heading("The reconstruction error")
    page.show(reconstruction_table(report["verify"]))
    return page


def _recipe(report: Report) -> str:
    first, runs = report["seed"], report["runs"]
    trained = f"One network was trained, of seed {first}"
    if runs > 1:
        trained = f"{runs} networks were trained on the same images, of seeds {first} to {first + runs - 1}"
    earlier = [int(step) for step in report["accuracy"] if int(step) != report["steps"]]
    variant = "".join(f", so each network is looked at after {step:,}, too" for step in earlier)
    return (
        f"Each network learns by {named_recipe(variant=report['variant'])}: {report['steps']:,} updates of "
        f"{report['recipe']}. It is trained on {report['trained_on']}. The paper's text says vanilla SGD and "
        f"3,000 updates{variant}. {trained}; the memory kept is the first one's, and the figures are of this first "
        "network at its end."
    )


def _accuracy_table(report: Report) -> Table:
    seeds = [f"seed {report['seed'] + run}" for run in range(report["runs"])]
    rows: list[list[Cell]] = [
        [f"{step:,}", *(percent(value, ".2f") for value in runs), _TEXT.get(step, "-"), _CODE.get(step, "-")]
        for step, runs in ((int(step), runs) for step, runs in reversed(report["accuracy"].items()))
    ]
    columns = ["updates", *seeds, "the paper's text", "the paper's code, two runs"]
    return Table("accuracy", "Test accuracy on MNIST.", columns, rows)


def _cells(report: Report) -> str:
    """How many cells are met."""
    looks, steps = report["table_1"], report["steps"]
    met = cells_met(looks[str(steps)])
    variants = "".join(
        f" After {int(step):,} updates, a variant, {cells_met(layers)} are."
        for step, layers in looks.items()
        if int(step) != steps
    )
    return (
        "The class that draws most attention is the argmax of a layer's absolute attention weights summed over each "
        f"class. {met} of the {len(looks[str(steps)]) * len(CELLS)} cells are met after {steps:,} "
        f"updates.{variants}"
    )


def _agreement(report: Report) -> str:
    """What the weighting does to the argmax where the network is right, in a sentence."""
    plain = [layer["yes"]["runs"][0] for layer in report["table_1"][str(report["steps"])].values()]
    weighted = [layer["yes"] for layer in report["error_norm"].values()]
    return (
        "Where the network is right, the class of the greatest weighted sum is the true one, layer by layer, for "
        f"{_by_layer(weighted)} % of the test images, that of the greatest plain sum for {_by_layer(plain)} %."
    )


def _by_layer(values: Sequence[float | None]) -> str:
    return " / ".join(in_words(value, None) for value in values)


def _error_norm_table(report: Report) -> Table:
    plain = report["table_1"][str(report["steps"])]
    rows = [
        (layer, *words, in_words(plain[layer][cell]["runs"][0], None), in_words(cells[cell], None))
        for layer, cells in report["error_norm"].items()
        for cell, words in CELLS.items()
    ]
    caption = (
        f"Table 1 of the first run (seed {report['seed']}) after {report['steps']:,} updates, in per cent, from plain "
        "sums and from sums weighted by the error's norm."
    )
    columns = ["layer", "network right", "argmax beside", "plain sums", "weighted sums"]
    return Table("error-norm", caption, columns, rows)


@dataclass(frozen=True)
class SingleRecipe:
    training: Recipe = field(default_factory=lambda: Recipe(steps=5000))
    moments: tuple[int, ...] = (3000,)
    """Numbers of updates, ascending, after which the network is looked at beside the last: the paper's text's."""
    runs: int = 5
    kernels: KernelsRecipe = field(default_factory=KernelsRecipe)

    def with_steps(self, steps: int | None) -> SingleRecipe:
        training = self.training.with_steps(steps)
        return replace(self, training=training, moments=tuple(m for m in self.moments if m < training.steps))

    def checkpoints(self, dataset: Dataset) -> tuple[Checkpoint, ...]:
        earlier = (Checkpoint(dataset, moment) for moment in self.moments)
        return (*earlier, Checkpoint(dataset, self.training.steps, last=True))


SINGLE_RECIPE = SingleRecipe()


def run_single(assignment: Assignment, recipe: SingleRecipe | None = None) -> Report:
    """Train `runs` networks with the seeds that follow `seed`; the first one's memory is `out` and stays.

    `steps` updates each (5,000 where none are given), looked at after 3,000, too, which the paper's text names. Raises
    AlreadyExists where `out` holds something, and what `load_dataset` raises.
    """
    out, start = assignment.out, perf_counter()
    check_free(out)
    recipe = (recipe or SINGLE_RECIPE).with_steps(assignment.steps)
    runs = assignment.runs or recipe.runs
    dataset = load_dataset("mnist", assignment.data)
    layers, checkpoints = layer_names(recipe.training.widths(dataset)), recipe.checkpoints(dataset)
    cells, accuracy, seconds = [], [], []
    for number in range(runs):
        say = named(assignment.progress, f"run {number + 1} of {runs}")
        with _folder(out, number) as folder:
            seconds.append(
                _train(dataset, recipe, assignment.first_seed + number, folder, values=number == 0, progress=say)
            )
            filled, reached = ask_checkpoints(folder, layers, checkpoints)
            cells.append(filled)
            accuracy.append(reached)
    report: Report = {
        "study": "single",
        "command": assignment.command("single"),
        "seed": assignment.first_seed,
        "runs": runs,
        "steps": recipe.training.steps,
        "recipe": recipe.training.in_words(),
        "variant": recipe.training != SINGLE_RECIPE.training,
        "training_images": len(dataset.split.trained),
        "trained_on": dataset.trained_in_words(),
        "accuracy": {str(checkpoint.step): [run[at] for run in accuracy] for at, checkpoint in enumerate(checkpoints)},
        "table_1": {
            str(checkpoint.step): over_runs([run[at] for run in cells]) for at, checkpoint in enumerate(checkpoints)
        },
    }
    report["beside_paper"] = [row.plain() for row in beside_paper(report)]
    report |= ask_single(dataset, layers, checkpoints[-1], out, assignment.progress)
    of_table_1 = table_1_claims(report["table_1"][str(recipe.training.steps)])
    report["claims"] = [*(claim.plain() for claim in of_table_1), *report["claims"]]
    report["kernels"] = ask_kernels(out, dataset, layers, assignment.progress, recipe.kernels)
    draw_kernels(report_folder(out) / "kernels.png", report["kernels"])
    report["claims"] += [claim.plain() for claim in kernel_claims(report["kernels"])]
    report["disk_bytes"] = bytes_on_disk(out)
    report["seconds"] = {"recorded_training": seconds, "all": perf_counter() - start}
    single_page(out, report).write(report)
    return report


def _train(
    dataset: Dataset, recipe: SingleRecipe, seed: int, folder: Path, *, values: bool, progress: Progress | None
) -> float:
    stream = batches(dataset, batch_rows(dataset.split.trained, recipe.training, seed, part=0))
    return record(
        [dataset], stream, recipe.training, seed, folder, moments=recipe.moments, values=values, progress=progress
    )


@contextmanager
def _folder(out: Path, number: int) -> Iterator[Path]:
    """Where a run is recorded: the first stays, the others are gone once they were asked."""
    if number == 0:
        yield out
        return
    with TemporaryDirectory(dir=out, prefix="run-") as folder:
        yield Path(folder)

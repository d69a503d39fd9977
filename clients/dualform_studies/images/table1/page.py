"""Table 1 on a page: beside the paper's, of each run, and what the paper concludes from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from dualform_studies.images.table1.cells import CELLS, CODE, DEVIATIONS, PAPER, POINTS, cells_met, is_met
from dualform_studies.pages.claims import Beside, Claim, verdict
from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Cell, Table

HEADING = "Table 1"
_CASES = {
    "no_target": "network wrong, the true class leads",
    "no_output": "network wrong, the recognised class leads",
    "yes": "network right, its class leads",
}

MET = f"within {DEVIATIONS} of the paper's deviations, or within {POINTS} point where its deviation is 0.0"


def table_1(by_step: Report, steps: int, runs: int, *, variant: bool = False) -> Table:
    """`by_step` holds what `over_runs` gives after each number of updates; `steps` is that of the recipe.

    `variant`: the recipe is not the study's own.
    """
    variants = [int(step) for step in by_step if int(step) != steps]
    own = f"{'a variant' if variant else 'the recipe'}, {steps:,} updates"
    columns = ["layer", "network right", "argmax beside", "paper", own]
    columns += ["points off", "deviations off", "met", "paper's code, two runs"]
    for step in variants:
        columns += [f"variant, {step:,} updates", "points off", "paper's code, two runs"]
    rows: list[list[Cell]] = []
    for layer, cells in PAPER.items():
        for cell, paper in cells.items():
            found = by_step[str(steps)][layer][cell]
            row: list[Cell] = [layer, *CELLS[cell], in_words(*paper), in_words(found["mean"], found["deviation"])]
            row += [_signed(found["points_off"], 2), _signed(found["deviations_off"], 1)]
            row += ["yes" if is_met(found) else "no", _of_code(steps, layer, cell)]
            for step in variants:
                other = by_step[str(step)][layer][cell]
                row += [in_words(other["mean"], other["deviation"]), _signed(other["points_off"], 2)]
                row.append(_of_code(step, layer, cell))
            rows.append(row)
    caption = (
        "Table 1 of the paper: how often, in per cent, the class that draws most attention is the true class, or the "
        f"one recognised; over the full test set, mean and standard deviation of {runs} run{'s' * (runs > 1)}. "
        f"Differences are in points, and in units of the paper's own deviations; a cell is met {MET}."
    )
    if variants:
        caption += " The last columns are of the number of updates that the paper's text names."
    return Table("table-1", caption, columns, rows)


def runs_table(layers: Report, steps: int, first_seed: int) -> Table:
    """The cells of each run after the recipe's updates."""
    runs = len(layers["layer-0"]["yes"]["runs"])
    columns = ["layer", "network right", "argmax beside", *(f"seed {first_seed + run}" for run in range(runs))]
    rows = [
        (layer, *CELLS[cell], *("-" if value is None else f"{value:.2f}" for value in layers[layer][cell]["runs"]))
        for layer in PAPER
        for cell in CELLS
    ]
    return Table("table-1-runs", f"The same cells of each run after {steps:,} updates, in per cent.", columns, rows)


def table_1_claims(layers: Report) -> tuple[Claim, ...]:
    """What section 5.2 concludes from Table 1, put to `layers` as `over_runs` gives them."""
    right = [layers[layer]["yes"] for layer in PAPER]
    met, every = cells_met(layers), len(PAPER) * len(CELLS)
    rising = [_rises(of_run) for of_run in zip(*(cell["runs"] for cell in right), strict=True)]
    paper = " / ".join(f"{cell['paper'][0]:.1f}" for cell in right)
    ours = " / ".join(in_words(cell["mean"], None) for cell in right)
    return (
        Claim(
            "section 5.2",
            "The class with the greatest sum of attention weights correlates well with the network's output.",
            f"Table 1; where the network is right, {paper} % by layer",
            f"{met} of {every} cells met; {ours} %",
            verdict(met, every, 6),
            f"all nine cells {MET}; in part: six",
            HEADING,
        ),
        Claim(
            "section 5.2",
            "It does so especially in the late layers.",
            f"{paper} % by layer where the network is right",
            f"rises from layer to layer in {sum(rising)} of {len(rising)} runs",
            verdict(sum(rising) / len(rising), 1, 0.5),
            "rises from each layer to the next in every run; in part: in half of them",
            HEADING,
        ),
    )


def beside_table_1(by_step: Report, steps: int) -> Iterator[Beside]:
    """The nine cells of the recipe beside the paper's."""
    for layer, cells in PAPER.items():
        for cell, paper in cells.items():
            found = by_step[str(steps)][layer][cell]
            what = f"Table 1, {layer}, {_CASES[cell]} (%)"
            code = _of_code(steps, layer, cell)
            yield Beside(what, in_words(found["mean"], found["deviation"]), in_words(*paper), code.strip("-"))


def in_words(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "-"
    return f"{mean:.1f}" if deviation is None else f"{mean:.1f} ± {deviation:.1f}"


def _rises(by_layer: Sequence[float | None]) -> bool:
    known = [value for value in by_layer if value is not None]
    return len(known) == len(by_layer) and all(low < high for low, high in pairwise(known))


def _of_code(steps: int, layer: str, cell: str) -> str:
    found = CODE.get(steps, {}).get(layer) if cell == "yes" else None
    return "-" if found is None else ", ".join(f"{value:.2f}" for value in found)


def _signed(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:+.{digits}f}"

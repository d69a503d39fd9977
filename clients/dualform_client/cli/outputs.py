"""Questions about outputs and weights: output, contributions and weights, and what an ablation means for them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from math import isnan
from pathlib import Path
from typing import Any

import click
import numpy as np

from dualform.answers import Cancellation, Contributions, Outputs, Placebos, Weights
from dualform.answers.outputs import WHAT_AN_ABLATION_MEANS, WHOSE_STATUS
from dualform.answers.table import counted
from dualform.errors import BadInput, FolderError, Inexact
from dualform.methods import Answers
from dualform.questions import Filter, FilterOrFilters, Queries
from dualform.questions.arguments import KERNELS
from dualform_client.cli.help import command
from dualform_client.cli.layer_answers import (
    asked_queries,
    asks_layers,
    groups_record,
    layer_title,
    names_record,
    sample_notes,
    share,
    status_notes,
)
from dualform_client.cli.options import (
    COUNT,
    FILE,
    allow_inexact_option,
    asks_target,
    at_step_option,
    by_option,
    check_output_file,
    force_option,
    layer_option,
    query_option,
    replacing,
    takes_filter,
)
from dualform_client.cli.printing import Importance, Note, Report, Table, print_note, wants_json

SHOWN_OUTPUTS = 16
"""Outputs of a layer that a table shows; --json prints all."""
WHAT_A_SOFTMAX_ABLATION_MEANS = (
    "--where takes slots out of the softmax, so that the weights of the others grow, and subtracts what the removed "
    f"ones added to the bias. It is not retraining without them. {WHOSE_STATUS}"
)
_NOTHING = "moves nothing"


@command()
@asks_target
@asks_layers
@layer_option
@query_option
@takes_filter("Add up only slots that match.")
@click.option("--placebo", type=COUNT, metavar="N", help="Compare with N random sets, and with siblings.")
@at_step_option
@allow_inexact_option
@click.option(
    "--kernel",
    default="linear",
    show_default=True,
    type=click.Choice(KERNELS),
    metavar="NAME",
    help="Use the kernel linear or softmax.",
)
@click.option("--temperature", type=float, metavar="T", show_default="1", help="Divide scores by T before the softmax.")
@click.option("--no-initial", is_flag=True, help="Leave out the initial weights and the bias.")
def output(
    memory: Answers,
    layer: str,
    queries: Queries,
    where: str | Filter | None,
    placebo: int | None,
    at_step: int | None,
    allow_inexact: bool,
    kernel: str,
    temperature: float | None,
    no_initial: bool,
) -> Report:
    """Compute a layer's output, also from part of the training.

    --where removes terms from this training's sum. It does not predict what a
    retraining would give. --placebo says whether a change means anything.

    \b
    Example:
      dualform output runs/demo --query test-digits/17 \\
        --where "step < 100" --placebo 50
    """
    if placebo is not None:
        _check_placebo(where, kernel, no_initial)
    outputs = memory.output(layer, queries, where, at_step, allow_inexact, kernel, temperature, not no_initial)
    # It reads the slots once more, and a table without a placebo does not show it. What is left of a softmax grows: how
    # far the removed terms cancel says nothing of it.
    shown = kernel == "linear" and (placebo is not None or wants_json())
    removed = cancellation(memory, where, at_step, layer, allow_inexact) if shown else None
    notes: list[str] = [*status_notes(layer, outputs.status, outputs.unrecorded_change)]
    if where is not None:
        notes.append(WHAT_AN_ABLATION_MEANS if kernel == "linear" else WHAT_A_SOFTMAX_ABLATION_MEANS)
    tested = None if placebo is None else memory.placebo(layer, queries, where, placebo, at_step, allow_inexact)
    if tested is not None:
        notes += [_described(tested), *described(removed)]
    elif where is not None and kernel == "linear":
        notes.append("Leaving out any part changes predictions: --placebo 50 says whether this change is unusual.")
    asked = asked_queries(memory, queries, len(outputs), outputs.space)
    at = "" if outputs.temperature is None else f" at temperature {outputs.temperature:g}"
    without = "" if outputs.initial else "without W_0 and bias"
    columns = {
        "query": list(asked),
        "largest": [_ranked(row, 1) for row in outputs],
        "runner-up": [_ranked(row, 2) for row in outputs],
        **({} if tested is None else _compared(tested)),
        **({} if outputs.effective_slots is None else {"effective slots": outputs.effective_slots.tolist()}),
        **{str(place): outputs.values[:, place].tolist() for place in _shown(outputs.shape[1])},
    }
    importance = Importance(
        ("query", "largest", "runner-up"), last=("margin", "unusual", "prediction", "random sets", "effective slots")
    )
    title = layer_title(layer, f"outputs of the {outputs.kernel} kernel{at}", without, _first(outputs.shape[1]))
    record = {
        **_outputs(outputs),
        **names_record(asked),
        **({} if removed is None else figures(removed)),
        **({} if tested is None else {"placebo": {**tested.summary(), "queries": tested.table().records()}}),
    }
    table = Table(title, list(columns), zip(*columns.values(), strict=True), importance)
    return Report(record, [table, *map(Note, notes)])


def _check_placebo(where: str | Filter | None, kernel: str, no_initial: bool) -> None:
    if where is None:
        raise BadInput("--placebo needs --where.", hint="Give the ablation that it is to test.", field="placebo")
    if kernel != "linear" or no_initial:
        option = "--no-initial" if no_initial else "--kernel softmax"
        raise BadInput(f"--placebo and {option} cannot be given together.", field="placebo")


def _compared(tested: Placebos) -> dict[str, list[Any]]:
    """Columns: how prediction and margin change, the central 95 % of both nulls, and whether that is outside."""
    table = tested.table()
    pairs = zip(tested.predicted.tolist(), tested.outcomes[:, 0].tolist(), strict=True)
    becomes = [f"{own} to {left}" if own != left else "-" for own, left in pairs]
    found: dict[str, list[Any]] = {"prediction": becomes, "margin": table["change"].tolist()}
    for name, column in (("random", "random sets"), ("sibling", "siblings")):
        if f"{name}_low" in table:
            ends = zip(table[f"{name}_low"].tolist(), table[f"{name}_high"].tolist(), strict=True)
            found[column] = [f"{low:.3g} to {high:.3g}" for low, high in ends]
    return {**found, "unusual": ["yes" if own else "no" for own in tested.unusual]}


def _described(tested: Placebos) -> str:
    """What leaving out the slots changes, and what random sets and siblings do."""
    summary = tested.summary()
    nulls = f"{counted(tested.random, 'random set')} and {counted(len(tested.siblings), 'sibling')}"
    said = [
        f"Without {tested.removed:,} of {tested.total:,} {tested.unit}, {summary['flips']:,} of "
        f"{counted(len(tested), 'prediction')} changed; the margin changed by an unusual amount in "
        f"{summary['unusual']:,}, outside 95 % of {nulls}."
    ]
    for name in ("corrected", "broken"):
        if (own := summary.get(name)) is not None:
            there = [null for null in ("random", "siblings") if own[null]]
            ranges = [f"{null} {own[null]['least']:,} to {own[null]['most']:,}" for null in there]
            word = "unusual" if own["unusual"] else "as random"
            said.append(f"{name.capitalize()}: {own['ablation']:,} of {own['of']:,} ({', '.join(ranges)}; {word}).")
    if tested.without_siblings:
        said.append(f"There are no siblings: {tested.without_siblings}.")
    return " ".join(said)


def _ranked(row: Any, rank: int) -> str | None:
    """The index and value of the output with this rank, from 1; None if there are fewer."""
    if len(row) < rank:
        return None
    place = int(np.argsort(-row, kind="stable")[rank - 1])
    return f"{place}: {row[place]:.6g}"


def _shown(width: int) -> range:
    return range(min(width, SHOWN_OUTPUTS))


def _first(width: int) -> str:
    return "" if width <= SHOWN_OUTPUTS else f"first {SHOWN_OUTPUTS} of {width:,} outputs (--json prints all)"


def _outputs(outputs: Outputs) -> dict[str, Any]:
    """The JSON of the outputs; only a softmax has a temperature and effective slots."""
    record = {"outputs": outputs.values, "space": outputs.space, "kernel": outputs.kernel, "initial": outputs.initial}
    record |= {"status": asdict(outputs.status), "unrecorded_change": outputs.unrecorded_change}
    if outputs.effective_slots is None:
        return record
    return {**record, "temperature": outputs.temperature, "effective_slots": outputs.effective_slots}


@command()
@asks_target
@asks_layers
@layer_option
@query_option
@by_option("Group by these slot columns.", required=True)
@takes_filter()
@at_step_option
@allow_inexact_option
def contributions(
    memory: Answers,
    layer: str,
    queries: Queries,
    by: tuple[str, ...],
    where: str | Filter | None,
    at_step: int | None,
    allow_inexact: bool,
) -> Report:
    """Show what each group of slots added to an output.

    The rows add up to the output of the rebuilt layer: groups, initial weights,
    bias, unrecorded change, and a residual of rounding. "unexplained" is the
    network's own output less that sum.

    \b
    Example:
      dualform contributions runs/demo --query test-digits/17 --by label
    """
    answer = memory.contributions(layer, queries, by, where, at_step, allow_inexact)
    notes = [*sample_notes(answer.scan), *([] if where is None else [Note(WHAT_AN_ABLATION_MEANS)])]
    notes += status_notes(layer, answer.status)
    width = answer.sums.shape[2]
    asked = asked_queries(memory, queries, len(answer), answer.space)
    table = Table(
        layer_title(layer, f"contributions to outputs by {', '.join(by)}", _first(width)),
        ["query", "what", "count", *map(str, _shown(width))],
        ([asked[query], *row, *numbers[: len(_shown(width))].tolist()] for query, *row, numbers in _rows(answer)),
        Importance(("query", "what", "0"), first=("count",)),
    )
    parts = ("initial", "bias", "unrecorded_change", "residual", "unexplained")
    record = {
        "groups": groups_record(answer),
        "sums": answer.sums,
        **{name: getattr(answer, name) for name in parts},
        "space": answer.space,
        "status": asdict(answer.status),
        **share(answer.scan),
    }
    return Report({**record, **names_record(asked)}, [table, *notes])


def _rows(answer: Contributions) -> Iterator[tuple[Any, ...]]:
    """For each row: query, contributor, slots, float64[d_out]."""
    beside = {"initial": answer.initial, "unrecorded change": answer.unrecorded_change, "residual": answer.residual}
    for query, sums in enumerate(answer.sums):
        for key, count, own in zip(answer.groups, answer.counts.tolist(), sums, strict=True):
            yield query, ", ".join("NULL" if value is None else str(value) for value in key), count, own
        yield query, "bias", None, answer.bias
        for name, own in beside.items():
            if name == "initial" or np.any(own[query]):
                yield query, name, None, own[query]
        if answer.unexplained is not None:
            yield query, "unexplained", None, answer.unexplained[query]


@command()
@asks_target
@click.option("--out", required=True, type=FILE, metavar="FILE", help="Write this .safetensors file.")
@takes_filter("Add up only slots that match.")
@click.option(
    "--where-space",
    type=(str, str),
    multiple=True,
    metavar="SPACE SQL",
    help="Filter one slot space; repeatable.",
)
@at_step_option
@allow_inexact_option
@force_option
def weights(
    memory: Answers,
    where: str | Filter | None,
    where_space: tuple[tuple[str, str], ...],
    at_step: int | None,
    allow_inexact: bool,
    out: Path,
    force: bool,
) -> Report:
    """Write the network's weights, also from part of the training.

    The file is for load_state_dict and has the model's own parameter names.
    --where removes terms from this training's sum. It does not predict what a
    retraining without those data would give.

    \b
    Examples:
      dualform weights runs/demo --at-step 100 --out earlier.safetensors
      dualform weights runs/demo --where "step < 100" --out first.safetensors
    """
    check_output_file(out, force, "out")
    masks = one_mask(where, where_space)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "not recorded")  # printed below, also for an answer of a server
        state = memory.weights(masks, at_step, allow_inexact)
    _save(state, out)
    shapes = {name: list(array.shape) for name, array in state.arrays.items()}

    def record() -> dict[str, Any]:
        removed = cancellation(memory, masks, at_step, allow_inexact=allow_inexact)
        return {
            "out": str(out),
            "parameters": shapes,
            "status": {layer: asdict(status) for layer, status in state.statuses.items()},
            "unrecorded_change": state.unrecorded_change,
            "kept": state.kept,
            "not_recorded": list(state.not_recorded),
            "others": list(state.others),
            "ended": state.ended,
            **({} if masks is None else {**figures(removed), "note": WHAT_AN_ABLATION_MEANS}),
        }

    off = (status_notes(layer, own, state.unrecorded_change[layer]) for layer, own in state.statuses.items())
    notes: list[str] = [*chain.from_iterable(off)]
    if state.remark and not (state.ended and masks is None and at_step is None):
        notes.append(f"{state.remark[0].upper()}{state.remark[1:]}.")
    if state.others and masks is not None:
        notes.append(f"No slot explains these, so that --where leaves them as they are: {', '.join(state.others)}.")
    if masks is not None:
        notes.append(WHAT_AN_ABLATION_MEANS)
    return Report(record, [Table(f"{out}", ["parameter", "shape"], shapes.items()), *map(Note, notes)])


def _save(state: Weights, out: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        with replacing(out) as partial:
            # Clones, because the format refuses tensors that share storage, as tied weights do.
            save_file({name: tensor.detach().contiguous().clone() for name, tensor in state.items()}, partial)
    except SafetensorError as error:  # it has its own errors for a full disk or a read-only place
        raise FolderError(f"{out} cannot be written: {error}.", field="out") from None


def one_mask(where: str | Filter | None, by_space: Sequence[tuple[str, str]]) -> FilterOrFilters | None:
    """The filter from --where and --where-space. Raises BadInput if both are given, or a space twice."""
    if not by_space:
        return where
    if where is not None:
        raise BadInput(
            "--where and --where-space cannot be given together.",
            hint="Give one --where for all spaces, or a --where-space for each.",
            field="where",
        )
    masks = dict(by_space)
    if len(masks) < len(by_space):
        raise BadInput("--where-space names a space twice.", hint="Join its conditions with AND.", field="where")
    return masks


def cancellation(
    memory: Answers,
    where: FilterOrFilters | None,
    at_step: int | None,
    layer: str | None = None,
    allow_inexact: bool = False,
) -> Cancellation | None:
    """By layer, how much the removed terms cancel, or how far the ablation moves the weights.

    None without an ablation. Also None, with a note, if an older server cannot measure it under this optimizer. Ask
    only after the ablation itself was answered, which refuses everything else.
    """
    if where is None:
        return None
    try:
        return memory.cancellation(where, at_step, layer, allow_inexact)
    except Inexact as unmeasured:
        print_note(unmeasured.message)
        return None


def described(removed: Cancellation | None) -> list[str]:
    """A sentence for each kind of figure; none if nothing was measured."""
    said = list[str]()
    if removed is None:
        return said
    if removed.figures:
        moved = {layer: f"{figure:.3g}" for layer, figure in removed.items() if not isnan(figure)}
        listed = ", ".join(f"{layer} {moved.get(layer, _NOTHING)}" for layer in removed)
        meaning = "1: they all push one way; tens or hundreds: they mostly cancel each other"
        said.append(f"Cancellation of the removed terms ({meaning}): {listed}.")
    if removed.concentrations:
        listed = ", ".join(
            f"{layer} {_NOTHING if isnan(one.share) else f'{one.share:.0%}, {one.greatest:.2g}'}"
            for layer, one in removed.concentrations.items()
        )
        meaning = (
            "share of the squared change in 1 % of the entries; furthest move of an entry, in "
            "multiples of the distance that training moved the layer's weights"
        )
        said.append(f"Concentration of the change ({meaning}): {listed}.")
    if removed.scan.sample:
        said.append(f"These figures are computed from {removed.scan.sample}.")
    return [" ".join(said)]


def figures(removed: Cancellation | None) -> dict[str, Any]:
    """The figures for JSON; null if nothing was measured."""
    return {"cancellation": None, "concentration": {}, "unmoved": []} if removed is None else removed.record()

"""Commands that inspect a memory or a training: info, verify, check, sql and estimate."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from dualform.answers import LayerInfo, Reconstruction
from dualform.answers.table import counted
from dualform.errors import BadInput, Damaged, DualformError
from dualform.methods import Answers
from dualform_client.cli.help import FAILED, command, complete_folder
from dualform_client.cli.options import COUNT, FOLDER, asks_target, check_run, named_function
from dualform_client.cli.printing import Importance, Note, Report, Table, progress_bar, titled


@command()
@asks_target
@click.option("--verbose", is_flag=True, help="Show also errors, rounding, snapshot and backend.")
def info(memory: Answers, verbose: bool) -> Report:
    """Show layers, slots, datasets, query sets and statuses.

    \b
    Example:
      dualform info runs/demo
    """
    contents = memory.info()
    layers = [{**asdict(layer), "exact": layer.exact, "reason": layer.reason} for layer in contents.layers]
    steps = f"{counted(contents.steps, 'step')} of {contents.optimizer}"
    slots = [counted(count, f"{space} slot") for space, count in contents.slots.items()]
    inner = (f"snapshot {contents.snapshot:,}", contents.answered_by) if verbose else ()
    lines = (*inner, contents.cut_off, contents.sampling)
    every = tuple(layer.name for layer in contents.layers)
    query_sets = [
        [own.name, own.rows, "all" if own.layers == every else ", ".join(own.layers), own.previews or "-"]
        for own in contents.query_sets
    ]
    columns = (
        Table(f"Columns of {space} slots", ["column", "type"], own.items()) for space, own in contents.columns.items()
    )
    return Report(
        {**asdict(contents), "layers": layers},
        [
            titled(steps, *slots, "not finished" if contents.recording else "finished"),
            *filter(None, lines),
            _layers(contents.layers, verbose),
            *_filled("Datasets", ["dataset", "slots"], contents.datasets.items()),
            *columns,
            *_filled("Query sets", ["query set", "rows", "layers", "previews"], query_sets),
            *_filled(
                "Previews", ["dataset", "previews"], [[name or "-", own] for name, own in contents.previews.items()]
            ),
            *_filled("Not recorded", ["layer", "reason"], contents.skipped.items()),
        ],
    )


def _filled(title: str, columns: Sequence[str], rows: Collection[Sequence[Any]]) -> list[Table]:
    """The table, if it has rows."""
    return [Table(title, columns, rows)] if rows else []


def _layers(layers: Sequence[LayerInfo], verbose: bool) -> Table:
    columns = {
        "layer": [_name_and_views(layer) for layer in layers],
        "d_in": [layer.d_in for layer in layers],
        "d_out": [layer.d_out for layer in layers],
        "bias": [_yes(layer.bias) for layer in layers],
        "space": [layer.space for layer in layers],
        "slots": [layer.slots for layer in layers],
        "distinct keys": [layer.distinct_keys for layer in layers],
        "values": [_yes(layer.values) for layer in layers],
        "status": [str(layer.status) for layer in layers],
    }
    if any(layer.reason for layer in layers):
        columns["reason"] = [layer.reason for layer in layers]
    inner = {"reconstruction error": [layer.status.error for layer in layers]}
    inner["rounding"] = [layer.status.rounding for layer in layers]
    columns |= inner if verbose else {}
    importance = Importance(
        ("layer", "status", *inner),
        last=("reason", "slots", "d_in", "d_out", "values", "space", "distinct keys"),
        first=("bias",),
    )
    return Table("Layers", [*columns], zip(*columns.values(), strict=True), importance)


def _name_and_views(layer: LayerInfo) -> str:
    """A layer's name, and its first and last view."""
    if not layer.views:
        return layer.name
    first, *_, last = layer.views
    return f"{layer.name} ({first} … {last})"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


@command()
@asks_target
def verify(memory: Answers) -> Report:
    """Measure the reconstruction error of every layer.

    It is the distance between the weights rebuilt from the memory and the
    trained ones, relative to how far training moved them.

    \b
    Example:
      dualform verify runs/demo
    """
    found = memory.verify()
    columns = ["layer", "reconstruction error", "status", *["reason"] * any(one.reason for one in found.values())]
    rows = [
        [layer, one.reconstruction_error, str(one.status), one.reason][: len(columns)] for layer, one in found.items()
    ]
    title = "Reconstruction errors · ||W_T - rebuilt|| / ||W_T - W_0||, bias included"
    moved = "of the distance is in biases whose gradient was rounding alone. No slot contributed to it"
    notes = (Note(f"{layer}: {one.rounding_share:.1%} {moved}.") for layer, one in found.items() if one.rounding_share)
    record = {layer: _reconstruction(one) for layer, one in found.items()}
    return Report(record, [Table(title, columns, rows, Importance(columns[:3], last=columns[3:])), *notes])


def _reconstruction(one: Reconstruction) -> dict[str, Any]:
    return {
        "reconstruction_error": one.reconstruction_error,
        "status": one.status.name,
        "reason": one.reason or None,
        "exact": one.exact,
        "since": one.status.since,
        "rounding": one.status.rounding,
        "rounding_share": one.rounding_share,
    }


@command()
@click.argument("run", shell_complete=complete_folder)
@click.option("--repair", is_flag=True, help="Write the undamaged part to the folder of --out.")
@click.option("--out", metavar="COPY", help="Create this folder, with --repair.")
def check(run: str, repair: bool, out: str | None) -> Report:
    """Check every checksum and row count of a memory.

    The exit code is 1 if anything is wrong and was not repaired. Derived files
    are checked or removed; they are made again when needed.

    --repair writes COPY as of the last commit before the damage, without the
    final weights. RUN stays as it is; the two may share files.

    \b
    Examples:
      dualform check runs/demo
      dualform check --repair runs/demo --out runs/repaired
    """
    if repair != (out is not None):
        raise BadInput("--repair and --out belong together.", hint="Give both: --repair --out COPY.")
    check_run(run)
    from dualform.store.maintenance.check import check_memory, how_it_ended

    with progress_bar("checking") as progress:
        problems = check_memory(run, progress)
    cut_off = how_it_ended(run)
    repaired, steps = _repaired(run, out) if problems and out is not None else (None, 0)
    problems += _of_derived_files(run)
    lines = [*([cut_off] if cut_off else ()), *problems]
    lines += [counted(len(problems), "problem") if problems else "no problems", *(repaired or ())]
    if out is not None:
        kept = f"{out} has the undamaged part, up to step {steps - 1:,}, and passed every check"
        lines.append(kept if problems else "nothing to repair: no copy was made")
    record: dict[str, Any] = {"problems": problems, "cut_off": cut_off}
    if repaired is not None:
        record |= {"repaired": out, "dropped": repaired, "steps": steps}
    return Report(record, lines, FAILED if problems and repaired is None else 0)


def _of_derived_files(run: str) -> list[str]:
    from dualform.query.search.codes import check_derived
    from dualform.store.files.segment import SegmentCache
    from dualform.store.reading.runs import opened

    try:
        return check_derived(opened(run, SegmentCache(most_bytes=0)))
    except Damaged:  # reported already
        return []


def _repaired(run: str, out: str) -> tuple[list[str], int]:
    """The parts that were dropped, and the number of steps that are left."""
    from dualform.store.maintenance.copying import repair

    with progress_bar("copying") as progress:
        dropped, copy = repair(run, out, progress)
    return dropped, copy.steps


@command()
@asks_target
@click.argument("statement")
def sql(memory: Answers, statement: str) -> Report:
    """Run one read-only SELECT over slots, steps and logs.

    \b
    Example:
      dualform sql runs/demo "SELECT dataset, count(*) FROM slots GROUP BY ALL"
    """
    columns = memory.sql(statement)
    records = columns.records()
    table = Table(counted(columns.rows, "row"), columns.keys(), [list(record.values()) for record in records])
    return Report({"columns": columns.keys(), "rows": records}, [table])


@command()
@click.argument("training", metavar="MODULE:FUNCTION")
@click.option("--steps", type=COUNT, required=True, metavar="N", help="Predict for a training of N steps.")
@click.option(
    "--samples", type=COUNT, metavar="N", show_default="all", help="Expect N distinct inputs over all epochs."
)
@click.option(
    "--layers",
    "layers",
    multiple=True,
    metavar="PATTERN",
    show_default="the training's own",
    help="Record these layers; repeatable.",
)
@click.option(
    "--trial-steps",
    "tried",
    type=COUNT,
    metavar="N",
    default=20,
    show_default=True,
    help="Record N steps to estimate from.",
)
@click.option("--folder", type=FOLDER, show_default="a temporary one", help="Record them here; they are removed.")
@click.option("--budget", metavar="BYTES", help="Show what a budget such as '20 GB' keeps.")
def estimate(
    training: str,
    steps: int,
    samples: int | None,
    layers: tuple[str, ...],
    tried: int,
    folder: Path | None,
    budget: str | None,
) -> Report:
    """Predict what recording a training takes.

    It runs the first steps and reports bytes on disk, bytes a second, and
    seconds of questions and of a rerun. FUNCTION trains the network; it takes
    one argument, which it calls in place of dualform.Recorder. Write
    FILE.py:FUNCTION to name a file.

    \b
    Example:
      dualform estimate my_training:train --steps 50000 --samples 60000
    """
    from dualform.costs.estimate import estimate as estimated

    function = named_function(training, "training")
    try:
        with redirect_stdout(sys.stderr):
            found = estimated(
                function, steps, samples=samples, layers=layers or None, tried=tried, folder=folder, budget=budget
            )
    except DualformError:
        raise
    except Exception as error:
        raise BadInput(
            f"{training} raised {type(error).__name__}: {error}",
            hint="Set DUALFORM_TRACEBACK=1 to see where.",
            field="training",
        ) from error
    return Report(found.to_json(), [str(found)])

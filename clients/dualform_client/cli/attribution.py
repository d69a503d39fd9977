"""What samples did to a prediction: adjoint and retrain. Both run the training again, with code that the user names."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from dualform.errors import BadInput, DualformError
from dualform_client.cli.help import command, complete_folder
from dualform_client.cli.options import COUNT, by_option, check_run, named_function
from dualform_client.cli.printing import Note, Report, Table, progress_bars

if TYPE_CHECKING:
    from dualform.answers import Adjoint

_NEEDED = ("model", "queries", "loss", "batches")
_program = click.option(
    "--program",
    required=True,
    metavar="MODULE:FUNCTION",
    help="Call this for model, queries, loss, batches and train_loss.",
)
_checkpoint = click.option("--checkpoint", metavar="FILE", help="Save progress to FILE, to go on from there.")
_name = click.option("--name", metavar="NAME", help="Keep the result in RUN, for SQL.")


@command()
@click.argument("run", shell_complete=complete_folder)
@_program
@click.option("-k", "k", default=10, show_default=True, type=COUNT, metavar="N", help="List N samples per query.")
@by_option("Sum over samples of equal values of these columns.")
@_name
@_checkpoint
@click.option("--estimate", is_flag=True, help="Only tell how long it will take.")
def adjoint(
    run: str,
    program: str,
    k: int,
    by: tuple[str, ...] | None,
    name: str | None,
    checkpoint: str | None,
    estimate: bool,
) -> Report:
    """Predict what leaving out each training sample does to a loss.

    Runs the recorded training again and carries the loss of each query back
    through it. FUNCTION returns a dictionary of the arguments of
    dualform.adjoint. Negative values are of samples that did harm. It is a
    derivative: dualform retrain tells how far to trust it.

    \b
    Example:
      dualform adjoint runs/noisy --program study:attribution --name wrong
    """
    check_run(run)
    given = _called(program)
    if estimate:
        from dualform.influence.cost import estimate_adjoint

        cost = estimate_adjoint(run, **given)
        return Report(vars(cost), [str(cost)])
    from dualform.influence.adjoint import adjoint as asked

    with progress_bars() as progress:
        found = asked(run, **given, name=name, checkpoint=checkpoint, progress=progress)
    rows = _sums(found, by) if by else _best(found, k)
    listed = [{"query": query, "loss": loss} for query, loss in enumerate(found.losses.tolist())]
    note = Note("The value is the predicted change of the query's loss if training had left the samples out.")
    return Report(
        {"queries": listed, "sums" if by else "samples": rows, "drift": found.drift, "name": name},
        [Table(found.title(), list(rows[0]), [list(row.values()) for row in rows]), note],
    )


def _best(found: Adjoint, k: int) -> list[dict[str, Any]]:
    columns = {name: own.tolist() for name, own in found.columns.items()}
    return [
        {"query": query, **{name: own[place] for name, own in columns.items()}, "value": float(values[place])}
        for query, values in enumerate(found.values)
        for place in (-abs(values)).argsort(kind="stable")[:k].tolist()
    ]


def _sums(found: Adjoint, by: tuple[str, ...]) -> list[dict[str, Any]]:
    sums = found.sums(by)
    return [
        {"query": query, **dict(zip(by, key, strict=True)), "samples": count, "value": value}
        for query, own in enumerate(sums.sums.tolist())
        for key, count, value in zip(sums.groups, sums.counts.tolist(), own, strict=True)
    ]


@command()
@click.argument("run", shell_complete=complete_folder)
@_program
@click.option("--without", multiple=True, metavar="SQL", help="Leave out samples for which this is true; repeatable.")
@click.option("--random", "count", default=25, show_default=True, type=COUNT, metavar="N", help="Else N random sets.")
@click.option(
    "--share", default=0.01, show_default=True, type=float, metavar="X", help="Of the samples, in a random set."
)
@click.option("--seed", default=0, show_default=True, type=int, metavar="N", help="Draw random sets with this seed.")
@_name
@_checkpoint
def retrain(
    run: str,
    program: str,
    without: tuple[str, ...],
    count: int,
    share: float,
    seed: int,
    name: str | None,
    checkpoint: str | None,
) -> Report:
    """Train again without sets of samples, to judge the adjoint.

    Everything but the weight of the samples is as recorded: first weights,
    batches, optimizer. FUNCTION is that of dualform adjoint.

    \b
    Examples:
      dualform retrain runs/noisy --program study:attribution
      dualform retrain runs/noisy --program study:attribution \\
        --without "label = 3" --without "sample IN (17, 250)"
    """
    check_run(run)
    given = _called(program)
    from dualform.influence.adjoint import adjoint as predicted, retrain as asked

    sets: dict[str, Any] = {"without": without or None, "random": count, "share": share, "seed": seed}
    with progress_bars() as progress:
        answer = predicted(run, **given, progress=progress)
        found = asked(run, **given, **sets, name=name, checkpoint=checkpoint, progress=progress)
    rows = [
        {**row, "predicted": float(answer.without(found.sets[row["set"]])[row["query"]])}
        for row in found.table().records()
    ]
    agreement = answer.agreement(found) if len(found) >= 10 else None
    said, notes = (None, []) if agreement is None else (vars(agreement), [Note(agreement)])
    return Report(
        {"retrainings": rows, "complete": found.complete, "agreement": said, "name": name},
        [Table(found.title(), list(rows[0]), [list(row.values()) for row in rows]), *notes],
    )


def _called(program: str) -> Mapping[str, Any]:
    """The arguments that a program's function returns. Raises BadInput as `named_function`, and for other answers."""
    try:
        with redirect_stdout(sys.stderr):
            given = named_function(program, "program")()
    except DualformError:
        raise
    except Exception as error:
        raise BadInput(
            f"{program} failed: {type(error).__name__}: {error}",
            hint="It is called without arguments.",
            field="program",
        ) from error
    if not isinstance(given, Mapping) or (missing := [name for name in _NEEDED if name not in given]):
        lacks = "" if not isinstance(given, Mapping) else f" without {', '.join(missing)}"
        raise BadInput(
            f"{program} returned {type(given).__name__}{lacks}.",
            hint=f"Return a dictionary with {', '.join(_NEEDED)} and, if it is another one, train_loss.",
            field="program",
        )
    if beyond := [name for name in given if name not in (*_NEEDED, "train_loss")]:
        raise BadInput(
            f"{program} returned {beyond[0]!r}, too.",
            hint=f"Its dictionary has {', '.join(_NEEDED)} and train_loss. Say the rest by options.",
            field="program",
        )
    return dict(given)

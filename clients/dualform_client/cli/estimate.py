"""dualform estimate: what recording a training will take."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path

import click

from dualform.errors import BadInput, DualformError
from dualform_client.cli.named_function import named_function
from dualform_client.cli.options import json_option
from dualform_client.cli.printing import print_json, print_line


@click.command()
@click.argument("training", metavar="MODULE:FUNCTION")
@click.option("--steps", type=int, required=True, help="Steps of the whole training.")
@click.option(
    "--samples",
    type=int,
    help="Distinct inputs of the training, over all epochs: of those that come again bit for bit, not augmented. "
    "Default: each input is taken for another.",
)
@click.option(
    "--layers",
    "layers",
    multiple=True,
    metavar="PATTERN",
    help="Layers to record, by name or pattern; repeatable. Default: the training's own.",
)
@click.option("--tried", type=int, default=20, show_default=True, help="Steps that are recorded to tell.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Where they are written, and removed again. Default: a temporary folder.",
)
@click.option(
    "--budget",
    metavar="BYTES",
    help='Bytes that the memory may take, as "20 GB": what it would keep. Default: no budget.',
)
@json_option
def estimate(
    training: str,
    steps: int,
    samples: int | None,
    layers: tuple[str, ...],
    tried: int,
    folder: Path | None,
    budget: str | None,
    as_json: bool,
) -> None:
    """Tell what recording a training takes, from its first steps.

    That is bytes on disk, bytes a second, and seconds of questions and of a rerun.

    FUNCTION trains; it takes one argument, which it calls in place of dualform.Recorder, and is stopped after some
    steps. MODULE is found as `python -m` finds it; FILE.py:FUNCTION names a file.

    \b
    Example:
      dualform estimate my_training:train --steps 50000 --samples 60000
    """
    from dualform.costs.estimate import estimate as estimated

    function = named_function(training, "training")
    try:
        with redirect_stdout(sys.stderr):
            found = estimated(
                function,
                steps,
                samples=samples,
                layers=layers or None,
                tried=tried,
                folder=folder,
                budget=budget,
            )
    except DualformError:
        raise
    except Exception as error:
        raise BadInput(
            f"{training} raised {type(error).__name__}: {error}",
            hint="Set DUALFORM_TRACEBACK=1 to see where.",
            field="training",
        ) from error
    if as_json:
        print_json(found.to_json())
    else:
        print_line(str(found))

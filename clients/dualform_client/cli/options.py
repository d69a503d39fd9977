"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from dualform.errors import BadInput
from dualform.questions import Queries, Vectors, as_queries
from dualform.questions.arguments import KERNELS
from dualform_client.cli.suggestions import complete_by, complete_layer, complete_query


def _as_queries(_context: click.Context, _option: click.Parameter, value: str) -> Queries:
    return read_queries(Path(value)) if value.endswith(".npy") else as_queries(value)


def _as_names(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise BadInput(f"--by {value!r} holds an empty name.", hint="Write COL or COL,COL.", field="by")
    return names


def read_queries(file: Path) -> Vectors:
    """float32[n, d] from an .npy file of numbers. Raises BadInput where it is none."""
    try:
        with file.open("rb") as stream:
            # Arrays of objects are refused: reading them would run code from the file.
            array = np.load(stream, allow_pickle=False)
    except OSError as error:
        raise BadInput(f"The query file {file} cannot be read: {error.strerror}.", field="queries") from None
    except (ValueError, EOFError) as error:
        raise BadInput(f"The query file {file} is no .npy file of numbers: {error}", field="queries") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        kind = array.dtype if isinstance(array, np.ndarray) else "several arrays"
        raise BadInput(f"The query file {file} holds {kind}, not real numbers.", field="queries")
    with np.errstate(over="ignore"):
        return Vectors(array)


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
layer_option = click.option(
    "--layer",
    required=True,
    metavar="NAME[,NAME]",
    shell_complete=complete_layer,
    help="Layer, as the model names its module. Several, or a pattern ('h.*.attn.*'), are asked one after the other.",
)
query_option = click.option(
    "--query",
    "queries",
    required=True,
    callback=_as_queries,
    metavar="SET/EXAMPLE[:TOKEN]|FILE.npy",
    shell_complete=complete_query,
    help="Stored queries (QUERY_SET/17, QUERY_SET/3,17, QUERY_SET/10:20 for rows 10 to 19, QUERY_SET for all), or "
    "float32[n, d] in an .npy file.",
)
where_option = click.option("--where", metavar="SQL", help="Only slots for which this is true. Default: all slots.")
at_step_option = click.option(
    "--at-step", type=int, metavar="N", help="As of N recorded steps; 0 is the initial network. Default: the end."
)
allow_inexact_option = click.option(
    "--allow-inexact", is_flag=True, help="Answer from a record that is not exact, however far off it is."
)
where_space_option = click.option(
    "--where-space",
    type=(str, str),
    multiple=True,
    metavar="SPACE SQL",
    help="A mask for one slot space; repeatable. Default: spaces that are not named stay whole.",
)
abs_option = click.option("--abs", "absolute", is_flag=True, help="Absolute values: short for --score abs.")
score_option = click.option(
    "--score",
    metavar="NAME",
    help="The score that ranks and is summed: dot, abs or cosine; or gradient, of a query set taken "
    "with a loss, over all layers named. Default: dot.",
)
kernel_option = click.option(
    "--kernel",
    default="linear",
    show_default=True,
    metavar="|".join(KERNELS),
    help="What weighs the slots: their scores, or the softmax of these.",
)
temperature_option = click.option(
    "--temperature", type=float, metavar="T", help="What scores are divided by before the softmax, above 0. Default: 1."
)
no_initial_option = click.option(
    "--no-initial", is_flag=True, help="Leave out the initial weights, and the bias with all that training made of it."
)


def one_score(absolute: bool, score: str | None) -> str:
    """What --abs and --score say together. Raises BadInput for both."""
    if not absolute:
        return score or "dot"
    if score is not None:
        raise BadInput("--abs and --score are given together.", hint="--abs is short for --score abs.", field="score")
    return "abs"


def by_option(says: str, required: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--by COL[,COL], given to the command as a tuple of names, or None."""
    return click.option(
        "--by", required=required, callback=_as_names, metavar="COL[,COL]", help=says, shell_complete=complete_by
    )

"""dualform contributions: what each group of slots brought to a layer's outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click
import numpy as np

from dualform.answers import Contributions
from dualform.answers.cancellation import WHAT_A_MASK_MEANS
from dualform.methods import Answers
from dualform.questions import Queries
from dualform_client.cli.asked_queries import asked_queries, names_record
from dualform_client.cli.importance import Importance
from dualform_client.cli.layers import LayerAnswer, asks_layers
from dualform_client.cli.mask_notes import describe_status
from dualform_client.cli.options import (
    allow_inexact_option,
    at_step_option,
    by_option,
    json_option,
    layer_option,
    query_option,
    where_option,
)
from dualform_client.cli.output import SHOWN_OUTPUTS
from dualform_client.cli.share import sample_notes, share
from dualform_client.cli.target import asks_target

_IMPORTANCE = Importance(("query", "what", "0"), first=("count",))


@click.command()
@asks_target
@asks_layers
@layer_option
@query_option
@by_option("Group by these slot columns.", required=True)
@where_option
@at_step_option
@allow_inexact_option
@json_option
def contributions(
    memory: Answers,
    layer: str,
    queries: Queries,
    by: tuple[str, ...],
    where: str | None,
    at_step: int | None,
    allow_inexact: bool,
) -> LayerAnswer:
    """Take an output apart: what each group brought to it.

    The initial weights, the bias and what stands outside the record make up the rest, to the last digits, which are
    the residual. What is unexplained comes on top: the network's own output, less what the record makes of it.

    \b
    Example:
      dualform contributions runs/demo --layer layer-2 --query test-digits/17 --by dataset
    """
    answer = memory.contributions(layer, queries, by, where, at_step, allow_inexact)
    notes = [*sample_notes(answer.scan), *([] if where is None else [WHAT_A_MASK_MEANS])]
    if not answer.status.exact:
        notes.append(f"{layer}: {describe_status(answer.status, 0.0)}")
    width = answer.sums.shape[2]
    shown = min(width, SHOWN_OUTPUTS)
    more = "" if shown == width else f", the first {shown} of {width} (--json gives all)"
    columns = ["query", "what", "count", *map(str, range(shown))]
    asked = asked_queries(memory, queries, len(answer), answer.space)
    rows = ([asked[query], *row, *numbers[:shown].tolist()] for query, *row, numbers in _rows(answer))
    title = f"{layer}: contributions to outputs by {', '.join(by)}{more}"
    return LayerAnswer({**_record(answer), **names_record(asked)}, title, columns, rows, _IMPORTANCE, notes)


def _rows(answer: Contributions) -> Iterator[tuple[Any, ...]]:
    """Query, what contributes, slots, float64[d_out]."""
    beside = {"initial": answer.initial, "unrecorded_change": answer.unrecorded_change, "residual": answer.residual}
    for query, sums in enumerate(answer.sums):
        for key, count, own in zip(answer.groups, answer.counts.tolist(), sums, strict=True):
            yield query, ", ".join("NULL" if value is None else str(value) for value in key), count, own
        yield query, "bias", None, answer.bias
        for name, own in beside.items():
            if name == "initial" or np.any(own[query]):
                yield query, name, None, own[query]
        if answer.unexplained is not None:
            yield query, "unexplained", None, answer.unexplained[query]


def _record(answer: Contributions) -> dict[str, Any]:
    groups = [
        {**dict(zip(answer.by, key, strict=True)), "count": count}
        for key, count in zip(answer.groups, answer.counts.tolist(), strict=True)
    ]
    beside = {
        "initial": answer.initial,
        "bias": answer.bias,
        "unrecorded_change": answer.unrecorded_change,
        "residual": answer.residual,
    }
    return {
        "groups": groups,
        "sums": answer.sums,
        **beside,
        "unexplained": answer.unexplained,
        "space": answer.space,
        "status": asdict(answer.status),
        **share(answer.scan),
    }

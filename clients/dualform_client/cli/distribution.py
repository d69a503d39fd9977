"""dualform distribution: how a query's scores are spread over all training datapoints."""

from __future__ import annotations

from typing import Any

import click

from dualform.answers import Distributions
from dualform.methods import Answers
from dualform.questions import Queries
from dualform_client.cli.asked_queries import asked_queries, names_record
from dualform_client.cli.importance import Importance
from dualform_client.cli.layers import LayerAnswer, asks_layers
from dualform_client.cli.options import json_option, layer_option, query_option, where_option
from dualform_client.cli.scores import Score, takes_score
from dualform_client.cli.share import sample_notes, share
from dualform_client.cli.target import asks_target

_POINTS = 24
"""Ranks of a table that fits a screen."""
_SHOWN = 8
"""Queries whose effective slots a title has."""


@click.command()
@asks_target
@asks_layers
@takes_score
@layer_option
@query_option
@where_option
@click.option(
    "--points",
    default=_POINTS,
    show_default=True,
    type=int,
    metavar="N",
    help="At no more than N ranks, 11 or more: the first ten, the last, and others evenly on a logarithmic axis.",
)
@json_option
def distribution(
    memory: Answers, layer: str, queries: Queries, where: str | None, points: int, score: Score
) -> LayerAnswer:
    """Show how a query's scores are spread over all slots.

    At each rank, the score there, and the absolute scores of all ranks up to it: their sum and its share of the whole.
    The effective slots are how many, weighed alike, would be as concentrated.

    \b
    Example:
      dualform distribution runs/demo --layer layer-0 --query test-digits/17 --where "label <> 3"
    """
    answer = memory.distribution(layer, queries, where, points=points, **score.asked)
    took = f"{answer.count} of {answer.scan.slots_scanned} {answer.space} slots, {answer.scan.seconds:.3g} s"
    asked = asked_queries(memory, queries, len(answer), score.space_of_queries(answer.space))
    columns = {name: column.tolist() for name, column in answer.table().arrays.items()}
    columns["query"] = [asked[query] for query in columns["query"]]
    return LayerAnswer(
        {
            "ranks": answer.ranks,
            "count": answer.count,
            "distributions": [_record(own) for own in answer],
            **names_record(asked),
            **score.record(answer.status),
            "space": answer.space,
            **share(answer.scan),
        },
        f"{score.title(layer)}, {took}; effective slots {_effective(answer)}",
        list(columns),
        zip(*columns.values(), strict=True),
        Importance(("query", "rank", "score"), last=("share", "cumulative")),
        [*sample_notes(answer.scan), *score.notes(layer, answer.status)],
    )


def _record(own: Distributions) -> dict[str, Any]:
    """Of the only query of an answer."""
    return {
        "scores": own.scores[0],
        "cumulative": own.cumulative[0],
        "total": own.totals[0],
        "effective_slots": own.effective_slots[0],
    }


def _effective(answer: Distributions) -> str:
    said = ", ".join(f"{number:.6g}" for number in answer.effective_slots[:_SHOWN].tolist())
    return said if len(answer) <= _SHOWN else f"{said}, … (--json gives all)"

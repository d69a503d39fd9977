"""dualform group-sum: attention, or contributions, by groups of slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from dualform.answers import GroupSums
from dualform.methods import Answers
from dualform.questions import Queries
from dualform_client.cli.asked_queries import AskedQuery, asked_queries, names_record
from dualform_client.cli.importance import Importance
from dualform_client.cli.layers import LayerAnswer, asks_layers
from dualform_client.cli.options import by_option, json_option, layer_option, query_option, where_option
from dualform_client.cli.scores import Score, takes_score
from dualform_client.cli.share import sample_notes, share
from dualform_client.cli.target import asks_target


@click.command("group-sum")
@asks_target
@asks_layers
@takes_score
@layer_option
@query_option
@by_option("Group by these slot columns.", required=True)
@where_option
@click.option("--top", type=int, metavar="K", help="Only the K groups of the largest sums. Default: all groups.")
@json_option
def group_sum(
    memory: Answers,
    layer: str | Sequence[str],
    queries: Queries,
    by: tuple[str, ...],
    where: str | None,
    top: int | None,
    score: Score,
) -> LayerAnswer:
    """Add up attention by label, dataset or another column.

    With --target, what the slots brought to an output of the layer. With --score gradient, dot products of gradients
    with those of a query set that was taken with a loss, over all layers that --layer names.

    \b
    Example:
      dualform group-sum runs/demo --layer layer-0 --query test-digits/17 --by dataset,label
      dualform group-sum runs/demo --layer layer-2 --query test-digits/17 --by sample --target 3 --top 10
    """
    answer = memory.group_sum(layer, queries, by, where, k=top, **score.asked)
    asked = asked_queries(memory, queries, len(answer), score.space_of_queries(answer.space))
    title = f"{score.title(layer)} by {', '.join(by)}{f', of {asked[0]}' if len(asked) == 1 else ''}"
    beside = {**names_record(asked), **score.record(answer.status), "space": answer.space, **share(answer.scan)}
    notes = [*sample_notes(answer.scan), *score.notes(layer, answer.status)]
    if answer.numbers is None:
        return LayerAnswer(
            {**_every(answer), **beside},
            title,
            *_table(answer, asked),
            Importance((*by, *map(str, asked), "sum")),
            notes,
        )
    title += f", the {answer.numbers.shape[1]} largest of {answer.total}"
    found = list(_largest(answer))
    columns = ["query", *by, "count", "sum"]
    rows = ([asked[one["query"]], *one["group"].values(), one["count"], one["sum"]] for one in found)
    return LayerAnswer(
        {"largest": found, "total": answer.total, **beside},
        title,
        columns,
        rows,
        Importance(("query", *by, "sum")),
        notes,
    )


def _every(answer: GroupSums) -> dict[str, Any]:
    """As JSON has the sums of all groups."""
    groups = [
        {**dict(zip(answer.by, key, strict=True)), "count": count}
        for key, count in zip(answer.groups, answer.counts.tolist(), strict=True)
    ]
    return {"groups": groups, "sums": answer.sums}


def _table(answer: GroupSums, asked: list[AskedQuery]) -> tuple[list[str], Iterator[list[Any]]]:
    """Columns and rows: a row a group."""
    per_query = [str(query) for query in asked] if len(asked) > 1 else ["sum"]
    rows = (
        [*key, count, *answer.sums[:, g].tolist()]
        for g, (key, count) in enumerate(zip(answer.groups, answer.counts.tolist(), strict=True))
    )
    return [*answer.by, "count", *per_query], rows


def _largest(answer: GroupSums) -> Iterator[dict[str, Any]]:
    """A record a query and group."""
    for query in range(len(answer.sums)):
        for key, own, count in answer.ranked(query):
            yield {"query": query, "group": dict(zip(answer.by, key, strict=True)), "count": count, "sum": own}

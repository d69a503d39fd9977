"""dualform sums: attention by groups of slots."""

from __future__ import annotations

import click

from dualform.methods import Answers
from dualform.questions import Queries
from dualform_client.cli.layers import LayerAnswer, asks_layers
from dualform_client.cli.options import (
    abs_option,
    by_option,
    json_option,
    layer_option,
    one_score,
    query_option,
    score_option,
    where_option,
)
from dualform_client.cli.share import sample_notes, share
from dualform_client.cli.target import asks_target


@click.command()
@asks_target
@asks_layers
@layer_option
@query_option
@by_option("Group by these slot columns.", required=True)
@where_option
@abs_option
@score_option
@json_option
def sums(
    memory: Answers,
    layer: str,
    queries: Queries,
    by: tuple[str, ...],
    where: str | None,
    absolute: bool,
    score: str | None,
) -> LayerAnswer:
    """Add up attention by label, dataset, position or another column.

    \b
    Example:
      dualform sums runs/demo --layer layer-0 --query test-digits/17 --by dataset,label
    """
    named = one_score(absolute, score)
    answer = memory.group_sum(layer, queries, by, where, named)
    counts = answer.counts.tolist()
    groups = [
        {**dict(zip(answer.by, key, strict=True)), "count": count}
        for key, count in zip(answer.groups, counts, strict=True)
    ]
    per_query = [f"query {query}" for query in range(len(answer.sums))] if len(answer.sums) > 1 else ["sum"]
    rows = (
        [*key, count, *answer.sums[:, g].tolist()]
        for g, (key, count) in enumerate(zip(answer.groups, counts, strict=True))
    )
    record = {"groups": groups, "sums": answer.sums, "score": named, "space": answer.space, **share(answer.scan)}
    title, columns = f"{layer}: {named} scores by {', '.join(by)}", [*by, "count", *per_query]
    return LayerAnswer(record, title, columns, rows, sample_notes(answer.scan))

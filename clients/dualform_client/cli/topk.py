"""dualform topk: the training datapoints that a query attends to most, or that brought most to an output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
import numpy as np

from dualform.answers import Columns, Hits
from dualform.methods import Answers
from dualform.questions import Queries
from dualform_client.cli.asked_queries import asked_queries, names_record
from dualform_client.cli.importance import Importance
from dualform_client.cli.layers import LayerAnswer, asks_layers
from dualform_client.cli.options import by_option, json_option, layer_option, query_option, where_option
from dualform_client.cli.scores import Score, takes_score
from dualform_client.cli.share import sample_notes, share
from dualform_client.cli.target import asks_target


@click.command()
@asks_target
@asks_layers
@takes_score
@layer_option
@query_option
@click.option("-k", default=10, show_default=True, type=int, help="Slots for each query, or for each group of --by.")
@where_option
@by_option("Take the best -k of each group of these slot columns. Default: of all slots.")
@json_option
def topk(
    memory: Answers,
    layer: str | Sequence[str],
    queries: Queries,
    k: int,
    where: str | None,
    by: tuple[str, ...] | None,
    score: Score,
) -> LayerAnswer:
    """List the training datapoints that a query attends to most.

    With --target, those that brought most to an output of the layer. With --score gradient, those whose gradients
    agree most with those of a query set that was taken with a loss, over all layers that --layer names.

    \b
    Example:
      dualform topk runs/demo --layer layer-0 --query test-digits/17 -k 5 --where "label <> 3"
      dualform topk runs/demo --layer "layer-*" --query test-digits/10:20 -k 1
      dualform topk runs/demo --layer layer-2 --query test-digits/17 --target 3
    """
    hits = memory.topk(layer, queries, k, where, by, **score.asked)
    found = list(_hits(hits, _slots_of(memory, hits)))
    asked = asked_queries(memory, queries, len(hits), score.space_of_queries(hits.space))
    rows = [{**hit.get("group", {}), **hit, "query": asked[hit["query"]]} for hit in found]
    columns = [name for name in rows[0] if name != "group"] if rows else ["query", "slot", "score"]
    took = f"{hits.scan.slots_matching} of {hits.scan.slots_scanned} {hits.space} slots, {hits.scan.seconds:.3g} s"
    return LayerAnswer(
        {"hits": found, **names_record(asked), **score.record(hits.status), "space": hits.space, **share(hits.scan)},
        f"{score.title(layer)}, {took}",
        columns,
        ([row[name] for name in columns] for row in rows),
        Importance(
            kept=("query", *(by or ()), "slot", "score"),
            last=("label", "dataset", "sample", "step"),
            first=("call", "row", "position"),
        ),
        [*sample_notes(hits.scan), *score.notes(layer, hits.status)],
    )


def _slots_of(memory: Answers, hits: Hits) -> dict[int, dict[str, Any]]:
    """The slot columns of all hits, by slot."""
    ids = np.unique(hits.ids)
    columns = memory.slots(ids, hits.space) if len(ids) else Columns({})
    return {record["slot"]: record for record in columns.records()}


def _hits(hits: Hits, slots: dict[int, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One record per hit, best first within its query and group."""
    ids, scores = iter(hits.ids.tolist()), iter(hits.flat_scores.tolist())
    for query, counts in enumerate(hits.counts.tolist()):
        for group, count in enumerate(counts):
            for _ in range(count):
                slot = next(ids)
                hit = {"query": query, "slot": slot, "score": next(scores)}
                hit |= {name: value for name, value in slots[slot].items() if name not in hit}
                if hits.groups is not None:
                    hit["group"] = dict(zip(hits.by, hits.groups[group], strict=True))
                yield hit

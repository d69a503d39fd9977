"""dualform compare: the same queries in two memories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from dualform.methods import Answers
from dualform.questions import Queries
from dualform_client.cli.asked_queries import asked_queries, names_record
from dualform_client.cli.importance import Importance
from dualform_client.cli.layers import LayerAnswer, asks_layers
from dualform_client.cli.options import (
    abs_option,
    json_option,
    layer_option,
    one_score,
    query_option,
    score_option,
    where_option,
)
from dualform_client.cli.target import asks_two_targets
from dualform_client.comparison import Place, Sample, compare as compared, shared

_IMPORTANCE = Importance(("query", "sample", "rank in A", "rank in B"), last=("label", "score in A", "score in B"))


@click.command()
@asks_two_targets
@asks_layers
@layer_option
@query_option
@click.option("-k", default=10, show_default=True, type=int, help="Slots of each memory for each query.")
@where_option
@abs_option
@score_option
@json_option
def compare(
    memories: tuple[Answers, Answers],
    layer: str,
    queries: Queries,
    k: int,
    where: str | None,
    absolute: bool,
    score: str | None,
) -> LayerAnswer:
    """Compare what the same queries attend to in two memories.

    A and B are folders or addresses. Hits are matched by dataset and sample; a stored query is each memory's own, of
    the query set of that name.

    \b
    Example:
      dualform compare runs/one runs/other --layer layer-0 --query test-digits/17 -k 5
    """
    named = one_score(absolute, score)
    found = compared(memories, layer, queries, k, where, named)
    sampled = {name: scan for name, scan in zip("AB", found.scans, strict=True) if scan.sample}
    share = {"share": {name: scan.share for name, scan in zip("ab", found.scans, strict=True)}} if sampled else {}
    queries_told = [_record(query, own) for query, own in enumerate(found.queries)]
    asked = asked_queries(memories[0], queries, len(found.queries), found.space)
    record = {"queries": queries_told, **names_record(asked), "score": named, **share}
    rows = [[query, *_row(sample)] for query, own in zip(asked, found.queries, strict=True) for sample in own]
    alike = ", ".join(f"{shared(own)} of {len(own)}" for own in found.queries)
    notes = [f"The answer of {name} stands on {scan.sample}." for name, scan in sampled.items()]
    columns = ["query", "dataset", "sample", "label", "rank in A", "rank in B", "score in A", "score in B"]
    return LayerAnswer(
        record, f"{layer}: {named} scores; samples among the best of both: {alike}", columns, rows, _IMPORTANCE, notes
    )


def _row(sample: Sample) -> list[Any]:
    places = sample.places
    ranks = [None if place is None else place.rank for place in places]
    scores = [None if place is None else place.score for place in places]
    return [sample.dataset, sample.sample, sample.label, *ranks, *scores]


def _record(query: int, samples: Sequence[Sample]) -> dict[str, Any]:
    listed = [
        {
            "dataset": sample.dataset,
            "sample": sample.sample,
            "label": sample.label,
            "a": _place(sample.places[0]),
            "b": _place(sample.places[1]),
        }
        for sample in samples
    ]
    return {"query": query, "shared": shared(samples), "samples": listed}


def _place(place: Place | None) -> dict[str, Any] | None:
    return None if place is None else asdict(place)

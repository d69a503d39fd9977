"""The training datapoints that a query attends to most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from dualform.methods import Answers
from dualform_mcp.questions import ScoreArguments, beside, few_queries, names, query_names
from dualform_mcp.tool import Tool


class TopKArguments(ScoreArguments):
    k: int = Field(10, ge=1, le=100, description="Slots for each query, or for each group of `by`.")
    by: str | None = Field(
        None, description='Take the best k of each group of these slot columns: "label", or "dataset,label".'
    )
    distinct: str | None = Field(
        None,
        description='"sample": one hit for each sample, its best slot, with how many of its slots would be listed '
        "without distinct (repeats).",
    )


def answer(memory: Answers, asked: TopKArguments) -> Mapping[str, Any]:
    queries = few_queries(memory, asked.query)
    layer = asked.layer_of(memory)
    distinct = names(asked.distinct) or None
    hits = memory.topk(layer, queries, asked.k, asked.filter, names(asked.by) or None, distinct=distinct, **asked.asked)
    asked_by = query_names(memory, queries, len(hits))
    rows = [{**record, "query": asked_by[record["query"]]} for record in hits.joined(memory).records()]
    return {
        "layer": layer,
        "score": asked.asked["score"],
        "hits": rows,
        **beside(hits.scan, hits.space, hits.status, asked.asked["score"]),
    }


TOPK = Tool(
    "topk",
    "The training datapoints (slots) that a prediction attends to most in one layer, best first: for each its slot id, "
    "score and columns (step, dataset, label, sample and what else was recorded). Exact: every slot that the filter "
    "keeps is searched. With distinct, each sample is listed once. With target, those that added most to an output of "
    "the layer. The status says how exact the answer is: scores are exact, and contributions as exact as the layer's "
    "record was measured to be. Use group_sum for how much attention goes to whole groups.",
    TopKArguments,
    answer,
    "hits",
)

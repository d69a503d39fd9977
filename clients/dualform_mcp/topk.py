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


def answer(memory: Answers, asked: TopKArguments) -> Mapping[str, Any]:
    queries = few_queries(memory, asked.query)
    hits = memory.topk(asked.layer, queries, asked.k, asked.where, names(asked.by) or None, **asked.asked)
    asked_by = query_names(memory, queries, len(hits))
    rows = [{**record, "query": asked_by[record["query"]]} for record in hits.joined(memory).records()]
    return {
        "layer": asked.layer,
        "score": asked.asked["score"],
        "hits": rows,
        **beside(hits.scan, hits.space, hits.status, asked.asked["score"]),
    }


TOPK = Tool(
    "topk",
    "The training datapoints (slots) that a prediction attends to most in one layer, best first: for each its slot id, "
    "score and columns (step, dataset, label, sample and what else was recorded). Exact: no slot that the mask leaves "
    "is left out of the search. With target, those that brought most to an output of the layer. The status says how "
    "exact the answer is: scores are exact, and contributions as exact as the layer's record was measured to be. Use "
    "sums for how much attention goes to whole groups.",
    TopKArguments,
    answer,
    "hits",
)

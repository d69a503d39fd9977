"""How much of a query's attention goes to each group of training datapoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from dualform.methods import Answers
from dualform_mcp.questions import ScoreArguments, beside, few_queries, names, query_names
from dualform_mcp.tool import Tool


class SumsArguments(ScoreArguments):
    by: str = Field(description='Group by these slot columns: "label", "dataset,label", "step", "sample".')
    k: int = Field(
        20, ge=1, le=100, description="Groups of each query: those of the largest sums, whatever their sign."
    )


def answer(memory: Answers, asked: SumsArguments) -> Mapping[str, Any]:
    queries = few_queries(memory, asked.query)
    layer = asked.layer_of(memory)
    sums = memory.group_sum(layer, queries, names(asked.by), asked.filter, **asked.asked, k=asked.k)
    asked_by = query_names(memory, queries, len(sums))
    rows = [
        {"query": asked_by[query], "group": dict(zip(sums.by, key, strict=True)), "sum": own, "slots": count}
        for query, ranked in enumerate(sums)
        for key, own, count in ranked
    ]
    return {
        "layer": layer,
        "score": asked.asked["score"],
        "sums": rows,
        "groups_in_all": sums.total,
        **beside(sums.scan, sums.space, sums.status, asked.asked["score"]),
    }


SUMS = Tool(
    "group_sum",
    "How much attention a prediction gives to each group of training datapoints in one layer: the sum of the scores of "
    "all slots of a group, and how many slots it has, the largest sums first. Group by label, dataset, step, sample, "
    "token position or any other slot column. Ask this first, and topk for the single datapoints behind a group.",
    SumsArguments,
    answer,
    "sums",
)

"""The tool `output`: a layer's outputs, with all slots or under a filter, and whether the difference is unusual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dualform.answers import Placebos
from dualform.answers.outputs import WHAT_AN_ABLATION_MEANS, central
from dualform.errors import BadInput, Inexact, ServiceError
from dualform.methods import Answers
from dualform.questions import QuerySetExamples
from dualform.questions.filters import FilterLike
from dualform.questions.outputs import MOST_SETS, RANDOM_SETS
from dualform_mcp.bounds import MOST_NAMES
from dualform_mcp.questions import LayerArguments, beside, few_queries, query_names
from dualform_mcp.tool import Tool


class OutputArguments(LayerArguments):
    initial: bool = Field(True, description="Whether the initial weights and the bias are part of the answer.")
    outputs: list[int] | None = Field(
        None,
        min_length=1,
        max_length=100,
        description="Outputs to return, by number. Default: the `most` largest.",
    )
    most: int = Field(10, ge=1, le=100, description="How many outputs of each query to return, the largest first.")
    placebo: int = Field(
        RANDOM_SETS,
        ge=0,
        le=MOST_SETS,
        description="With a filter: how many random ablations of the same size to compare with; 0 for none. Under Adam "
        "and similar optimizers the first comparison takes as long as the training's updates.",
    )


def answer(memory: Answers, asked: OutputArguments) -> Mapping[str, Any]:
    queries, layer, kept = few_queries(memory, asked.query), asked.layer_of(memory), asked.filter
    found = memory.output(layer, queries, kept, asked.at_step, asked.allow_inexact, initial=asked.initial)
    names = query_names(memory, queries, len(found))
    rows = list[dict[str, Any]]()
    for name, own in zip(names, found, strict=True):
        chosen = np.argsort(-own, kind="stable")[: asked.most] if asked.outputs is None else _within(asked, own)
        rows += [{"query": name, "output": int(number), "value": own[number]} for number in chosen]
    record = {
        "layer": layer,
        "outputs": rows,
        "d_out": found.shape[1],
        **beside(found.scan, found.space, found.status),
        "unrecorded_change": found.unrecorded_change,
    }
    if kept is None:
        return record
    return {
        **record,
        "what_an_ablation_means": WHAT_AN_ABLATION_MEANS,
        **_cancellation(memory, asked, layer, kept),
        **_placebo(memory, asked, layer, queries, kept, names),
    }


def _cancellation(memory: Answers, asked: OutputArguments, layer: str, kept: FilterLike) -> Mapping[str, Any]:
    """How much the removed terms cancel, or why that cannot be had, as of a server of an earlier version. What else
    would be refused was refused with the output.
    """
    try:
        return memory.cancellation(kept, asked.at_step, layer, asked.allow_inexact).record()
    except Inexact as unmeasured:
        return {"cancellation": None, "cancellation_unmeasured": unmeasured.message}


def _placebo(
    memory: Answers,
    asked: OutputArguments,
    layer: str,
    queries: QuerySetExamples,
    kept: FilterLike,
    names: Sequence[str],
) -> Mapping[str, Any]:
    """By query, whether the ablation changes the margin unusually, and a summary; or why that cannot be had."""
    if asked.placebo == 0:
        return {}
    reason = ""
    if layer != memory.info().output_layer:
        reason = "placebos are measured only for the output layer."
    elif not asked.initial:
        reason = "placebos need the initial weights: pass initial=true."
    else:
        try:
            found = memory.placebo(layer, queries, kept, asked.placebo, asked.at_step, asked.allow_inexact)
        except (BadInput, Inexact, ServiceError) as refused:
            reason = refused.message
        else:
            return {
                "placebo": [{"query": name, **_verdict(own)} for name, own in zip(names, found, strict=True)],
                "placebo_summary": _summary(found),
            }
    return {"placebo": None, "placebo_unmeasured": reason}


def _verdict(own: Placebos) -> Mapping[str, Any]:
    """Of one query."""
    return {
        "unusual": bool(own.unusual[0]),
        "predicted": int(own.predicted[0]),
        "becomes": int(own.outcomes[0, 0]),
        "flips": bool(own.flips[0]),
        "margin": float(own.margin[0]),
        "change": float(own.change[0]),
        "random_interval": central(own.random_changes)[:, 0].tolist(),
        "random_flips": float(own.random_flips[0]),
    }


def _summary(found: Placebos) -> Mapping[str, Any]:
    """With the first of the siblings' names, for they may be many."""
    summary = found.summary()
    siblings = summary["siblings"]
    return {**summary, "random_sets": found.random, "siblings": siblings[:MOST_NAMES], "sibling_sets": len(siblings)}


def _within(asked: OutputArguments, own: NDArray[np.float32]) -> list[int]:
    """The outputs to return. Raises BadInput for outputs that the layer does not have."""
    width = len(own)
    for number in asked.outputs or ():
        if not 0 <= number < width:
            raise BadInput(
                f"outputs contains {number}, but the layer has {width} outputs.",
                hint=f"Use numbers from 0 to {width - 1}.",
                field="outputs",
            )
    return asked.outputs or []


OUTPUT = Tool(
    "output",
    "What one layer outputs for a stored example, its largest outputs first: with all of its training, with only the "
    "slots that a filter keeps (where, where_samples, where_slots), or as of an earlier step. With a filter on the "
    "output layer, placebo tells for each query whether the change of the margin is unusual: outside the central 95 % "
    "of random ablations of the same size and of the ablation's siblings. A changed prediction that is not unusual "
    "means little. cancellation tells how much the removed terms cancel one another. The status says how exact the "
    "record was measured to be. Under Adam and similar optimizers, a filter takes seconds to minutes.",
    OutputArguments,
    answer,
    "outputs",
)

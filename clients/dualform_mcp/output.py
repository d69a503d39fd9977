"""What a layer answers when only part of its memory speaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

from dualform.answers.cancellation import WHAT_A_MASK_MEANS
from dualform.errors import BadInput, Inexact
from dualform.methods import Answers
from dualform_mcp.questions import LayerArguments, beside, few_queries, query_names
from dualform_mcp.tool import Tool


class OutputArguments(LayerArguments):
    initial: bool = Field(True, description="Whether the initial weights and the bias are part of the answer.")
    outputs: list[int] | None = Field(
        None,
        min_length=1,
        max_length=100,
        description="Outputs to tell, by number; the `most` largest where it is left out.",
    )
    most: int = Field(10, ge=1, le=100, description="How many outputs of each query are told, the largest first.")


def answer(memory: Answers, asked: OutputArguments) -> Mapping[str, Any]:
    queries = few_queries(memory, asked.query)
    found = memory.output(asked.layer, queries, asked.where, asked.at_step, asked.allow_inexact, initial=asked.initial)
    rows = list[dict[str, Any]]()
    for name, own in zip(query_names(memory, queries, len(found)), found, strict=True):
        chosen = np.argsort(-own, kind="stable")[: asked.most] if asked.outputs is None else _within(asked, len(own))
        rows += [{"query": name, "output": int(number), "value": own[number]} for number in chosen]
    record = {
        "layer": asked.layer,
        "outputs": rows,
        "d_out": found.shape[1],
        **beside(found.scan, found.space, found.status),
        "unrecorded_change": found.unrecorded_change,
    }
    if asked.where is None:
        return record
    return {**record, "what_a_mask_means": WHAT_A_MASK_MEANS, **_cancellation(memory, asked, asked.where)}


def _cancellation(memory: Answers, asked: OutputArguments, where: str) -> Mapping[str, Any]:
    """How much the removed terms cancel, or why that cannot be had, as of a server of an earlier version. What else
    would be refused was refused with the output.
    """
    try:
        return memory.cancellation(where, asked.at_step, asked.layer, asked.allow_inexact).record()
    except Inexact as unmeasured:
        return {"cancellation": None, "cancellation_unmeasured": unmeasured.message}


def _within(asked: OutputArguments, width: int) -> list[int]:
    """The outputs that were asked for. Raises BadInput for one that the layer does not have."""
    for number in asked.outputs or ():
        if not 0 <= number < width:
            raise BadInput(
                f"layer {asked.layer!r} has {width} outputs, and outputs names {number}.",
                hint=f"They count from 0 to {width - 1}.",
                field="outputs",
            )
    return asked.outputs or []


OUTPUT = Tool(
    "output",
    "What one layer answers to a stored example, its largest outputs first: with all of its training, with only the "
    "slots that a mask leaves (where), or as of an earlier step. Compare an answer with and without a mask to see what "
    "part of the training made it. With a mask it says how much the removed terms cancel one another: where they do by "
    "tens or hundreds, the difference is a small one of large numbers. The status says how exact the record was "
    "measured to be. Under Adam and its kin, updates are run again for a mask, which takes seconds to minutes.",
    OutputArguments,
    answer,
    "outputs",
)

"""The tool `slots`: the columns of training datapoints, by id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from dualform.methods import Answers
from dualform_mcp.status import told
from dualform_mcp.tool import Arguments, Tool


class SlotsArguments(Arguments):
    ids: list[int] = Field(min_length=1, max_length=100, description="Slot ids, as topk gives them.")
    space: str | None = Field(
        None, description="The slot space that they count in, as topk says; may be left out where there is only one."
    )


def answer(memory: Answers, asked: SlotsArguments) -> Mapping[str, Any]:
    found = memory.slots(asked.ids, asked.space)
    return {"space": found.space, "slots": found.records(), "status": told(None), "snapshot": found.scan.snapshot}


SLOTS = Tool(
    "slots",
    "The columns of training datapoints by slot id: step, row in the batch, dataset, label, sample, and what else was "
    "recorded of them. topk gives these columns with its hits already.",
    SlotsArguments,
    answer,
    "slots",
)

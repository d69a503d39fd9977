"""Why the network predicts what it does: the explorer's answer, with the placebo of a filter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from dualform.answers.outputs import WHAT_AN_ABLATION_MEANS
from dualform.errors import BadInput, Inexact
from dualform.methods import Answers
from dualform_explorer.panels.answer import answer_panel, placebo_panel
from dualform_explorer.state import read_state
from dualform_explorer.view import View
from dualform_mcp.questions import WHERE
from dualform_mcp.status import told
from dualform_mcp.tool import Arguments, Tool


class AnswerArguments(Arguments):
    query: str = Field(
        description="One stored example, as SET/EXAMPLE counted from 0: test/17; test/17:4 for token 4 of a text."
    )
    by: str | None = Field(
        None, description="The column whose groups the output is divided among. Default: dataset, or label of only one."
    )
    where: str | None = Field(None, description=WHERE)
    at_step: int | None = Field(None, ge=0, description="As of so many recorded steps; the end where it is left out.")
    allow_inexact: bool = Field(
        False, description="Answer from a record that is further from the training's weights than the bound allows."
    )


def answer(memory: Answers, asked: AnswerArguments) -> Mapping[str, Any]:
    info = memory.info()
    item, _, token = asked.query.partition(":")
    given = {"item": item, "token": token, "by": asked.by, "where": asked.where, "at": asked.at_step}
    reading = read_state([(name, str(value)) for name, value in given.items() if value not in (None, "")], info)
    if reading.state is None:
        field = {"item": "query", "token": "query", "at": "at_step"}
        fault = reading.faults[0]
        raise BadInput(fault.message, field=field.get(fault.parameter, fault.parameter))
    state = replace(reading.state, inexact=asked.allow_inexact)
    view = View(memory, info, state)
    found = answer_panel(view)
    if not found.layer:
        raise Inexact(
            "No recorded layer gives the network's outputs for this query set.",
            hint="Ask output about a layer by its name.",
            field="query",
        )
    record: dict[str, Any] = {
        "sentence": found.words,
        "layer": found.layer,
        "predicted": _named(found.predicted),
        "less": None if found.other is None else _named(found.other),
        "label": found.label,
        "margin": found.margin,
        "by": list(found.by),
        "parts": [{"part": list(part.said), "kind": part.kind, "value": part.value} for part in found.parts],
        "largest_outputs": [{**_named(own[:2]), "share": own[2]} for own in found.next],
        "status": told(found.status),
    }
    if found.why_no_parts:
        record["why_no_parts"] = found.why_no_parts
    if found.becomes is None:
        return record
    placebo = placebo_panel(view)
    return {
        **record,
        "becomes": _named(found.becomes),
        "what_an_ablation_means": WHAT_AN_ABLATION_MEANS,
        "placebo": {"verdict": placebo.verdict, "words": placebo.words} if placebo.answer else None,
        "placebo_unmeasured": placebo.note,
    }


def _named(output: tuple[int, str]) -> dict[str, Any]:
    return {"output": output[0], "name": output[1]}


ANSWER = Tool(
    "answer",
    "Why the network predicts what it does for one stored example: its largest output less the label's, or less the "
    "second largest, as a sum of what the initial weights, the bias and each group of training data added. With where, "
    "the same without some of the training, and a placebo: whether random ablations of the same size change as much.",
    AnswerArguments,
    answer,
    "parts",
)

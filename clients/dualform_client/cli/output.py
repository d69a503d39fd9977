"""dualform output: what a layer answers when part of its memory is masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from dualform.answers import Outputs
from dualform.answers.cancellation import WHAT_A_MASK_MEANS
from dualform.methods import Answers
from dualform.questions import Queries
from dualform_client.cli.asked_queries import AskedQuery, asked_queries, names_record
from dualform_client.cli.importance import Importance
from dualform_client.cli.layers import LayerAnswer, asks_layers
from dualform_client.cli.mask_notes import (
    WHAT_A_SOFTMAX_MASK_MEANS,
    cancellation,
    describe,
    describe_status,
    figures,
)
from dualform_client.cli.options import (
    allow_inexact_option,
    at_step_option,
    json_option,
    kernel_option,
    layer_option,
    no_initial_option,
    query_option,
    temperature_option,
    where_option,
)
from dualform_client.cli.target import asks_target

SHOWN_OUTPUTS = 16
"""Outputs of a layer that a table shows; --json gives all."""
_IMPORTANCE = Importance(("query", "largest", "effective slots", "0"))


@click.command()
@asks_target
@asks_layers
@layer_option
@query_option
@where_option
@at_step_option
@allow_inexact_option
@kernel_option
@temperature_option
@no_initial_option
@json_option
def output(
    memory: Answers,
    layer: str,
    queries: Queries,
    where: str | None,
    at_step: int | None,
    allow_inexact: bool,
    kernel: str,
    temperature: float | None,
    no_initial: bool,
) -> LayerAnswer:
    """Compute a layer's output, masked or as of an earlier step.

    \b
    Example:
      dualform output runs/demo --layer layer-2 --query test-digits/17 --where "step < 100"
      dualform output runs/demo --layer layer-2 --query test-digits/17 --kernel softmax --temperature 0.5 --no-initial
    """
    outputs = memory.output(layer, queries, where, at_step, allow_inexact, kernel, temperature, not no_initial)
    # What is left of a softmax grows: how far the removed terms cancel says nothing of it.
    removed = cancellation(memory, where, at_step, layer, allow_inexact) if kernel == "linear" else None
    notes = []
    if not outputs.status.exact or outputs.unrecorded_change > 0:
        notes.append(f"{layer}: {describe_status(outputs.status, outputs.unrecorded_change)}")
    if where is not None:
        notes.append(WHAT_A_MASK_MEANS if kernel == "linear" else WHAT_A_SOFTMAX_MASK_MEANS)
        notes += [said] if (said := describe(removed)) else []
    asked = asked_queries(memory, queries, len(outputs), outputs.space)
    record = {**_outputs(outputs), **names_record(asked), **({} if removed is None else figures(removed))}
    return LayerAnswer(record, *_table(layer, outputs, asked), _IMPORTANCE, notes)


def _outputs(outputs: Outputs) -> dict[str, Any]:
    """As JSON has them; a temperature and effective slots are a softmax's."""
    record = {"outputs": outputs.values, "space": outputs.space, "kernel": outputs.kernel, "initial": outputs.initial}
    record |= {"status": asdict(outputs.status), "unrecorded_change": outputs.unrecorded_change}
    if outputs.effective_slots is None:
        return record
    return {**record, "temperature": outputs.temperature, "effective_slots": outputs.effective_slots}


def _kernel_of(outputs: Outputs) -> str:
    """What weighed the slots, and what was left out."""
    at = "" if outputs.temperature is None else f" at temperature {outputs.temperature:g}"
    return f"the {outputs.kernel} kernel{at}{'' if outputs.initial else ', without W_0 and bias'}"


def _table(
    layer: str, outputs: Outputs, asked: Sequence[AskedQuery]
) -> tuple[str, Sequence[str], Sequence[Sequence[Any]]]:
    """Title, columns and rows."""
    shown = min(outputs.shape[1], SHOWN_OUTPUTS)
    rows: list[list[Any]] = [[query, int(row.argmax())] for query, row in zip(asked, outputs, strict=True)]
    columns = ["query", "largest", *map(str, range(shown))]
    if outputs.effective_slots is not None:
        columns.insert(2, "effective slots")
        rows = [[*row, slots] for row, slots in zip(rows, outputs.effective_slots.tolist(), strict=True)]
    rows = [[*row, *numbers[:shown].tolist()] for row, numbers in zip(rows, outputs, strict=True)]
    more = "" if shown == outputs.shape[1] else f", the first {shown} of {outputs.shape[1]} (--json gives all)"
    return f"{layer}: outputs of {_kernel_of(outputs)}{more}", columns, rows

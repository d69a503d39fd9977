"""dualform topk, sums, output: questions with queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click
import numpy as np

from dualform.answers import Columns, Hits, Outputs, Scan
from dualform.methods import Answers
from dualform.questions import Queries
from dualform_client.cli.layers import LayerAnswer, asks_layers
from dualform_client.cli.masking import (
    WHAT_A_MASK_MEANS,
    WHAT_A_SOFTMAX_MASK_MEANS,
    cancellation,
    describe,
    describe_grade,
    figures,
)
from dualform_client.cli.options import (
    abs_option,
    allow_inexact_option,
    at_step_option,
    by_option,
    json_option,
    kernel_option,
    layer_option,
    no_initial_option,
    one_score,
    query_option,
    score_option,
    temperature_option,
    where_option,
)
from dualform_client.cli.target import asks_target

SHOWN_OUTPUTS = 16
"""Outputs of a layer that a table shows; --json gives all."""


@click.command()
@asks_target
@asks_layers
@layer_option
@query_option
@click.option("-k", default=10, show_default=True, type=int, help="Slots for each query, or for each group of --by.")
@where_option
@by_option("The best of each group: slot columns.")
@abs_option
@score_option
@json_option
def topk(
    memory: Answers,
    layer: str,
    queries: Queries,
    k: int,
    where: str | None,
    by: tuple[str, ...] | None,
    absolute: bool,
    score: str | None,
) -> LayerAnswer:
    """The training datapoints that a query attends to most.

    \b
    Example:
      dualform topk runs/demo --layer layer-0 --query test-digits/17 -k 5 --where "label <> 3"
      dualform topk runs/demo --layer "layer-*" --query test-digits/10:20 -k 1
    """
    named = one_score(absolute, score)
    hits = memory.topk(layer, queries, k, where, by, named)
    found = list(_hits(hits, _slots_of(memory, hits)))
    rows = [{**hit.get("group", {}), **hit} for hit in found]
    columns = [name for name in rows[0] if name != "group"] if rows else ["query", "slot", "score"]
    took = f"{hits.scan.slots_matching} of {hits.scan.slots_scanned} {hits.space} slots, {hits.scan.seconds:.3g} s"
    return LayerAnswer(
        {"hits": found, "score": named, "space": hits.space, **_share(hits.scan)},
        f"{layer}: {named} scores, {took}",
        columns,
        ([row[name] for name in columns] for row in rows),
        _sample_of(hits.scan),
    )


def _share(scan: Scan) -> dict[str, float]:
    """As JSON has it, where not all slots are kept."""
    return {"share": scan.share} if scan.sample else {}


def _sample_of(scan: Scan) -> list[str]:
    return [f"The answer stands on {scan.sample}."] if scan.sample else []


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


@click.command()
@asks_target
@asks_layers
@layer_option
@query_option
@by_option("Group by these slot columns.", required=True)
@where_option
@abs_option
@score_option
@json_option
def sums(
    memory: Answers,
    layer: str,
    queries: Queries,
    by: tuple[str, ...],
    where: str | None,
    absolute: bool,
    score: str | None,
) -> LayerAnswer:
    """How much attention goes to each label, dataset, position, or any other grouping.

    \b
    Example:
      dualform sums runs/demo --layer layer-0 --query test-digits/17 --by dataset,label
    """
    named = one_score(absolute, score)
    answer = memory.group_sum(layer, queries, by, where, named)
    counts = answer.counts.tolist()
    groups = [
        {**dict(zip(answer.by, key, strict=True)), "count": count}
        for key, count in zip(answer.groups, counts, strict=True)
    ]
    per_query = [f"query {query}" for query in range(len(answer.sums))] if len(answer.sums) > 1 else ["sum"]
    rows = (
        [*key, count, *answer.sums[:, g].tolist()]
        for g, (key, count) in enumerate(zip(answer.groups, counts, strict=True))
    )
    record = {"groups": groups, "sums": answer.sums, "score": named, "space": answer.space, **_share(answer.scan)}
    title, columns = f"{layer}: {named} scores by {', '.join(by)}", [*by, "count", *per_query]
    return LayerAnswer(record, title, columns, rows, _sample_of(answer.scan))


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
    """What a layer answers when part of its memory is masked, or as of an earlier step.

    \b
    Example:
      dualform output runs/demo --layer layer-2 --query test-digits/17 --where "step < 100"
      dualform output runs/demo --layer layer-2 --query test-digits/17 --kernel softmax --temperature 0.5 --no-initial
    """
    outputs = memory.output(layer, queries, where, at_step, allow_inexact, kernel, temperature, not no_initial)
    # What is left of a softmax grows: how far the removed terms cancel says nothing of it.
    removed = cancellation(memory, where, at_step, layer, allow_inexact) if kernel == "linear" else None
    notes = []
    if not outputs.grade.exact or outputs.standing > 0:
        notes.append(f"{layer}: {describe_grade(outputs.grade, outputs.standing)}")
    if where is not None:
        notes.append(WHAT_A_MASK_MEANS if kernel == "linear" else WHAT_A_SOFTMAX_MASK_MEANS)
        notes += [said] if (said := describe(removed)) else []
    record = {**_outputs(outputs), **({} if removed is None else figures(removed))}
    return LayerAnswer(record, *_table(layer, outputs), notes)


def _outputs(outputs: Outputs) -> dict[str, Any]:
    """As JSON has them; a temperature and effective slots are a softmax's."""
    record = {"outputs": outputs.values, "space": outputs.space, "kernel": outputs.kernel, "initial": outputs.initial}
    record |= {"grade": asdict(outputs.grade), "standing": outputs.standing}
    if outputs.effective_slots is None:
        return record
    return {**record, "temperature": outputs.temperature, "effective_slots": outputs.effective_slots}


def _kernel_of(outputs: Outputs) -> str:
    """What weighed the slots, and what was left out."""
    at = "" if outputs.temperature is None else f" at temperature {outputs.temperature:g}"
    return f"the {outputs.kernel} kernel{at}{'' if outputs.initial else ', without W_0 and bias'}"


def _table(layer: str, outputs: Outputs) -> tuple[str, Sequence[str], Sequence[Sequence[Any]]]:
    """Title, columns and rows."""
    shown = min(outputs.shape[1], SHOWN_OUTPUTS)
    rows: list[list[Any]] = [[query, int(row.argmax())] for query, row in enumerate(outputs)]
    columns = ["query", "largest", *map(str, range(shown))]
    if outputs.effective_slots is not None:
        columns.insert(2, "effective slots")
        rows = [[*row, slots] for row, slots in zip(rows, outputs.effective_slots.tolist(), strict=True)]
    rows = [[*row, *numbers[:shown].tolist()] for row, numbers in zip(rows, outputs, strict=True)]
    more = "" if shown == outputs.shape[1] else f", the first {shown} of {outputs.shape[1]} (--json gives all)"
    return f"{layer}: outputs of {_kernel_of(outputs)}{more}", columns, rows

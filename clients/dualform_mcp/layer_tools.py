"""Tools about the layers of a memory: answer, topk, group_sum and output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dualform.answers import Placebos, Scan, Status
from dualform.answers.outputs import WHAT_AN_ABLATION_MEANS, central
from dualform.errors import BadInput, Inexact, ServiceError
from dualform.methods import Answers
from dualform.questions import QuerySetExamples, as_queries
from dualform.questions.filters import FilterLike
from dualform.questions.outputs import MOST_SETS, RANDOM_SETS
from dualform.questions.scores import CONTRIBUTION
from dualform_explorer.panels.answer import answer_panel, placebo_panel
from dualform_explorer.state import read_state
from dualform_explorer.view import View
from dualform_mcp.tool import MOST_NAMES, MOST_QUERIES, Arguments, Tool, reason_of, told

WHERE = (
    "Use only slots for which this SQL expression over their columns is true, for example: label <> 3 AND step < 100; "
    "info lists the columns. Default: all slots. In topk and group_sum this is a filter; in output it is an ablation, "
    "arithmetic on this training and not a retraining."
)
MOST_IDS = 10_000
"""Ids of samples or slots in a filter."""


class LayerArguments(Arguments):
    layer: str | None = Field(
        None, description="A layer's name, as info lists it. Default: the layer that gives the network's outputs."
    )
    query: str = Field(
        description="Stored examples to ask with, as SET/EXAMPLE, counted from 0: test/17; test/3,17 for two; "
        "test/10-13 for four; test/17:4 for token 4 of example 17, in layers that see tokens. "
        f"At most {MOST_QUERIES}. info lists the query sets and how many examples each has."
    )
    where: str | None = Field(None, description=WHERE)
    where_samples: list[int] | None = Field(
        None,
        min_length=1,
        max_length=MOST_IDS,
        description="In place of where: use only the slots of these samples, by the numbers in the column sample. "
        "If datasets share numbers, write where: dataset = 'first' AND sample IN (3, 5).",
    )
    where_slots: list[int] | None = Field(
        None, min_length=1, max_length=MOST_IDS, description="In place of where: use only the slots with these ids."
    )
    at_step: int | None = Field(None, ge=0, description="As of so many recorded steps; the end where it is left out.")
    allow_inexact: bool = Field(
        False, description="Answer from a record that is further from the training's weights than the bound allows."
    )

    @property
    def filter(self) -> FilterLike | None:
        """As the methods take it. Raises BadInput for more than one."""
        given: dict[str, FilterLike | None] = {
            "where": self.where,
            "where_samples": None if self.where_samples is None else {"sample": self.where_samples},
            "where_slots": None if self.where_slots is None else {"slot": self.where_slots},
        }
        found = {name: own for name, own in given.items() if own is not None}
        if len(found) > 1:
            raise BadInput(
                f"{' and '.join(found)} cannot be combined.", hint="Give only one of them.", field=[*found][-1]
            )
        return next(iter(found.values()), None)

    def layer_of(self, memory: Answers) -> str:
        """The layer that is named, or the output layer. Raises BadInput where that is not known."""
        return memory.info().require_output_layer() if self.layer is None else self.layer


class ScoreArguments(LayerArguments):
    score: str | None = Field(
        None,
        description="dot (the inner product of key and query; the default), abs, cosine, contribution (what a slot "
        "brought to an output; needs target), or gradient (dot products of gradients, of a query set that was taken "
        "with a "
        'loss; layer "*" sums them over all layers).',
    )
    target: str | None = Field(
        None,
        description='Of score contribution: an output of the layer by its number, "3", or one less another, "3-8". '
        "at_step and allow_inexact go with it alone.",
    )

    @property
    def asked(self) -> dict[str, Any]:
        """Arguments of the methods that ask."""
        score = self.score or ("dot" if self.target is None else CONTRIBUTION)
        return {
            "score": score,
            "target": self.target,
            "at_step": self.at_step,
            "allow_inexact": self.allow_inexact,
        }


def few_queries(memory: Answers, said: str) -> QuerySetExamples:
    """The stored examples that a text names. Raises BadInput for more than an answer has room for."""
    asked = as_queries(said)
    assert isinstance(asked, QuerySetExamples), "a text names rows of a query set"
    count = asked.count
    if count is None:
        count = next((query_set.rows for query_set in memory.info().query_sets if query_set.name == asked.query_set), 0)
    if count > MOST_QUERIES:
        raise BadInput(
            f"{said!r} names {count} examples; the limit is {MOST_QUERIES}.",
            hint=f"Ask with fewer, for example {asked.query_set}/0-{MOST_QUERIES - 1}.",
            field="query",
        )
    return asked


def query_names(memory: Answers, asked: QuerySetExamples, count: int) -> list[str]:
    """The name of each query of an answer, which can be used to ask again."""
    examples = None
    if asked.examples is None:
        examples = next(own.examples for own in memory.info().query_sets if own.name == asked.query_set)
    return asked.names(count, examples)


def beside(scan: Scan, space: str, status: Status | None, score: str = CONTRIBUTION) -> dict[str, Any]:
    """Remarks about an answer: its scan, space and exactness. `status`: None for scores that need no weights."""
    return {
        "space": space,
        "status": told(status, reason_of(score)),
        "slots_scanned": scan.slots_scanned,
        "slots_matching": scan.slots_matching,
        "snapshot": scan.snapshot,
        **({"share": scan.share} if scan.sample else {}),
    }


def names(said: str | None) -> tuple[str, ...]:
    """ "dataset, label" as the names of columns."""
    return tuple(name.strip() for name in said.split(",")) if said else ()


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


def _answer(memory: Answers, asked: AnswerArguments) -> Mapping[str, Any]:
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
    if found is None:
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
    if found.becomes is None or (placebo := placebo_panel(view)) is None:
        return record
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
    _answer,
    "parts",
)


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


def _topk(memory: Answers, asked: TopKArguments) -> Mapping[str, Any]:
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
    _topk,
    "hits",
)


class SumsArguments(ScoreArguments):
    by: str = Field(description='Group by these slot columns: "label", "dataset,label", "step", "sample".')
    k: int = Field(
        20, ge=1, le=100, description="Groups of each query: those of the largest sums, whatever their sign."
    )


def _group_sum(memory: Answers, asked: SumsArguments) -> Mapping[str, Any]:
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
    _group_sum,
    "sums",
)


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


def _output(memory: Answers, asked: OutputArguments) -> Mapping[str, Any]:
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
    _output,
    "outputs",
)

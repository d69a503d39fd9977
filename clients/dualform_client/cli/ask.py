"""Questions about the scores of slots: topk, group-sum and distribution; and compare, which asks two memories.

compare tells hits apart by dataset and sample, never by slot, which counts in each memory by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import click
import numpy as np

from dualform.answers import Columns, Hits
from dualform.answers.contents import label_names
from dualform.errors import BadInput, DualformError
from dualform.methods import Answers
from dualform.questions import Filter, Queries, QuerySetExamples
from dualform_client.cli.help import command
from dualform_client.cli.layer_answers import (
    Score,
    asked_queries,
    asks_layers,
    groups_record,
    layer_title,
    names_record,
    sample_notes,
    scanned,
    share,
    status_notes,
    takes_score,
)
from dualform_client.cli.options import (
    COUNT,
    abs_option,
    asks_target,
    asks_two_targets,
    by_option,
    distinct_option,
    k_option,
    layer_option,
    one_score,
    query_option,
    score_option,
    takes_filter,
    where_option,
)
from dualform_client.cli.printing import Importance, Note, Report, Table

_SHOWN = 8
"""Queries whose effective slots a title shows."""
Best: TypeAlias = dict[tuple[str | None, int], tuple[Any, dict[str, Any]]]
"""Dataset and sample -> label, and rank, score and step of its best slot."""


@command()
@asks_target
@asks_layers
@layer_option
@query_option
@k_option("List N slots per query or group.")
@takes_filter()
@by_option("Take the best N of each group of these columns.")
@distinct_option
@takes_score
def topk(
    memory: Answers,
    layer: str | Sequence[str],
    queries: Queries,
    k: int,
    where: str | Filter | None,
    by: tuple[str, ...] | None,
    distinct: tuple[str, ...] | None,
    score: Score,
) -> Report:
    """List the training slots that a query attends to most.

    With --target, list those that added most to an output. With --score
    gradient, compare gradients; the query set needs a loss.

    \b
    Example:
      dualform topk runs/demo --query test-digits/17 --distinct sample
    """
    hits = memory.topk(layer, queries, k, where, by, distinct=distinct, **score.asked)
    found = list(_hits(hits, _slots_of(memory, hits)))
    totals = _totals(memory, layer, queries, where, score)
    shares = len(totals) == len(hits) and not any("share" in hit for hit in found)  # a user's column may be called so
    for hit in found if shares else ():
        total = totals[hit["query"]]
        hit["share"] = abs(hit["score"]) / total if total else None
    asked = asked_queries(memory, queries, len(hits), score.space_of_queries(hits.space))
    rows = [{**hit.get("group", {}), **hit, "query": asked[hit["query"]]} for hit in found]
    if shares:
        rows = [{**row, "share": _percent(row["share"])} for row in rows]
    columns = [name for name in rows[0] if name != "group"] if rows else ["query", "slot", "score"]
    importance = Importance(
        kept=("query", *(by or ()), "slot", "score"),
        last=("label", "dataset", "sample", "share", "repeats", "step"),
        first=("call", "row", "position"),
    )
    title = layer_title(layer, str(score), scanned(hits.scan, hits.space))
    table = Table(title, columns, ([row[name] for name in columns] for row in _named(rows, memory)), importance)
    return Report(
        {"hits": found, **names_record(asked), **score.record(hits.status), "space": hits.space, **share(hits.scan)},
        [table, *sample_notes(hits.scan), *_repeated(hits, found), *status_notes(layer, hits.status)],
    )


def _totals(
    memory: Answers, layer: str | Sequence[str], queries: Queries, where: str | Filter | None, score: Score
) -> list[float]:
    """For each query the sum of the absolute scores of all slots that the filter leaves; empty for other scores."""
    if score.name not in ("dot", "abs"):
        return []
    try:
        sums = memory.group_sum(layer, queries, "call", where, score="abs")
    except DualformError:  # the question itself is answered
        return []
    return [float(own) for own in sums.sums.sum(axis=1)]


def _named(rows: Sequence[dict[str, Any]], memory: Answers) -> Iterator[dict[str, Any]]:
    """The rows with the names of their labels. A table asks for them, JSON does not."""
    if all(row.get("label") is None for row in rows):
        yield from rows
        return
    name = label_names(memory)
    for row in rows:
        yield {**row, "label": name(row["label"], row.get("dataset"))}


def _percent(part: Any) -> Any:
    return f"{part:.2%}" if isinstance(part, float) else part


def _repeated(hits: Hits, found: Sequence[dict[str, Any]]) -> list[Note]:
    """A note if one sample is more than one hit of a query."""
    samples = Counter(
        (hit["query"], hit.get("dataset"), hit["sample"]) for hit in found if hit.get("sample") is not None
    )
    most = max(samples.values(), default=1)
    if hits.repeats is not None or most < 2:
        return []
    return [Note(f"One sample is {most} of the hits of a query: --distinct sample lists each sample once.")]


def _slots_of(memory: Answers, hits: Hits) -> dict[int, dict[str, Any]]:
    """The slot columns of all hits, by slot."""
    ids = np.unique(hits.ids)
    columns = memory.slots(ids, hits.space) if len(ids) else Columns({})
    return {record["slot"]: record for record in columns.records()}


def _hits(hits: Hits, slots: dict[int, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One record per hit, best first within its query and group."""
    ids, scores = iter(hits.ids.tolist()), iter(hits.flat_scores.tolist())
    repeats = iter(() if hits.repeats is None else hits.repeats.tolist())
    for query, counts in enumerate(hits.counts.tolist()):
        for group, count in enumerate(counts):
            for _ in range(count):
                slot = next(ids)
                hit = {"query": query, "slot": slot, "score": next(scores)}
                if hits.repeats is not None:
                    hit["repeats"] = next(repeats)
                hit |= {name: value for name, value in slots[slot].items() if name not in hit}
                if hits.groups is not None:
                    hit["group"] = dict(zip(hits.by, hits.groups[group], strict=True))
                yield hit


@command("group-sum")
@asks_target
@asks_layers
@layer_option
@query_option
@by_option("Group by these slot columns.", required=True)
@takes_filter()
@click.option("--top", type=COUNT, metavar="K", show_default="all", help="Print only the K largest sums.")
@takes_score
def group_sum(
    memory: Answers,
    layer: str | Sequence[str],
    queries: Queries,
    by: tuple[str, ...],
    where: str | Filter | None,
    top: int | None,
    score: Score,
) -> Report:
    """Sum attention by label, dataset or another column.

    With --target, sum what the slots added to an output of the layer. With
    --score gradient, sum over all layers that --layer names; the query set must
    have been recorded with a loss.

    \b
    Example:
      dualform group-sum runs/demo --query test-digits/17 --by dataset,label
    """
    answer = memory.group_sum(layer, queries, by, where, k=top, **score.asked)
    asked = asked_queries(memory, queries, len(answer), score.space_of_queries(answer.space))
    beside = {**names_record(asked), **score.record(answer.status), "space": answer.space, **share(answer.scan)}
    most, record = "", dict[str, Any](groups=groups_record(answer), sums=answer.sums)
    sums = [str(query) for query in asked] if len(asked) > 1 else ["sum"]
    columns, kept = [*by, "count", *sums], (*by, *sums)
    rows: Iterator[list[Any]] = (
        [*key, count, *own.tolist()]
        for key, count, own in zip(answer.groups, answer.counts.tolist(), answer.sums.T, strict=True)
    )
    if answer.numbers is not None:
        most = f"{answer.numbers.shape[1]:,} largest of {answer.total:,}"
        found: list[dict[str, Any]] = [
            {"query": query, "group": dict(zip(by, key, strict=True)), "count": count, "sum": own}
            for query in range(len(answer.sums))
            for key, own, count in answer.ranked(query)
        ]
        record = {"largest": found, "total": answer.total}
        columns, kept = ["query", *by, "count", "sum"], ("query", *by, "sum")
        rows = ([asked[one["query"]], *one["group"].values(), one["count"], one["sum"]] for one in found)
    of = str(asked[0]) if len(asked) == 1 else ""
    title = layer_title(layer, f"{score} by {', '.join(by)}", of, scanned(answer.scan, answer.space), most)
    notes = [*sample_notes(answer.scan), *status_notes(layer, answer.status)]
    return Report({**record, **beside}, [Table(title, columns, rows, Importance(kept)), *notes])


@command()
@asks_target
@asks_layers
@layer_option
@query_option
@takes_filter()
@click.option(
    "--points",
    default=24,
    show_default=True,
    type=click.IntRange(min=11),
    metavar="N",
    help="Print N ranks, 11 or more.",
)
@takes_score
def distribution(
    memory: Answers, layer: str, queries: Queries, where: str | Filter | None, points: int, score: Score
) -> Report:
    """Show how a query's scores are spread over all slots.

    For each rank: the score there, the sum of absolute scores up to it, and the
    share of the total. "Effective slots" says how many slots of equal score
    would be as concentrated.

    \b
    Example:
      dualform distribution runs/demo --query test-digits/17
    """
    answer = memory.distribution(layer, queries, where, points=points, **score.asked)
    asked = asked_queries(memory, queries, len(answer), score.space_of_queries(answer.space))
    columns = {name: column.tolist() for name, column in answer.table().arrays.items()}
    columns["query"] = [asked[query] for query in columns["query"]]
    record = {
        "ranks": answer.ranks,
        "count": answer.count,
        "distributions": [
            {
                "scores": own.scores[0],
                "cumulative": own.cumulative[0],
                "total": own.totals[0],
                "effective_slots": own.effective_slots[0],
            }
            for own in answer
        ],
        **names_record(asked),
        **score.record(answer.status),
        "space": answer.space,
        **share(answer.scan),
    }
    effective = ", ".join(f"{one:,.{int(one < 100)}f}" for one in answer.effective_slots[:_SHOWN].tolist())
    effective = f"effective slots {effective}{', …' if len(answer) > _SHOWN else ''}"
    title = layer_title(layer, str(score), scanned(answer.scan, answer.space, answer.count), effective)
    importance = Importance(("query", "rank", "score"), last=("share", "cumulative"))
    table = Table(title, list(columns), zip(*columns.values(), strict=True), importance)
    return Report(record, [table, *sample_notes(answer.scan), *status_notes(layer, answer.status)])


@command()
@asks_two_targets
@asks_layers
@layer_option
@query_option
@k_option("Compare the best N slots of each memory.")
@where_option()
@score_option
@abs_option
def compare(
    memories: tuple[Answers, Answers],
    layer: str,
    queries: Queries,
    k: int,
    where: str | None,
    absolute: bool,
    score: str | None,
) -> Report:
    """Compare what a query attends to in two memories.

    A and B are folders or addresses. Slots are matched by dataset and sample.
    Each memory answers by its own query set of that name.

    \b
    Example:
      dualform compare runs/one runs/other --layer layer-0 --query test-digits/17
    """
    named = one_score(absolute, score)
    _check_datasets(memories)
    if isinstance(queries, QuerySetExamples):
        _check_query_set(memories, queries.query_set)
    hits = [memory.topk(layer, queries, k, where, score=named) for memory in memories]
    best = [_best(memory, own, name) for memory, own, name in zip(memories, hits, ("first", "second"), strict=True)]
    found = [_matched(*both) for both in zip(*best, strict=True)]
    shared = [sum(own["a"] is not None and own["b"] is not None for own in samples) for samples in found]
    sampled = {name: own.scan for name, own in zip("AB", hits, strict=True) if own.scan.sample}
    of_slots = {"share": {name: own.scan.share for name, own in zip("ab", hits, strict=True)}} if sampled else {}
    asked = asked_queries(memories[0], queries, len(found), hits[0].space)
    alike = ", ".join(f"{count} of {len(samples)}" for count, samples in zip(shared, found, strict=True))
    record = {
        "queries": [
            {"query": query, "shared": shared[query], "samples": samples} for query, samples in enumerate(found)
        ],
        **names_record(asked),
        "score": named,
        **of_slots,
    }
    table = Table(
        layer_title(layer, str(Score(named, None, None, False)), f"samples in both: {alike}"),
        ["query", "dataset", "sample", "label", "rank in A", "rank in B", "score in A", "score in B"],
        [[query, *_cells(own)] for query, samples in zip(asked, found, strict=True) for own in samples],
        Importance(("query", "sample", "rank in A", "rank in B"), last=("label", "score in A", "score in B")),
    )
    return Report(record, [table, *(Note(f"{name} is computed from {scan.sample}.") for name, scan in sampled.items())])


def _check_datasets(memories: tuple[Answers, Answers]) -> None:
    first, second = map(_datasets, memories)
    if first.isdisjoint(second):
        said = [", ".join(sorted(name or "slots without one" for name in own)) for own in (first, second)]
        raise BadInput(
            f"the memories have no dataset in common: the first has {said[0]}, the second {said[1]}.",
            hint="Record both memories with the same dataset names.",
            field="queries",
        )


def _datasets(memory: Answers) -> set[str | None]:
    """The names of a memory's datasets; None among them if some slot has none."""
    info = memory.info()
    unnamed = sum(info.slots.values()) > sum(info.datasets.values())
    return {*info.datasets, None} if unnamed else set(info.datasets)


def _check_query_set(memories: tuple[Answers, Answers], name: str) -> None:
    first, second = (memory.query_set(name).labels for memory in memories)
    if first is not None and second is not None and not np.array_equal(first, second):
        raise BadInput(
            f"the query set {name!r} has other labels in the second memory than in the first.",
            hint="Compare by a query set of the same examples, in the same order.",
            field="queries",
        )


def _best(memory: Answers, hits: Hits, which: str) -> list[Best]:
    """By query, the samples of its best slots in order, each with its label, and the place of its best slot."""
    slots = _slots_of(memory, hits)
    unknown = next((slot for slot, record in slots.items() if record["sample"] is None), None)
    if unknown is not None:
        raise BadInput(
            f"slot {unknown} of the {which} memory has no sample.",
            hint="Pass dataset and sample to every step that you record.",
            field="queries",
        )
    found = []
    for own, scores in zip(hits.slots, hits.scores, strict=True):
        best: Best = {}
        for slot, value in zip(own.tolist(), scores.tolist(), strict=True):
            record = slots[slot]
            place = {"rank": len(best) + 1, "score": value, "step": record["step"]}
            best.setdefault((record["dataset"], record["sample"]), (record["label"], place))
        found.append(best)
    return found


def _matched(first: Best, second: Best) -> list[dict[str, Any]]:
    """Samples in the order of the first memory, then others in that of the second."""
    nowhere = None, None
    return [
        {
            "dataset": key[0],
            "sample": key[1],
            "label": (first.get(key) or second[key])[0],
            "a": first.get(key, nowhere)[1],
            "b": second.get(key, nowhere)[1],
        }
        for key in dict.fromkeys((*first, *second))
    ]


def _cells(sample: dict[str, Any]) -> list[Any]:
    a, b = sample["a"] or {}, sample["b"] or {}
    named = [sample[name] for name in ("dataset", "sample", "label")]
    return [*named, a.get("rank"), b.get("rank"), a.get("score"), b.get("score")]

"""Questions that differ in nothing but their queries, joined into one; and its answer, in parts again.

Shapes: n queries, G groups.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import chain, pairwise
from typing import Any, TypeAlias

import numpy as np

from dualform.answers import GroupSums, Hits, Outputs
from dualform.questions import GroupSum, Output, ProbeRows, Queries, SlotKeys, TopK, Vectors

Shareable: TypeAlias = TopK | GroupSum | Output
Kind: TypeAlias = Hashable


def queries_of(question: Shareable) -> int | None:
    """n; None for the rows of a whole probe, which only the memory can count."""
    match question.queries:
        case Vectors(rows):
            return len(rows)
        case ProbeRows(_, rows):
            return None if rows is None else len(rows)
        case SlotKeys(slots):
            return len(slots)


def kind_of(question: Shareable) -> Kind | None:
    """Equal for questions that can be joined; None for one that cannot be."""
    rest = tuple(getattr(question, field.name) for field in fields(question) if field.name != "queries")
    match question.queries:
        case Vectors(rows):
            # Another width is another kind: a width that is wrong is wrong for all who share it.
            given: tuple[Any, ...] = (Vectors, rows.shape[1])
        case ProbeRows(probe, rows):
            if not rows:
                return None
            given = (ProbeRows, probe)
        case SlotKeys(slots):
            if not slots:
                return None
            given = (SlotKeys,)
    return type(question), *rest, *given


def joined(questions: Sequence[Shareable]) -> Shareable:
    """One question with the queries of all, in order. They are of one kind."""
    first = questions[0]
    return first if len(questions) == 1 else replace(first, queries=_joined([one.queries for one in questions]))


def _joined(queries: Sequence[Queries]) -> Queries:
    match queries[0]:
        case Vectors():
            return Vectors(np.concatenate([one.rows for one in queries if isinstance(one, Vectors)]))
        case ProbeRows(probe):
            rows = (one.rows or () for one in queries if isinstance(one, ProbeRows))
            return ProbeRows(probe, tuple(chain.from_iterable(rows)))
        case SlotKeys():
            slots = (one.slots for one in queries if isinstance(one, SlotKeys))
            return SlotKeys(tuple(chain.from_iterable(slots)))


def parts(answer: Any, counts: Sequence[int]) -> Iterator[Any]:
    """The answer's share of each question, of `counts` queries. What answering took stays that of the whole."""
    if len(counts) == 1:
        yield answer
        return
    cuts = np.cumsum([0, *counts]).tolist()
    match answer:
        case Hits():
            ends = np.concatenate([[0], np.cumsum(answer.counts.sum(axis=1))])
            for start, stop in pairwise(cuts):
                own = slice(ends[start], ends[stop])
                yield replace(
                    answer, ids=answer.ids[own], flat_scores=answer.flat_scores[own], counts=answer.counts[start:stop]
                )
        case GroupSums():
            for start, stop in pairwise(cuts):
                yield replace(answer, sums=answer.sums[start:stop])
        case Outputs():
            for start, stop in pairwise(cuts):
                yield replace(answer, values=answer.values[start:stop])


def bytes_expected(question: Shareable) -> float | None:
    """Most bytes that the answer to one query takes; None where that depends on the memory."""
    return 12.0 * question.k + 8 if isinstance(question, TopK) and not question.by else None


def bytes_of(answer: Any) -> int:
    """Bytes of an answer's numbers."""
    match answer:
        case Hits():
            return answer.ids.nbytes + answer.flat_scores.nbytes + answer.counts.nbytes
        case GroupSums():
            return answer.sums.nbytes
        case Outputs():
            return answer.values.nbytes
    raise TypeError(f"{type(answer).__name__} is no answer")

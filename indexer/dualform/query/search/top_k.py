"""The answer to TopK: the k best slots of each query, of each group, or one for each sample.

Top-k with one hit a sample: the best slot of each, and how often the sample stands in the plain list.

The plain list is asked for, longer and longer, until it holds k samples for each query and group. So scores, order and
ties are those of the plain question, whatever answers it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from dualform.answers import Hits
from dualform.errors import BadInput, NotFound
from dualform.query.resolved import Resolved
from dualform.query.score.canonical import as_float32
from dualform.query.score.key_rows import key_rows
from dualform.query.search.scan import CellHits, Ranked, Search, scan
from dualform.query.search.screen import Screen, prefiltered
from dualform.query.view import Check, View
from dualform.questions import GradientTopK, TopK

_FIRST, _FURTHER = 4, 8
"""Times k that the plain list is long at first, and how many times longer it is each time it does not do."""


def distinct_hits(
    view: View,
    question: TopK | GradientTopK,
    ask: Callable[[TopK | GradientTopK], Hits],
    room: Callable[[int], AbstractContextManager[None]],
) -> Hits:
    """The answer to a question with `distinct`. `ask` answers the plain one, and `room` claims RAM for so many hits.

    Raises NotFound for a column that the layer's space does not have, BadInput for one that is NULL throughout, and
    otherwise as `ask` does.
    """
    k, length = question.k, _FIRST * question.k
    while True:
        hits = ask(replace(question, k=length, distinct=()))
        _check_columns(view, hits.space, question.distinct)
        with room(len(hits.ids)):
            samples = _sample_numbers(view, hits, question.distinct)
            parts = np.split(np.arange(len(hits.ids)), np.cumsum(hits.counts.ravel())[:-1])
            found = [_distinct(samples[part], k) for part in parts]
        if all(len(own.places) == k or len(part) < length for own, part in zip(found, parts, strict=True)):
            break
        length *= _FURTHER
    places = np.concatenate([part[own.places] for part, own in zip(parts, found, strict=True)])
    return replace(
        hits,
        ids=hits.ids[places],
        flat_scores=hits.flat_scores[places],
        counts=np.array([len(own.places) for own in found], dtype=np.int64).reshape(hits.counts.shape),
        repeats=np.concatenate([own.repeats for own in found]),
    )


class _Distinct(NamedTuple):
    """Of one list, best first: where its first k samples stand, and how often each does down to the last of them."""

    places: NDArray[np.int64]
    repeats: NDArray[np.int64]


def _distinct(samples: NDArray[np.int64], k: int) -> _Distinct:
    _, first, numbers = np.unique(samples, return_index=True, return_inverse=True)
    order = np.argsort(first)
    places = first[order][:k]
    end = int(places[-1]) + 1 if len(order) >= k else len(samples)
    times = np.bincount(numbers.reshape(-1)[:end], minlength=len(first)).astype(np.int64)
    return _Distinct(places, times[order][:k])


def _check_columns(view: View, space: str, names: Sequence[str]) -> None:
    own = view.snapshot.space(space)
    for name in names:
        if name not in own.columns:
            raise NotFound(
                f"There is no slot column {name!r}.", hint=f"Columns: {', '.join(own.columns)}.", field="distinct"
            )
        if own.is_null(name) is True:
            raise BadInput(
                f"column {name!r} is NULL in all slots of space {space!r}, so distinct cannot use it.",
                hint="Pass a column that was recorded, or leave distinct out.",
                field="distinct",
            )


def _sample_numbers(view: View, hits: Hits, names: Sequence[str]) -> NDArray[np.int64]:
    """int64: equal for hits of one sample, whose number is one of its dataset. A hit with a NULL in one of `names` is a
    sample of its own.
    """
    columns = [*names, "dataset"] if "sample" in names and "dataset" not in names else list(names)
    with view.snapshot.reading():
        table = view.snapshot.space(hits.space).at(hits.ids, columns)
    numbers = np.zeros(len(hits.ids), dtype=np.int64)
    unknown = np.zeros(len(hits.ids), dtype=bool)
    for name in columns:
        column = table[name]
        codes = pc.fill_null(column.dictionary_encode().combine_chunks().indices, -1)
        _, numbers = np.unique(np.stack([numbers, np.asarray(codes, dtype=np.int64)]), axis=1, return_inverse=True)
        numbers = numbers.reshape(-1).astype(np.int64)
        if name in names:
            unknown |= np.asarray(column.is_null())
    numbers[unknown] = numbers.max(initial=0) + 1 + np.arange(np.count_nonzero(unknown))
    return numbers


def top_k(resolved: Resolved[TopK], check: Check) -> Hits:
    """Raises BadInput where the score is unknown, Inexact where a key is not finite."""
    view, layer, k, groups = resolved.view, resolved.layer, resolved.question.k, resolved.groups
    if resolved.shares is not None:
        from dualform.query.weights.group_weights import best_of_shares  # scores of keys need none of it

        found = best_of_shares(resolved, check)
    elif view.shards is not None and resolved.directed is None:
        found = view.shards.best(resolved, check)
    else:
        rows, queries = key_rows(view, layer.name, resolved.selection, check), resolved.queries
        if resolved.directed is None:
            search = Search.of(resolved.score, view, layer.name, rows, groups, k, queries, check)
        else:
            search = Search(view, layer.name, rows, groups, k, queries, False, resolved.directed, check)
        found = best(search)
    there = np.array([resolved.selection.count]) if groups is None else groups.counts
    counts = np.tile(np.minimum(there, k), (len(found), 1))
    entries = np.concatenate([entries for entries, _ in found]).astype(np.int64)
    scores = as_float32(np.concatenate([scores for _, scores in found]))
    keys, by = (None, ()) if groups is None else (groups.keys, groups.by)
    ids = view.snapshot.entries(layer.name).slots_of(entries)
    return Hits(ids, scores, counts, keys, by, resolved.scan(), layer.space, resolved.status)


def best(search: Search) -> list[Ranked]:
    """By query, the k best entries, group after group. A group with fewer than k gives all it has.

    The backend's prefilter decides most queries; the others, as those that tell no rows apart, are scanned.
    """
    screen: Screen | None = getattr(search.view.backend, "screen", None)
    left, parts = np.arange(len(search.queries)), list[CellHits]()
    if screen is not None:
        found, left = prefiltered(search, screen)
        parts.append(found)
    if len(left):
        parts.append(scan(search, left))
    search.view.tally.add(queries=len(search.queries), fallbacks=0 if screen is None else len(left))
    hits = CellHits.joined(parts)
    order = np.argsort(hits.cells, kind="stable")  # each cell is of one part
    cuts = np.searchsorted(hits.cells[order], np.arange(1, len(search.queries)) * search.cells_each)
    return list(zip(np.split(hits.entries[order], cuts), np.split(hits.scores[order], cuts), strict=True))

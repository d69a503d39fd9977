"""The answers to GradientTopK and GradientSum, from the scores of all slots that a mask leaves.

Shapes: n examples, T slots of a space, G groups.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupSums, Hits
from dualform.answers.scores import largest
from dualform.errors import BadInput
from dualform.query.bounds import COUNT_BYTES, HIT_BYTES, SUM_BYTES
from dualform.query.gradients.scores import GradientScores, gradient_scores
from dualform.query.gradients.screen import candidates
from dualform.query.groups import Groups, check_spaces, group, joined_keys
from dualform.query.score.canonical import as_float32
from dualform.query.search.cells import best_of_cells
from dualform.query.search.screen import Screen
from dualform.query.view import Check, View
from dualform.query.where.mask import Selection
from dualform.questions.gradients import ExampleGradients, GradientSum, GradientTopK

_ONE_IN = 4
"""If more than one slot in so many were to be found, the screen would keep nearly all of them."""
BYTES = 128 << 20
"""Of the scores of some examples that are held at once."""


def gradient_top_k(view: View, question: GradientTopK, examples: ExampleGradients, check: Check) -> Hits:
    """Raises as `gradient_scores`, and BadInput for layers of several slot spaces."""
    began = time.perf_counter()
    scores = gradient_scores(view, question.layers, question.where, examples, check)
    if len(scores.spaces) > 1:
        raise BadInput(
            f"The layers have slots of several spaces, {', '.join(scores.spaces)}, which cannot be ranked together.",
            hint='Pass layers of one space, or sum by sample: memory.group_sum(…, by="sample").',
            field="layer",
        )
    (space,) = scores.spaces
    stays, count = scores.stays(space), examples.count
    slots = np.flatnonzero(stays)
    each = min(question.k, len(slots))
    view.bounds.require(
        count, COUNT_BYTES + HIT_BYTES * each, "Ask with at most {} examples at a time, or a smaller k.", "k"
    )
    ids, found = np.empty((count, each), dtype=np.int64), np.empty((count, each))
    left, screened = [], _screened(scores, space, each, check)
    for example, near in enumerate(screened or [None] * count):
        if near is None:
            left.append(example)
        else:
            ids[example], found[example] = _best(scores.of_slots(space, example, near, check), near, each)
    for part in parts(len(left), len(stays)):
        chosen = [left[place] for place in part]
        for example, own in zip(chosen, scores.of(space, chosen, check), strict=True):
            ids[example], found[example] = _best(own[slots], slots, each)
    view.tally.add(queries=count, fallbacks=0 if screened is None else len(left))
    counts = np.full((count, 1), each, dtype=np.int64)
    scan = view.scan(began, len(stays), len(slots), view.backend.name, space)
    return Hits(ids.ravel(), as_float32(found.ravel()), counts, None, (), scan, space)


def _screened(scores: GradientScores, space: str, k: int, check: Check) -> Sequence[NDArray[np.int64] | None] | None:
    """By example, the slots that can be among its k best; None where all have to be scored, or no screen could help."""
    screen: Screen | None = getattr(scores.view.backend, "screen", None)
    if screen is None or not screen.weighs or k * _ONE_IN > scores.view.snapshot.space(space).count:
        return None
    return candidates(scores, space, k, screen, check)


def _best(
    scores: NDArray[np.float64], slots: NDArray[np.int64], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The k best of some slots, by score descending and then by slot."""
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    near = np.flatnonzero(scores >= least)
    kept = near[best_of_cells(np.zeros(len(near), dtype=np.int64), scores[near], slots[near], k)]
    return slots[kept], scores[kept]


def gradient_sum(view: View, question: GradientSum, examples: ExampleGradients, check: Check) -> GroupSums:
    """Raises as `gradient_scores`, and BadInput for layers of several slot spaces unless `by` names columns of the
    sample alone.
    """
    began = time.perf_counter()
    scores = gradient_scores(view, question.layers, question.where, examples, check)
    count, k = examples.count, question.k
    most = inf if k is not None else view.bounds.answer_bytes // (SUM_BYTES * (count + 1))
    own = {space: _groups(scores, space, question.by, check, most) for space in scores.spaces}
    check_spaces(view, own.keys(), question.by)
    keys, places = joined_keys({space: groups.keys for space, groups in own.items()})
    counts = np.zeros(len(keys), dtype=np.int64)
    for space, groups in own.items():
        counts[places[space]] += groups.counts
    each = SUM_BYTES * (len(keys) if k is None else 3 * min(k, len(keys)))
    view.bounds.require(count, each, "Ask with at most {} examples at a time, or by fewer groups.", "by")
    sums, numbers = [], []
    for part in parts(count, max(view.snapshot.space(space).count for space in own)):
        found = np.zeros((len(part), len(keys)))
        for space, groups in own.items():
            for total, slots in zip(found, scores.of(space, part, check), strict=True):
                total[places[space]] += np.bincount(groups.numbers, slots[groups.entries], len(groups.keys))
        if k is not None:
            found, chosen = largest(found, k)
            numbers.append(chosen)
        sums.append(found)
    spaces = list(own)
    space = spaces[0] if len(spaces) == 1 else ""
    slots = sum(view.snapshot.space(one).count for one in spaces)
    scan = view.scan(began, slots, int(counts.sum()), view.backend.name, space or None)
    answer = GroupSums(keys, np.concatenate(sums), counts, question.by, scan, space)
    if k is None:
        return answer
    whole = GroupSums(keys, answer.sums, counts, question.by, scan, space, None, np.concatenate(numbers), len(keys))
    return whole.part(0, count)


def parts(examples: int, slots: int) -> Iterator[range]:
    """Examples whose scores of all slots take BYTES."""
    size = max(1, BYTES // (8 * max(1, slots)))
    return (range(start, min(start + size, examples)) for start in range(0, examples, size))


def _groups(scores: GradientScores, space: str, by: tuple[str, ...], check: Check, most: float) -> Groups:
    """Of the slots of a space that stay, at most so many."""
    stays = scores.stays(space)
    return group(scores.view.snapshot.space(space), None, Selection("", stays), by, check, most)

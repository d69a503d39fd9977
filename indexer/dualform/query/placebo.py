"""The answer to Placebo: how predictions change under an ablation, under random ones of its size, and under siblings.

Shapes: n queries, m entries of a layer, N samples, B buckets of samples, S siblings.

Every set is a union of groups of slots, so that what a set removes is a sum of what its groups brought:

    random sets   unions of buckets, into which samples fall at random, the same ones each time
    siblings      unions of the groups of the columns that the ablation names, or of spans of steps

The weights of each group are made in one pass over the training, whatever the rule (group_weights.py), and kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupKey, Placebos
from dualform.errors import BadInput
from dualform.query.groups import dense, group_entries, sample_numbers
from dualform.query.needs import AT_ONCE, BUCKETS, MOST_SIBLINGS
from dualform.query.resolved import Resolved
from dualform.query.slots import labels_of
from dualform.query.view import Check, View
from dualform.query.weights import cancellation
from dualform.query.weights.coefficients import weighs_no_slot
from dualform.query.weights.group_weights import Numbers, kept_group_weights
from dualform.query.weights.output import products, rebuilt_under
from dualform.query.weights.reconstruction import RebuiltWeights, rebuild, require, tied
from dualform.query.weights.trajectory import every_slot
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.questions import Placebo
from dualform.questions.arguments import check_step
from dualform.store.layer import Layer

_SPANS = 24
"""Other spans of steps that are looked at, at most."""
_AT_ONCE_BYTES = 64 << 20
"""That outputs in hand may take."""
_BUDGET = 1 << 30
"""Bytes that the weights of all groups may take."""


@dataclass(frozen=True, eq=False)
class Sets:
    """Sets of slots, each a union of groups."""

    numbers: Numbers
    """By layer, the group of each entry."""
    members: NDArray[np.bool_]
    """bool[sets, groups]: the groups whose slots a set leaves out."""
    names: tuple[str, ...] = ()
    identity: str = ""
    """Of the groups: equal for equal ones of the same memory."""


@dataclass(frozen=True, eq=False)
class Ablation:
    """All of an answer that does not depend on the queries."""

    whole: RebuiltWeights
    kept: RebuiltWeights
    sets: list[Weighed]
    """Random sets, then siblings, if there are any."""
    siblings: tuple[str, ...]
    why_none: str
    removed: int
    count: int
    unit: str
    """Of samples: how many were removed, how many there are, and what tells them apart."""
    cancellation: float | None

    @property
    def nbytes(self) -> int:
        own = [weights for sets in self.sets for weights in sets.weights]
        return sum(weights.nbytes for weights in (self.whole, self.kept, *own))


@dataclass(frozen=True, eq=False)
class Weighed:
    """Sets of slots, and the weights of the groups that they are unions of."""

    members: NDArray[np.bool_]
    """bool[sets, groups]"""
    weights: list[RebuiltWeights]
    """Of each group."""


def placebos(resolved: Resolved[Placebo], check: Check) -> Placebos:
    """Raises BadInput for a filter that leaves out nothing and for layers that are too large, Inexact as `require`."""
    question, view, layer, selection = resolved.question, resolved.view, resolved.layer, resolved.selection
    check_step(question.at_step, view.snapshot.steps)
    require(view, layer.stored, question.at_step, question.allow_inexact, check)
    key = ("placebo", layer.name, selection.identity, question.n, question.at_step)
    found = view.cache.get(key, lambda: _ablation(resolved, check), check)
    outputs = _outputs(resolved, found.whole, resolved.queries, check)
    ablated = _outputs(resolved, found.kept, resolved.queries, check)
    predicted, second = _two_largest(outputs)
    margin = _margins(outputs, predicted)
    changes, outcomes = [(_margins(ablated, predicted) - margin)[:, None]], [ablated.argmax(axis=1)[:, None]]
    for sets in found.sets:
        changed, best = _without(resolved, sets, outputs, predicted, margin, check)
        changes.append(changed)
        outcomes.append(best)
    return Placebos(
        labels_of(view, layer, question.queries, len(outputs)),
        predicted,
        second,
        margin,
        np.concatenate(changes, axis=1),
        np.concatenate(outcomes, axis=1),
        len(found.sets[0].members),
        found.siblings,
        found.why_none,
        found.removed,
        found.count,
        found.unit,
        found.cancellation,
        found.whole.status,
        layer.space,
        resolved.scan(),
    )


def _ablation(resolved: Resolved[Placebo], check: Check) -> Ablation:
    question, view, layer, selection = resolved.question, resolved.view, resolved.layer, resolved.selection
    stored, at_step, inexact = layer.stored, question.at_step, question.allow_inexact
    every = mask.selection(view, stored, None, check)
    if selection.count == every.count:
        raise BadInput(
            "where keeps every slot, so nothing is ablated.",
            hint="Write a condition that is false for the slots to remove, for example where=\"dataset <> 'mnist'\".",
            field="where",
        )
    shared = tied(view, stored, None, check)
    whole = rebuild(view, stored, every_slot(view), at_step, inexact, check)
    selections = {stored.name: selection, **tied(view, stored, question.where, check)}
    kept = rebuilt_under(view, stored, selections, at_step, inexact, check)
    layers = {stored.name: stored, **{name: view.snapshot.layer(name) for name in shared}}
    key = ("placebo samples", *layers, at_step)
    samples = view.cache.get(key, lambda: _samples(view, layers, at_step, check), check)
    used = view.slot_steps(stored) < samples.stop
    if not (used & ~selection.stays).any():
        raise BadInput("where leaves out no slot before at_step.", hint="Ask about a later step.", field="at_step")
    removed = _removed(samples.numbers[stored.name][used], samples.count, ~selection.stays[used])
    random = _random_sets(samples, removed, question.n)
    siblings, why_none = _siblings(resolved, layers, used, check)
    linear = weighs_no_slot(view.snapshot, stored.weights) is None
    return Ablation(
        whole,
        kept,
        [_weighed(resolved, sets, check) for sets in (random, siblings) if sets is not None],
        siblings.names if siblings is not None else (),
        why_none,
        removed,
        samples.count,
        samples.unit,
        cancellation.cancellation(view, layer, selection, at_step, inexact, check) if linear else None,
    )


def _removed(samples: NDArray[np.int64], count: int, removed: NDArray[np.bool_]) -> int:
    """How many samples an ablation leaves out: those of which no slot stays; of an ablation that leaves out parts of
    samples, as many as have so many slots.
    """
    slots, gone = np.bincount(samples, minlength=count), np.bincount(samples[removed], minlength=count)
    if np.array_equal(gone[gone > 0], slots[gone > 0]):
        return int(np.count_nonzero(gone))
    return int(np.clip(round(count * removed.mean()), 1, max(1, count - 1)))


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples that a layer, and those that share a parameter with it, saw before a step."""

    unit: str
    numbers: Numbers
    """By layer, the sample of each entry; `count` for entries of later steps."""
    count: int
    stop: int
    """One past the last step."""

    @property
    def nbytes(self) -> int:
        return sum(own.nbytes for own in self.numbers.values())


def _samples(view: View, layers: dict[str, Layer], at_step: int | None, check: Check) -> Samples:
    """Raises BadInput where the layers number samples by different means."""
    stop = view.snapshot.steps if at_step is None else at_step
    known = {name: sample_numbers(view, layer, check) for name, layer in layers.items()}
    if len({(own.unit, layers[name].space) for name, own in known.items()}) > 1:
        raise BadInput(
            f"layers {', '.join(layers)} share a parameter and have slots of several spaces.",
            hint="A placebo needs a layer with parameters of its own, or of its space.",
            field="layer",
        )
    used = {name: view.slot_steps(layer) < stop for name, layer in layers.items()}
    present = np.unique(np.concatenate([known[name].numbers[used[name]] for name in layers]))
    numbers = {
        name: np.where(used[name], np.searchsorted(present, known[name].numbers), len(present)) for name in layers
    }
    (unit,) = {own.unit for own in known.values()}
    return Samples(unit, numbers, len(present), stop)


def _random_sets(samples: Samples, removed: int, n: int) -> Sets:
    """Unions of buckets that hold about as many samples as were removed; the last group is what no bucket holds.

    Where at least a sixteenth of the samples are removed, or stay, the buckets share out all of them, and are the same
    for every ablation. Below that they hold a quarter of the samples of a set each, or all of them.
    """
    count = samples.count
    smaller = max(1, min(removed, count - removed))
    if 16 * smaller >= count:
        buckets = min(BUCKETS, count)
        each, size = max(1, round(buckets * smaller / count)), count / buckets
    else:
        each = 4 if 16 * smaller >= BUCKETS else 1
        size = smaller / each
        buckets = min(BUCKETS, int(count // size))
    bounds = np.round(np.arange(1, buckets + 1) * size).astype(np.int64)
    generator = np.random.default_rng(0)
    place = generator.permutation(count)
    bucket = np.searchsorted(bounds, place, side="right")  # `buckets` for what none holds
    members = np.pad(_drawn(generator, buckets, each, min(n, comb(buckets, each))), ((0, 0), (0, 1)))
    if 2 * removed > count:
        members = ~members
    bucket = np.append(bucket, buckets)  # of entries of later steps
    numbers = {name: bucket[own] for name, own in samples.numbers.items()}
    return Sets(numbers, members, identity=f"{buckets} buckets of {size} of {count} until {samples.stop}")


def _drawn(
    generator: np.random.Generator, count: int, each: int, n: int, apart_from: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """bool[n, count]: n different sets of `each` things, of which there must be as many."""
    found, seen = np.zeros((n, count), dtype=bool), {b"" if apart_from is None else apart_from.tobytes()}
    for own in found:
        while not own.any() or own.tobytes() in seen:
            own[:] = False
            own[generator.choice(count, each, replace=False)] = True
        seen.add(own.tobytes())
    return found


def _siblings(
    resolved: Resolved[Placebo], layers: dict[str, Layer], used: NDArray[np.bool_], check: Check
) -> tuple[Sets | None, str]:
    """The siblings of the ablation, or why it has none."""
    question, view, layer, selection = resolved.question, resolved.view, resolved.layer.stored, resolved.selection
    spaces = [view.snapshot.space(name) for name in view.snapshot.spaces]
    assert question.where is not None, "a Placebo has a filter"
    columns = mask.checked_expression(view.snapshot.space(layer.space), spaces, question.where, view.datasets).columns
    if len(layers) > 1:
        return None, "the layer shares a parameter with another one"
    if not columns:
        return None, "the filter names no column"
    if set(columns) == {"step"}:
        return _other_spans(view, layer, selection, used, check)
    every = mask.selection(view, layer, None, check)
    try:
        groups = group_entries(view, layer, every, tuple(columns), check, MOST_SIBLINGS)
    except BadInput:
        return None, f"{', '.join(columns)} has more than {MOST_SIBLINGS} values"
    present, own = dense(groups.numbers[used], len(groups.keys), check)
    gone = np.bincount(own[~selection.stays[used]], minlength=len(present)) > 0
    keys = tuple(groups.keys[number] for number in present)
    others = _other_subsets(gone, question.n)
    if not len(others):
        return None, f"{', '.join(columns)} has no other values"
    names = tuple(_name(tuple(columns), keys, own) for own in others)
    return _sets_of(layer, used, own, others, names, f"by {columns}, {len(present)}"), ""


def _other_subsets(gone: NDArray[np.bool_], n: int) -> NDArray[np.bool_]:
    """bool[S, groups]: other sets that leave out, or keep, as many groups: all of them where they are few."""
    count, out = len(gone), int(gone.sum())
    chosen = gone if 2 * out <= count else ~gone
    each = int(chosen.sum())
    if each == 1:
        found = np.eye(count, dtype=bool)[np.flatnonzero(~chosen)]
    else:
        found = _drawn(np.random.default_rng(1), count, each, min(n, comb(count, each) - 1), chosen)
    return found if 2 * out <= count else ~found


def _name(columns: tuple[str, ...], keys: tuple[GroupKey, ...], gone: NDArray[np.bool_]) -> str:
    """ "label = 7", or "all but label = 7" of a sibling that keeps fewer groups than it leaves out."""
    few, prefix = (gone, "") if 2 * gone.sum() <= len(gone) else (~gone, "all but ")
    parts = [
        " and ".join(f"{name} = {value}" for name, value in zip(columns, keys[group], strict=True))
        for group in np.flatnonzero(few)
    ]
    return prefix + " or ".join(parts)


def _other_spans(
    view: View, layer: Layer, selection: Selection, used: NDArray[np.bool_], check: Check
) -> tuple[Sets | None, str]:
    """Other spans of as many steps, evenly over the training, where the ablation leaves out or keeps one span. Steps in
    which the layer has no slot do not count.
    """
    there, numbers = dense(view.slot_steps(layer)[used], view.snapshot.steps, check)
    total, gone = len(there), np.zeros(len(there), dtype=bool)
    gone[numbers[~selection.stays[used]]] = True
    outer = ~gone
    chosen = gone if _is_span(gone) else outer if _is_span(outer) else None
    if chosen is None:
        return None, "the filter leaves out several spans of steps"
    own, length = int(np.flatnonzero(chosen)[0]), int(chosen.sum())
    starts = np.unique(np.linspace(0, total - length, _SPANS + 1).round().astype(int))
    starts = starts[starts != own]
    if not len(starts):
        return None, "no other span has as many steps"
    edges = np.unique(np.concatenate([starts, starts + length, [0, total]]))
    firsts = edges[:-1]
    members = (firsts[None, :] >= starts[:, None]) & (firsts[None, :] < starts[:, None] + length)
    if chosen is outer:
        members = ~members
    word = "" if chosen is gone else "all but "
    names = tuple(f"{word}steps {there[start]} to {there[start + length - 1]}" for start in starts.tolist())
    there = members.any(axis=0)
    places = np.where(there, np.cumsum(there) - 1, np.count_nonzero(there))
    spans = places[np.searchsorted(edges, numbers, side="right") - 1]
    identity = f"steps {edges.tolist()} of {total}, {np.flatnonzero(there).tolist()}"
    return _sets_of(layer, used, spans, members[:, there], names, identity), ""


def _sets_of(
    layer: Layer,
    used: NDArray[np.bool_],
    groups: NDArray[np.int64],
    members: NDArray[np.bool_],
    names: tuple[str, ...],
    identity: str,
) -> Sets:
    """Sets of a layer's own groups, given for the entries that are `used`; the others are one more, in no set."""
    numbers = np.full(len(used), members.shape[1])
    numbers[used] = groups
    return Sets({layer.name: numbers}, np.pad(members, ((0, 0), (0, 1))), names, identity)


def _is_span(steps: NDArray[np.bool_]) -> bool:
    return bool(steps.any()) and int(np.count_nonzero(np.diff(steps.astype(np.int8)) == 1)) + int(steps[0]) == 1


def _two_largest(outputs: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """int64[n] each: the largest output, and the second one; -1 of a layer of one output."""
    predicted = outputs.argmax(axis=1)
    if outputs.shape[1] == 1:
        return predicted, np.full(len(outputs), -1)
    others = outputs.copy()
    others[np.arange(len(outputs)), predicted] = -np.inf
    return predicted, others.argmax(axis=1)


def _margins(outputs: NDArray[np.float64], predicted: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64[n, …] of float64[n, …, d_out]: the predicted output less the largest other one, if there is any."""
    chosen = predicted.reshape(-1, *[1] * (outputs.ndim - 1))
    own = np.take_along_axis(outputs, np.broadcast_to(chosen, (*outputs.shape[:-1], 1)), axis=-1)[..., 0]
    if outputs.shape[-1] == 1:
        return np.asarray(own)
    others = np.where(np.arange(outputs.shape[-1]) == chosen, -np.inf, outputs)
    return np.asarray(own - others.max(axis=-1))


def _outputs(
    resolved: Resolved[Placebo], weights: RebuiltWeights, queries: NDArray[np.float32], check: Check
) -> NDArray[np.float64]:
    """float64[n, d_out], bias included."""
    own = weights.of(resolved.layer)
    found = products(own, queries, check, resolved.layer.groups)
    return found if own.bias is None else found + own.bias


def _without(
    resolved: Resolved[Placebo],
    sets: Weighed,
    outputs: NDArray[np.float64],
    predicted: NDArray[np.int64],
    margin: NDArray[np.float64],
    check: Check,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """float64[n, sets] and int64[n, sets]: how the margin changes without each set, and the largest output then."""
    changes = np.empty((len(outputs), len(sets.members)))
    outcomes = np.empty(changes.shape, dtype=np.int64)
    members, queries = sets.members.astype(np.float64), resolved.queries
    size = max(1, min(AT_ONCE, _AT_ONCE_BYTES // (8 * sum(members.shape) * outputs.shape[1])))
    for start in range(0, len(queries), size):
        check()
        part = slice(start, start + size)
        brought = np.stack([_outputs(resolved, own, queries[part], check) for own in sets.weights], axis=1)
        less = members @ brought  # [n, sets, d_out], a product for each query: the same bits in any batch
        left = outputs[part, None] - less
        changes[part] = _margins(left, predicted[part]) - margin[part, None]
        outcomes[part] = left.argmax(axis=2)
    return changes, outcomes


def _weighed(resolved: Resolved[Placebo], sets: Sets, check: Check) -> Weighed:
    """With the weights of each group that is in a set; from beside the keys where they were made before. Raises
    BadInput where they have no room.
    """
    view, layer, at_step = resolved.view, resolved.layer.stored, resolved.question.at_step
    groups = sets.members.shape[1] - (not sets.members[:, -1].any())  # nobody asks for what the last one brought then
    each = 8 * layer.d_out * (layer.weight_width + 1)
    if each * groups > _BUDGET:
        raise BadInput(
            f"The weights of {groups} groups of slots take {each * groups / 2**30:.1f} GiB; the limit is "
            f"{_BUDGET / 2**30:.0f} GiB.",
            hint="Pass a layer with fewer weights.",
            field="layer",
        )
    key = ("group weights", layer.name, sets.identity, groups, at_step)
    made = view.cache.get(key, lambda: kept_group_weights(view, layer, sets.numbers, groups, at_step, check), check)
    return Weighed(sets.members[:, :groups], made)

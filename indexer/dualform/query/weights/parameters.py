"""The whole network's parameters under a filter, or as of an earlier step.

What no slot explains of a network as of a step: norms, running statistics, biases of no layer.

No mask moves them: they are as all of training left them by that step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Status
from dualform.errors import EmptyMask, Inexact
from dualform.query.view import Check, View
from dualform.query.weights.coefficients import weights
from dualform.query.weights.exactness import with_precision
from dualform.query.weights.missing_terms import why_scores_only
from dualform.query.weights.reconstruction import rebuild, require
from dualform.query.where import mask
from dualform.questions.arguments import check_step
from dualform.questions.filters import Filter, FilterOrFilters
from dualform.store.layer import Layer, Parameter, whole


@dataclass(frozen=True)
class OtherParameters:
    """A state dict whose recorded blocks are still to be rebuilt."""

    arrays: Mapping[str, NDArray[Any]]
    as_at_the_end: frozenset[str]
    """Those that are known of the end of the training alone, and stand as they were then."""


def other_parameters_as_of(view: View, at_step: int | None) -> OtherParameters:
    """Every parameter and buffer as it was once `at_step` recorded steps were taken; None for all.

    Raises Inexact where the recorder kept some, and not of that step: it names the nearest that has them.
    """
    snapshot, final = view.snapshot, view.stored_weights("final")
    stop = snapshot.steps if at_step is None else at_step
    number = bisect_right(snapshot.first_steps, stop) - 1
    run, before = snapshot.runs[number], snapshot.first_steps[number]
    if stop == before:
        return OtherParameters(weights(view, number, "initial"), frozenset())
    if run.others is None:
        return OtherParameters(final, frozenset(_may_have_moved(view, final)))
    if stop == snapshot.steps and snapshot.ended:
        return OtherParameters(final, frozenset())
    row = run.others.at(stop - before)
    if row is None:
        moments = [
            before,
            *(before + moment for moment in run.others.moments),
            *([snapshot.steps] if snapshot.ended else []),
        ]
        nearest = min(moments, key=lambda moment: abs(moment - stop))
        raise Inexact(
            f"Parameters outside the recorded layers are unknown at step {stop}: "
            f"{_first_names(sorted(run.others.names))}.",
            hint=f"Pass at_step={nearest}, the nearest step that has them. Outputs of single layers need none.",
            field="at_step",
        )
    return OtherParameters({**final, **row}, frozenset(_may_have_moved(view, final) - row.keys()))


def _may_have_moved(view: View, final: Mapping[str, NDArray[Any]]) -> set[str]:
    """What does not end with the bits that it began with; all of it where the end is not known."""
    if not view.snapshot.ended:
        return set(final)
    initial = view.stored_weights("initial")

    def moved() -> set[str]:
        return {name for name, own in final.items() if name not in initial or own.tobytes() != initial[name].tobytes()}

    return view.cache.get(("moved by the end",), moved)


def _first_names(names: list[str]) -> str:
    """A few of them, and how many there are."""
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


_LISTED = 10
"""Layers that a refusal names."""


@dataclass(frozen=True, eq=False)
class _Rebuilt:
    """The parameters of the recorded layers."""

    arrays: Mapping[str, NDArray[Any]]
    """By name, float64 where the training's are, else float32."""
    partly: Sequence[str]
    """Names of those of which only some blocks are recorded, and the rest is as it was given."""
    statuses: Mapping[str, Status]
    """As Network has them; so are the next two."""
    unrecorded_change: Mapping[str, float]
    kept: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Network:
    """A whole network."""

    arrays: Mapping[str, NDArray[Any]]
    """Every parameter and buffer under the model's own name: those of recorded layers rebuilt, in float32,
    or in float64 where the training's are."""
    not_recorded: tuple[str, ...]
    """Those of no recorded layer, and "the rest of" those of which only some blocks are recorded, which were not kept
    step by step: they stand as at the end of the training.
    """
    others: tuple[str, ...]
    """The same, of those that stand as they were at the step that was asked for."""
    statuses: Mapping[str, Status]
    """By layer."""
    unrecorded_change: Mapping[str, float]
    """By layer: the norm of what stands whatever a mask leaves, relative to the distance that the weights moved."""
    kept: Mapping[str, int]
    """By slot space: how many slots the mask left, of the layer that keeps most."""


def state_dict(
    view: View, where: FilterOrFilters | None, at_step: int | None, allow_inexact: bool, check: Check
) -> Network:
    """The network as of a step under one mask, or under masks by slot space; spaces that are not named stay whole.

    Raises Inexact where a recorded layer cannot
    be rebuilt well enough, and where what no slot explains was not kept of the step; EmptyMask where no slot is left.
    """
    check_step(at_step, view.snapshot.steps)
    _require_all(view, where, at_step, allow_inexact, check)
    unexplained = other_parameters_as_of(view, at_step)
    rebuilt = _recorded(view, unexplained.arrays, where, at_step, allow_inexact, check)
    arrays = dict(rebuilt.arrays)
    arrays |= {name: arrays[known] for name, known in view.snapshot.aliases.items() if known in arrays}
    others = {name: np.array(array) for name, array in unexplained.arrays.items() if name not in arrays}
    names = {**{name: name for name in sorted(others)}, **{name: f"the rest of {name}" for name in rebuilt.partly}}
    at_end = tuple(said for name, said in names.items() if name in unexplained.as_at_the_end)
    at_the_step = tuple(said for name, said in names.items() if name not in unexplained.as_at_the_end)
    return Network({**arrays, **others}, at_end, at_the_step, rebuilt.statuses, rebuilt.unrecorded_change, rebuilt.kept)


def _asked(view: View, where: FilterOrFilters | None) -> dict[str, tuple[Layer, str | Filter | None]]:
    """The layers that are to be rebuilt, each with its mask.

    One that stands for no parameter, as where its weight is computed from others, is so only under a mask: it cannot.
    """
    layers = view.snapshot.layers.items()
    masks = {name: where.get(one.space) if isinstance(where, Mapping) else where for name, one in layers}
    return {name: (one, masks[name]) for name, one in layers if one.parameters or masks[name] is not None}


def _require_all(
    view: View, where: FilterOrFilters | None, at_step: int | None, allow_inexact: bool, check: Check
) -> None:
    """Raises Inexact, naming every layer that cannot be rebuilt well enough."""
    refusals = dict[str, Inexact]()
    for layer, _ in _asked(view, where).values():
        try:
            require(view, layer, at_step, allow_inexact, check)
        except Inexact as refusal:
            refusals[layer.name] = refusal
    if refusals:
        raise Inexact(f"The network cannot be reconstructed:{_listed(refusals)}", hint=_hint(view, refusals))


def _listed(refusals: Mapping[str, Inexact]) -> str:
    """What is said of one layer; of several, a line each."""
    said = [f"{refusal.message.rstrip('.')}." for refusal in refusals.values()]
    if len(said) == 1:
        return f" {said[0]}"
    more = [f"{len(said) - _LISTED} more layers."] if len(said) > _LISTED else []
    return "".join(f"\n  {line}" for line in said[:_LISTED] + more)


def _hint(view: View, refusals: Mapping[str, Inexact]) -> str:
    """What may be asked instead: no layer is answered by itself that was refused here."""
    stuck = any(why_scores_only(view, view.snapshot.layer(name)) for name in refusals)
    others = [name for name in view.snapshot.layers if name not in refusals]
    if stuck and others:
        return f"Ask for the output of single layers instead: {', '.join(others)}."
    hints = {refusal.hint for refusal in refusals.values()}
    if len(hints) == 1:
        return hints.pop()
    return (
        "Attention scores are exact for the stored slots."
        if stuck
        else "Pass allow_inexact=True for approximate weights."
    )


def _recorded(
    view: View,
    unexplained: Mapping[str, NDArray[Any]],
    where: FilterOrFilters | None,
    at_step: int | None,
    allow_inexact: bool,
    check: Check,
) -> _Rebuilt:
    """`unexplained`: every parameter, from which the rest is taken of those that are recorded in part."""
    asked = _asked(view, where)
    layers = {name: layer for name, (layer, _) in asked.items()}
    selections = {name: mask.selection(view, layer, own, check) for name, (layer, own) in asked.items()}
    kept = dict[str, int]()
    for name, selection in selections.items():
        kept[layers[name].space] = max(kept.get(layers[name].space, 0), selection.count)
    if where and not any(kept.values()):
        raise EmptyMask(f"where matches no slot: {where}", field="where")
    blocks = dict[Parameter, NDArray[np.float64]]()
    statuses, unrecorded_change = dict[str, Status](), dict[str, float]()
    for name, layer in layers.items():
        rebuilt = rebuild(view, layer, selections[name], at_step, allow_inexact, check, selections)
        blocks |= {block: rebuilt.parameters[block.block_name] for block in layer.parameters}
        statuses[name], unrecorded_change[name] = with_precision(view, layer, rebuilt.status), rebuilt.unrecorded_change
    arrays, partly = _placed(view, blocks, unexplained)
    return _Rebuilt(arrays, partly, statuses, unrecorded_change, kept)


def _placed(
    view: View, blocks: Mapping[Parameter, NDArray[np.float64]], unexplained: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """The blocks in their parameters, by name, in float32 or the training's float64; and the names of parameters that
    have a rest besides, which is that of `unexplained`.
    """
    initial = view.stored_weights("initial")
    arrays, partly = dict[str, NDArray[Any]](), list[str]()
    held = dict[str, list[Parameter]]()
    for block in blocks:
        held.setdefault(block.name, []).append(block)
    for name, own in held.items():
        shape = initial[name].shape
        rest = unexplained.get(name)
        last = rest if rest is not None and rest.shape == shape else initial[name]
        arrays[name] = last.astype(np.float64 if last.dtype == np.float64 else np.float32, order="C")
        for block in own:
            block.put(arrays[name], blocks[block])
        if not whole(own, shape):
            partly.append(name)
    return arrays, partly

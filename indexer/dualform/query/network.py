"""Answers that are rebuilt from the record: a layer's outputs, the network's weights, and what cancels.

No filter moves what no slot explains of a network: norms, running statistics, biases of no layer. They are as all of
training left them by the step.
"""

from __future__ import annotations

import time
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Cancellation, Concentration, Outputs, Scan, Status, Weights
from dualform.errors import BadInput, EmptyMask, Inexact, NotFound
from dualform.query.resolved import Resolved
from dualform.query.slots import check_space
from dualform.query.view import Check, View
from dualform.query.weights import cancellation as figures
from dualform.query.weights.coefficients import weighs_no_slot, weights as stored_weights
from dualform.query.weights.exactness import with_precision
from dualform.query.weights.missing_terms import why_scores_only
from dualform.query.weights.output import direct_outputs, outputs, outputs_by_difference
from dualform.query.weights.reconstruction import rebuild, rebuild_without_slots, require, tied
from dualform.query.weights.softmax import softmax
from dualform.query.where import mask
from dualform.questions import MaskCancellation, NetworkWeights, Output
from dualform.questions.arguments import check_step
from dualform.questions.filters import Filter, FilterOrFilters
from dualform.store.layer import Layer, Parameter, whole


def output(resolved: Resolved[Output], check: Check) -> Outputs:
    """The layer's outputs when only the selected slots count, weighed by the kernel that was asked for."""
    question, layer, effective = resolved.question, resolved.layer, None
    match question.kernel:
        case "softmax":
            values, status, unrecorded_change, effective = softmax(resolved, check)
        case "linear":
            values, status, unrecorded_change = _linear(resolved, check)
        case other:
            raise BadInput(f"Unknown kernel {other!r}.", field="kernel")
    return Outputs(
        values,
        layer.space,
        status,
        unrecorded_change,
        resolved.scan(),
        question.kernel,
        question.temperature,
        question.initial,
        effective,
    )


def _linear(resolved: Resolved[Output], check: Check) -> tuple[NDArray[np.float32], Status, float]:
    """The outputs, their status, and how much stands of the weights whatever the mask leaves."""
    question, view, layer, selection = resolved.question, resolved.view, resolved.layer, resolved.selection
    at_step, inexact = question.at_step, question.allow_inexact
    partners = tied(view, layer.stored, question.where, check)
    check_step(at_step, view.snapshot.steps)
    status = require(view, layer.stored, at_step, inexact, check)
    at_end = at_step is None or at_step == view.snapshot.steps
    if question.initial and not partners and (status.exact or not at_end):
        direct = direct_outputs(view, layer, selection, at_step, resolved.queries, check)
        if direct is None:
            direct = outputs_by_difference(view, layer, selection, at_step, inexact, resolved.queries, check)
        if direct is not None:
            return direct, status, 0.0
    selections = {layer.stored.name: selection, **partners}
    weights = rebuild(view, layer.stored, selections, at_step, inexact, check)
    if not question.initial:
        weights = weights.less(rebuild_without_slots(view, layer.stored, at_step, inexact, check))
    return outputs(weights.of(layer), resolved.queries, check, layer.groups), weights.status, weights.unrecorded_change


def weights(view: View, question: NetworkWeights, check: Check) -> Weights:
    """Every parameter and buffer under the model's own name, as of a step, under one mask or under masks by slot space;
    spaces that are not named stay whole. Those of recorded layers are float32, or float64 where the training's are.

    Warns of what is not recorded, unless all of it stands as at the end, which is asked for. Raises Inexact where a
    layer cannot be rebuilt well enough, and where what no slot explains was not kept of the step; EmptyMask where no
    slot is left.
    """
    began, where, at_step, inexact = time.perf_counter(), question.where, question.at_step, question.allow_inexact
    least = sum(array.nbytes for array in view.stored_weights("initial").values())
    view.bounds.require(1, least, "Ask for outputs of its layers, or where the memory lies.")
    if where is not None:
        _require_masks(view, where, view.snapshot.spaces_of_layers)
    check_step(at_step, view.snapshot.steps)
    # One that stands for no parameter, as where its weight is computed from others, is asked for under a mask alone.
    masks = {layer: _mask_of(layer, where) for layer in view.snapshot.layers.values()}
    layers = [layer for layer, own in masks.items() if layer.parameters or own is not None]
    with _one_mask_for_all(where):
        _require_all(view, layers, at_step, inexact, check)
        known = other_parameters_as_of(view, at_step)
        selections = {layer.name: mask.selection(view, layer, masks[layer], check) for layer in layers}
        kept = dict[str, int]()
        for layer in layers:
            kept[layer.space] = max(kept.get(layer.space, 0), selections[layer.name].count)
        if where and not any(kept.values()):
            raise EmptyMask(f"where matches no slot: {where}", field="where")
        rebuilt = {layer: rebuild(view, layer, selections, at_step, inexact, check) for layer in layers}
    blocks = {block: own.parameters[block.block_name] for layer, own in rebuilt.items() for block in layer.parameters}
    arrays, partly = _placed(view, blocks, known.arrays)
    aliases = {name: arrays[own] for name, own in view.snapshot.aliases.items() if own in arrays}
    others = {name: np.array(own) for name, own in known.arrays.items() if name not in arrays and name not in aliases}
    said = {**{name: name for name in sorted(others)}, **{name: f"the rest of {name}" for name in partly}}
    # Parameters of recorded layers in the layers' order, then the others by name: files keep no order.
    further = aliases | others
    found = Weights(
        arrays={**arrays, **{name: further[name] for name in sorted(further)}},
        statuses={layer.name: with_precision(view, layer, own.status) for layer, own in rebuilt.items()},
        unrecorded_change={layer.name: own.unrecorded_change for layer, own in rebuilt.items()},
        not_recorded=tuple(text for name, text in said.items() if name in known.as_at_the_end),
        others=tuple(text for name, text in said.items() if name not in known.as_at_the_end),
        kept=kept,
        scan=_scan(view, kept, began, at_step),
        ended=view.snapshot.ended,
    )
    if found.remark and not (found.ended and where is None and at_step is None):
        warnings.warn(f"{found.remark}.", stacklevel=5)
    return found


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
        return OtherParameters(stored_weights(view, number, "initial"), frozenset())
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


def _require_all(view: View, layers: Sequence[Layer], at_step: int | None, allow_inexact: bool, check: Check) -> None:
    """Raises Inexact, naming every layer that cannot be rebuilt well enough."""
    refusals = dict[str, Inexact]()
    for layer in layers:
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


def cancellation(view: View, question: MaskCancellation, check: Check) -> Cancellation:
    """The figures of each layer that the mask speaks of. Raises Inexact where the record does not explain one."""
    began = time.perf_counter()
    asked = [*view.snapshot.layers.values()] if question.layer is None else [view.snapshot.layer(question.layer)]
    masks = question.where
    _require_masks(view, masks, [other.space for layer in asked for other in _holders(view, layer.stored)])
    found, moves, kept = dict[str, float](), dict[str, Concentration](), dict[str, int]()
    for layer in asked:
        if _mask_of(layer, masks) is None:
            continue
        with _one_mask_for_all(masks):
            # Of the layer, and of the others that hold one of its blocks.
            selections = {
                other.name: mask.selection(view, other, _mask_of(other, masks), check)
                for other in _holders(view, layer.stored)
            }
        own = selections[layer.stored.name]
        kept[layer.space] = own.count
        if weighs_no_slot(view.snapshot, layer.stored.weights) is None:
            found[layer.name] = figures.cancellation(view, layer, own, question.at_step, question.allow_inexact, check)
        else:
            moves[layer.name] = figures.concentration(
                view, layer, selections, question.at_step, question.allow_inexact, check
            )
    return Cancellation(found, _scan(view, kept, began, question.at_step), moves)


@contextmanager
def _one_mask_for_all(masks: FilterOrFilters | None) -> Iterator[None]:
    """A column that some space lacks is refused with the way to mask those spaces alone that have it."""
    try:
        yield
    except NotFound as refusal:
        if isinstance(masks, str) and refusal.hint.startswith(mask.HAVING):
            further = "Filter only these spaces: where={space: SQL}, on the command line --where-space SPACE SQL."
            raise NotFound(refusal.message, hint=f"{refusal.hint} {further}", field=refusal.field) from None
        raise


def _holders(view: View, layer: Layer) -> list[Layer]:
    """The layers that hold a block of a layer; the layer itself where it has none."""
    return view.holders(layer.parameters) or [layer]


def _mask_of(layer: Layer, masks: FilterOrFilters | None) -> str | Filter | None:
    return masks.get(layer.space) if isinstance(masks, Mapping) else masks


def _require_masks(view: View, where: FilterOrFilters, spaces: Sequence[str]) -> None:
    """Raises NotFound for a mask of a space that does not exist, BadInput for one that names slots where several spaces
    are asked for.
    """
    for space in where if isinstance(where, Mapping) else ():
        check_space(view, space)
    if not isinstance(where, Mapping):
        hint = f'Name it, for example where={{"{next(iter(spaces), "sample")}": {{"slot": ids}}}}.'
        mask.require_one_space(view, set(spaces), where, hint)


def _scan(view: View, kept: Mapping[str, int], began: float, at_step: int | None) -> Scan:
    slots = sum(view.snapshot.space(space).count for space in kept)
    return view.scan(began, slots, sum(kept.values()), at_step=at_step)

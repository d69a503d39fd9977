"""Answers that are rebuilt from the record: a layer's outputs, the network's weights, and what cancels."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Cancellation, Concentration, Outputs, Scan, Status, Weights
from dualform.errors import BadInput, NotFound
from dualform.query.resolved import Resolved
from dualform.query.slots import check_space
from dualform.query.view import Check, View
from dualform.query.weights import cancellation as figures, parameters
from dualform.query.weights.cancellation import concentration
from dualform.query.weights.coefficients import weighs_no_slot
from dualform.query.weights.output import direct_outputs, outputs, outputs_by_difference
from dualform.query.weights.reconstruction import rebuild, rebuild_without_slots, require, tied
from dualform.query.weights.softmax import softmax
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.questions import MaskCancellation, NetworkWeights, Output
from dualform.questions.arguments import check_step
from dualform.questions.filters import Filter, FilterOrFilters
from dualform.store.layer import Layer


def output(resolved: Resolved[Output], check: Check) -> Outputs:
    """The layer's outputs when only the selected slots count, weighed by the kernel that was asked for."""
    question, view, layer, effective = resolved.question, resolved.view, resolved.layer, None
    match question.kernel:
        case "softmax":
            weighed = softmax(view, layer, resolved.selection, question, resolved.queries, check)
            values, effective = weighed.values, weighed.effective_slots
            status, unrecorded_change = weighed.status, weighed.unrecorded_change
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
    weights = rebuild(view, layer.stored, selection, at_step, inexact, check, partners)
    if not question.initial:
        weights = weights.less(rebuild_without_slots(view, layer.stored, at_step, inexact, check))
    return outputs(weights.of(layer), resolved.queries, check, layer.groups), weights.status, weights.unrecorded_change


def weights(view: View, question: NetworkWeights, check: Check) -> Weights:
    """Every parameter and buffer under the model's own name. See parameters.state_dict.

    Warns of what is not recorded, unless all of it stands as at the end, which is asked for.
    """
    began = time.perf_counter()
    _require_fitting(view)
    masks = None if question.where is None else _masks(view, question.where, view.snapshot.spaces_of_layers)
    with _one_mask_for_all(masks):
        network = parameters.state_dict(view, masks, question.at_step, question.allow_inexact, check)
    found = Weights(
        arrays=_ordered(view, network.arrays),
        statuses=network.statuses,
        unrecorded_change=network.unrecorded_change,
        not_recorded=network.not_recorded,
        others=network.others,
        kept=network.kept,
        scan=_scan(view, network.kept, began, question.at_step),
        ended=view.snapshot.ended,
    )
    if found.remark and not (found.ended and question.where is None and question.at_step is None):
        warnings.warn(f"{found.remark}.", stacklevel=5)
    return found


def _require_fitting(view: View) -> None:
    """Raises BadInput where an answer has no room for the weights."""
    least = sum(array.nbytes for array in view.stored_weights("initial").values())
    view.bounds.require(1, least, "Ask for outputs of its layers, or where the memory lies.")


def _ordered(view: View, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Parameters of recorded layers in the layers' order, then the others by name: files keep no order."""
    recorded = [part.name for layer in view.snapshot.layers.values() for part in layer.parameters]
    known = dict.fromkeys(name for name in recorded if name in arrays)
    return {name: arrays[name] for name in [*known, *sorted(name for name in arrays if name not in known)]}


def cancellation(view: View, question: MaskCancellation, check: Check) -> Cancellation:
    """The figures of each layer that the mask speaks of. Raises Inexact where the record does not explain one."""
    began = time.perf_counter()
    asked = [*view.snapshot.layers.values()] if question.layer is None else [view.snapshot.layer(question.layer)]
    holders = [other for layer in asked for other in _holders(view, layer.stored)]
    masks = _masks(view, question.where, [other.space for other in holders])
    found, moves, kept = dict[str, float](), dict[str, Concentration](), dict[str, int]()
    for layer in asked:
        if _mask_of(layer, masks) is None:
            continue
        with _one_mask_for_all(masks):
            selections = _selections(view, layer.stored, masks, check)
        own = selections[layer.stored.name]
        kept[layer.space] = own.count
        if weighs_no_slot(view.snapshot, layer.stored.weights) is None:
            found[layer.name] = figures.cancellation(view, layer, own, question.at_step, question.allow_inexact, check)
        else:
            moves[layer.name] = concentration(view, layer, selections, question.at_step, question.allow_inexact, check)
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


def _selections(view: View, layer: Layer, masks: FilterOrFilters, check: Check) -> dict[str, Selection]:
    """What the masks leave of a layer, and of the others that hold one of its blocks."""
    return {other.name: mask.selection(view, other, _mask_of(other, masks), check) for other in _holders(view, layer)}


def _holders(view: View, layer: Layer) -> list[Layer]:
    """The layer, and the others that hold one of its blocks."""
    blocks = {block.block_name for block in layer.parameters}
    return [
        other
        for other in view.snapshot.layers.values()
        if other.name == layer.name or not blocks.isdisjoint(block.block_name for block in other.parameters)
    ]


def _mask_of(layer: Layer, masks: FilterOrFilters) -> str | Filter | None:
    return masks.get(layer.space) if isinstance(masks, Mapping) else masks


def _masks(view: View, where: FilterOrFilters, spaces: Sequence[str]) -> FilterOrFilters:
    """The masks as they are. Raises NotFound for one of a space that does not exist, BadInput for one that names slots
    where several spaces are asked for.
    """
    for space in where if isinstance(where, Mapping) else ():
        check_space(view, space)
    if not isinstance(where, Mapping):
        hint = f'Name it, for example where={{"{next(iter(spaces), "sample")}": {{"slot": ids}}}}.'
        mask.require_one_space(view, set(spaces), where, hint)
    return where


def _scan(view: View, kept: Mapping[str, int], began: float, at_step: int | None) -> Scan:
    slots = sum(view.snapshot.space(space).count for space in kept)
    return view.scan(began, slots, sum(kept.values()), at_step=at_step)

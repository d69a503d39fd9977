"""The rebuilt weights of a layer, and how well they match the trained ones.

The weights of a layer, rebuilt from the memory.

Shapes: d_in, d_out.

Under a mask they are what the slots that stay make of them (trajectory.py): a mask is arithmetic removal from this
training's sum, not a training without the others. W_0 and the buffers that the optimizer had when recording
began (momentum, Adam's averages) are no slots, so no mask removes them.

Where the record is not exact, the end of the training has one more term, W_T minus the sum over all slots: what moved
outside the record. It stands like W_0 whatever the mask leaves, and it is no part of the status. So does the sum of
what was deleted (missing_terms.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dualform.answers import Reconstruction, Reconstructions, Status
from dualform.errors import BadInput, Inexact
from dualform.query.view import Check, View
from dualform.query.weights.exactness import (
    BFLOAT16,
    EXACT,
    NAMES,
    BlockDistance,
    name_of,
    name_of_block,
    roundings,
    status,
    status_of_watched,
    stood_still,
    unwatched,
    with_precision,
)
from dualform.query.weights.missing_terms import deleted_sum_added, why_scores_only
from dualform.query.weights.slot_gradients import rounding_gradients
from dualform.query.weights.trajectory import (
    Selections,
    blocks_of,
    build,
    every_slot,
    length,
    no_slot,
    unrecorded_changes,
    way,
)
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.questions.arguments import check_step
from dualform.questions.filters import Filter
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer

_EXACTLY = Status("exact")
_AGREES = 3.0
"""Times the rounding floor: what the watch sees along a few directions is an estimate of a norm."""


def certify(view: View, check: Check) -> Reconstructions:
    """One reconstruction error per recorded layer."""
    began = time.perf_counter()
    found = {name: reconstruction(view, layer, check) for name, layer in view.snapshot.layers.items()}
    slots = sum(view.snapshot.space(space).count for space in view.snapshot.spaces_of_layers)
    return Reconstructions(found, view.scan(began, slots, slots))


def reconstruction(view: View, layer: Layer, check: Check) -> Reconstruction:
    """The reconstruction error of a layer, measured once a snapshot."""
    return view.cache.get(("reconstruction", layer.name), lambda: _certify(view, layer, check))


def _certify(view: View, layer: Layer, check: Check) -> Reconstruction:
    measured = status(view, layer)
    if why_scores_only(view, layer):
        return Reconstruction(None, measured)
    terms = unrecorded_changes(view, layer, every_slot(view), check, afresh=True)
    if not terms:
        # Nothing on disk tells a training that still runs from one that was killed.
        reason = "there are no final weights: the recording was cut off, or still runs."
        cut_off = replace(measured, name="approximate", reason=reason)
        return Reconstruction(None, cut_off if measured.exact else measured)
    if not unwatched(view, layer) and stood_still(view, layer):
        return Reconstruction(None, measured)
    went = way(view, layer)
    error, moved = length(terms), length(went)
    # A layer that never moved is rebuilt exactly or not at all.
    share = error / moved if moved else math.inf if error else 0.0
    misses = _misses(view, layer, terms, went)
    if why := unwatched(view, layer):
        found = Reconstruction(share, _unwatched(view, layer, share, misses, why))
    else:
        found = _confirmed(view, share, misses, measured)
    found = replace(found, status=with_precision(view, layer, found.status))
    return replace(found, rounding_share=_nobodys(view, layer) / moved) if moved else found


def _nobodys(view: View, layer: Layer) -> float:
    """How far the numbers moved whose gradient was rounding alone."""
    went = way(view, layer)
    names = [bias.block_name for bias in layer.biases]
    return math.hypot(*(float(np.linalg.norm(went[name][rounding_gradients(view, name).rows])) for name in names))


def _misses(view: View, layer: Layer, terms: Mapping[str, Doubles], went: Mapping[str, Doubles]) -> list[BlockDistance]:
    """Of each block."""
    allowed, found = roundings(view, layer), list[BlockDistance]()
    for block in layer.parameters:
        name = block.block_name
        missed, moved = (float(np.linalg.norm(own[name])) for own in (terms, went))
        found.append(BlockDistance(block, missed, moved, allowed.get(name, 0.0)))
    return found


def _unwatched(view: View, layer: Layer, error: float, misses: Sequence[BlockDistance], why: str) -> Status:
    """The status of a layer of which some block was not watched: what the watch says of the others comes first."""
    watched = status_of_watched(view, layer, view.snapshot.steps)
    if watched.name == "approximate":
        return replace(watched, error=error, rounding=None)
    name = name_of(view, misses)
    if name != "approximate":
        return Status(name, error)
    worst = max(misses, key=lambda miss: (NAMES.index(name_of_block(view, miss)), miss.share))
    missed = (
        f"{worst.share:.1e} of the distance it moved"
        if worst.way
        else f"{worst.accumulated:.1e}, where it did not move"
    )
    return Status("approximate", error, reason=f"the record misses {worst.block.block_name} by {missed}; {why}.")


def _confirmed(view: View, error: float, misses: Sequence[BlockDistance], measured: Status) -> Reconstruction:
    """The reconstruction error of what the pass over the slots found: a status that it contradicts is not repeated.

    The watch estimates norms, so that what was computed in bfloat16 may come out at either side of EXACT.
    """
    limit = BFLOAT16 if measured.name == "exact to bfloat16" else EXACT
    if measured.name == "approximate" or error <= max(limit, _AGREES * (measured.rounding or 0.0)):
        return Reconstruction(error, measured)
    if name_of(view, misses) == "exact to bfloat16":
        return Reconstruction(error, Status("exact to bfloat16", error, measured.rounding))
    reason = (
        f"the record rebuilds the weights to {error:.1e} of the distance they moved, and was measured to do better."
    )
    return Reconstruction(error, Status("approximate", error, measured.rounding, None, reason))


BOUND = 0.1
"""Beyond this share of the distance that the weights moved, nothing is answered unless it is asked for with
allow_inexact=True.
"""


def require(view: View, layer: Layer, at_step: int | None, allow_inexact: bool, check: Check) -> Status:
    """The status. Raises Inexact where a layer cannot be rebuilt, and where that would tell too little of its weights.

    That is so beyond BOUND, and at an earlier step than the end once the record has parted from the weights. Of a rule
    that was not watched, the end has the status that its reconstruction error gives it: a pass over the slots, once a
    snapshot.
    """
    found, at_end = status(view, layer, at_step), at_step is None or at_step == view.snapshot.steps
    if found.name == "scores only":
        hint = (
            "Its attention scores are exact for the stored slots."
            if layer.keys
            else "Record the training with keys=True."
        )
        raise Inexact(f"Layer {layer.name!r} cannot be reconstructed: {found.reason}", hint=hint, field="layer")
    if at_end and not found.exact and unwatched(view, layer):
        found = reconstruction(view, layer, check).status
    if found.name != "approximate" or allow_inexact:
        return found
    if found.error is not None and found.error <= BOUND and (at_end or found.since is None):
        return found
    raise Inexact(
        _refusal(layer, found),
        hint=f"Pass {_elsewhere(found, at_end or not unwatched(view, layer))}allow_inexact=True.",
        field="layer",
    )


def _elsewhere(found: Status, known: bool) -> str:
    """The step that can be asked for instead; `known`: whether the moment that was asked for was looked at."""
    if not known:
        return "at_step=None for the end of the training, which is measured, or "
    return "" if found.since is None else f"at_step={found.since}{' or less' if found.since else ''}, or "


def _refusal(layer: Layer, found: Status) -> str:
    since = "" if found.since is None else f" from step {found.since} on"
    text = f"Layer {layer.name!r} cannot be reconstructed exactly{since}: {found.reason}"
    if found.error is None:
        return f"{text} Its reconstruction error was not measured."
    limit = f", the limit {100 * BOUND:g} %" if found.error > BOUND else ""
    return f"{text} The reconstruction error is {100 * found.error:.3g} %{limit}."


@dataclass(frozen=True, eq=False)
class RebuiltWeights:
    """A layer's weights and biases under a mask, as of a step."""

    weight: Doubles
    """float64[d_out, d_in]; of several blocks along a diagonal, the blocks under one another."""
    bias: Doubles | None
    """float64[d_out]: the sum of all biases; None where there is none."""
    parameters: Mapping[str, Doubles] = field(default_factory=dict)
    """By block, as the layer uses it; float64[d_out, columns] and float64[d_out]."""
    status: Status = field(default_factory=lambda: Status("exact"))
    unrecorded_change: float = 0.0
    """Norm of the unrecorded changes relative to the distance that the weights moved; 0.0 where it is not used."""

    def of(self, layer: Layer) -> RebuiltWeights:
        """Those of a view, of the weights of its stored layer."""
        bias = None if self.bias is None else self.bias[layer.own_values]
        return replace(self, weight=self.weight[layer.own_values], bias=bias, parameters={})

    def blocks(self, groups: int) -> Iterator[RebuiltWeights]:
        """Of a weight that has so many blocks along its diagonal, one block after the other."""
        biases = [None] * groups if self.bias is None else np.split(self.bias, groups)
        for weight, bias in zip(np.split(self.weight, groups), biases, strict=True):
            yield replace(self, weight=weight, bias=bias, parameters={})

    def less(self, other: RebuiltWeights) -> RebuiltWeights:
        """The difference of the weights, without a bias."""
        return replace(self, weight=self.weight - other.weight, bias=None, parameters={}, unrecorded_change=0.0)

    @property
    def nbytes(self) -> int:
        # Weights among the parameters are parts of `weight`.
        return self.weight.nbytes + sum(p.nbytes for p in self.parameters.values() if p.ndim == 1)


def rebuild(
    view: View, layer: Layer, selections: Selections, at_step: int | None, allow_inexact: bool, check: Check
) -> RebuiltWeights:
    """The weights as the selected slots leave them, with the unrecorded change where the record is not exact.

    `selections`: of the layer, and of others that hold a parameter of it. Raises Inexact as `require` says.
    """
    check_step(at_step, view.snapshot.steps)
    status = require(view, layer, at_step, allow_inexact, check)
    identity = tuple(selections[own.name].identity for own in view.holders(layer.parameters))
    return view.cache.get(
        ("weights", layer.name, identity, at_step),
        lambda: _rebuild(view, layer, selections, at_step, status, check),
        check,
    )


def rebuild_without_slots(
    view: View, layer: Layer, at_step: int | None, allow_inexact: bool, check: Check
) -> RebuiltWeights:
    """What of the weights no slot brought. Raises as `rebuild`."""
    return rebuild(view, layer, no_slot(view), at_step, allow_inexact, check)


def recorded(view: View, layer: Layer, selections: Selections, at_step: int | None, check: Check) -> RebuiltWeights:
    """What the record alone makes of the weights, whatever its status: without what moved them outside of it."""
    return joined_blocks(layer, build(view, layer, selections, at_step, check))


def before_the_record(view: View, layer: Layer, at_step: int | None, check: Check) -> RebuiltWeights:
    """What of that began before: a_0 W_0 and the optimizer's first buffers, without what was deleted."""
    found = build(view, layer, no_slot(view), at_step, check)
    deleted = deleted_sum_added(view, layer, {}, at_step)
    return joined_blocks(layer, {name: own - deleted[name] if name in deleted else own for name, own in found.items()})


def missed_by_the_record(view: View, layer: Layer, check: Check) -> RebuiltWeights | None:
    """The final weights, less what the record of all slots makes of them; None where there are none of their shape."""
    blocks = unrecorded_changes(view, layer, every_slot(view), check)
    return joined_blocks(layer, blocks) if blocks else None


def final_weights(view: View, layer: Layer) -> RebuiltWeights | None:
    """The layer's weights as the training left them; None where they were not stored, or are of another shape."""
    final, stored = view.snapshot.final() or {}, layer.stored
    initial = view.stored_weights("initial")
    names = [block.name for block in stored.parameters]
    if not names or any(name not in final or final[name].shape != initial[name].shape for name in names):
        return None
    return joined_blocks(stored, blocks_of(stored, final)).of(layer)


def _rebuild(
    view: View, layer: Layer, selections: Selections, at_step: int | None, status: Status, check: Check
) -> RebuiltWeights:
    parameters = build(view, layer, selections, at_step, check)
    unrecorded_change = 0.0
    at_end = at_step is None or at_step == view.snapshot.steps
    terms = unrecorded_changes(view, layer, selections, check) if at_end and not status.exact else {}
    parameters = {name: own + terms[name] if name in terms else own for name, own in parameters.items()}
    if whole := deleted_sum_added(view, layer, terms, at_step):
        unrecorded_change = length(whole) / (length(way(view, layer)) or math.nan)
    return joined_blocks(layer, parameters, status, unrecorded_change)


def tied(view: View, layer: Layer, where: str | Filter | None, check: Check) -> dict[str, Selection]:
    """The entries that a mask leaves of the other layers that hold a block of this one.

    Raises BadInput where one of them has slots of another space, and the mask names more than columns of the sample: it
    says nothing of those slots then.
    """
    found = {}
    for other in view.holders(layer.parameters):
        if other.name == layer.name:
            continue
        if where is not None and other.space != layer.space and not _of_samples(view, where, layer, other):
            raise BadInput(
                f"Layer {layer.name!r} shares a parameter with layer {other.name!r}, whose slots are of space "
                f"{other.space!r}.",
                hint="Use only columns of the sample in where=, or call memory.weights(where={space: SQL}).",
                field="where",
            )
        found[other.name] = mask.selection(view, other, where, check)
    return found


def _of_samples(view: View, where: str | Filter, *layers: Layer) -> bool:
    """Whether a mask names nothing but columns that say the same of a sample in the spaces of all those layers."""
    everywhere = [view.snapshot.space(name) for name in view.snapshot.spaces]
    spaces = [view.snapshot.space(layer.space) for layer in layers]
    columns = mask.checked_expression(spaces[0], everywhere, where, view.datasets).columns
    return all(space.sample_columns.issuperset(columns) for space in spaces)


def joined_blocks(
    layer: Layer, blocks: Mapping[str, Doubles], status: Status = _EXACTLY, unrecorded_change: float = 0.0
) -> RebuiltWeights:
    """The blocks in their places of [W | b]; those that are weights as parts of it."""
    weight = np.empty((layer.d_out, layer.weight_width))
    placed = dict(blocks)
    for place in layer.weights:
        weight[:, place.start : place.stop] = blocks[place.block_name]
        placed[place.block_name] = weight[:, place.start : place.stop]
    biases = [blocks[place.block_name] for place in layer.biases]
    return RebuiltWeights(weight, np.sum(biases, axis=0) if biases else None, placed, status, unrecorded_change)

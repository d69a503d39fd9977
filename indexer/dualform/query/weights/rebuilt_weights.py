"""The weights of a layer, rebuilt from the memory.

Shapes: d_in, d_out.

Under a mask they are what the slots that stay make of them (recorded_blocks.py): a mask is arithmetic removal from this
training's sum, not a training without the others. W_0 and the buffers that the optimizer had when recording
began (momentum, Adam's averages) are no slots, so no mask removes them.

Where the record is not exact, the end of the training has one more term, W_T minus the sum over all slots: what moved
outside the record. It stands like W_0 whatever the mask leaves, and it is no part of the status. So does the sum of
what was deleted (deleted_terms.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dualform.answers import Status
from dualform.errors import BadInput
from dualform.query.view import Check, View
from dualform.query.weights import deleted_terms
from dualform.query.weights.recorded_blocks import blocks_of, build, length, unrecorded_changes, way
from dualform.query.weights.requirement import require
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.questions.arguments import check_step
from dualform.questions.filters import Filter
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer


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
    view: View,
    layer: Layer,
    selection: Selection,
    at_step: int | None,
    allow_inexact: bool,
    check: Check,
    partners: Mapping[str, Selection] | None = None,
) -> RebuiltWeights:
    """The weights as the selected slots leave them, with the unrecorded change where the record is not exact.

    `partners`: by layer, the entries that stay of other layers that hold the same parameters. Raises Inexact as
    `require` says.
    """
    check_step(at_step, view.snapshot.steps)
    status = require(view, layer, at_step, allow_inexact, check)
    key = ("weights", layer.name, selection.identity, _identity(partners), at_step)
    return view.cache.get(key, lambda: _rebuild(view, layer, selection, at_step, status, check, partners), check)


def rebuild_without_slots(
    view: View, layer: Layer, at_step: int | None, allow_inexact: bool, check: Check
) -> RebuiltWeights:
    """What of the weights no slot brought. Raises as `rebuild`."""
    none = {name: no_slot(view, other) for name, other in view.snapshot.layers.items()}
    return rebuild(view, layer, none[layer.name], at_step, allow_inexact, check, none)


def recorded(
    view: View,
    layer: Layer,
    selection: Selection,
    at_step: int | None,
    check: Check,
    partners: Mapping[str, Selection] | None = None,
) -> RebuiltWeights:
    """What the record alone makes of the weights, whatever its status: without what moved them outside of it."""
    return joined_blocks(layer, build(view, layer, selection, at_step, check, partners), Status("exact"), 0.0)


def recorded_without_slots(view: View, layer: Layer, at_step: int | None, check: Check) -> RebuiltWeights:
    """What of that no slot brought."""
    none = {name: no_slot(view, other) for name, other in view.snapshot.layers.items()}
    return recorded(view, layer, none[layer.name], at_step, check, none)


def before_the_record(view: View, layer: Layer, at_step: int | None, check: Check) -> RebuiltWeights:
    """What of that began before: a_0 W_0 and the optimizer's first buffers, without what was deleted."""
    found = recorded_without_slots(view, layer, at_step, check).parameters
    deleted = deleted_terms.added(view, layer, {}, at_step)
    blocks = {name: own - deleted[name] if name in deleted else own for name, own in found.items()}
    return joined_blocks(layer, blocks, Status("exact"), 0.0)


def missed_by_the_record(view: View, layer: Layer, check: Check) -> RebuiltWeights | None:
    """The final weights, less what the record of all slots makes of them; None where there are none of their shape."""
    every = {name: mask.selection(view, other, None, check) for name, other in view.snapshot.layers.items()}
    blocks = unrecorded_changes(view, layer, every[layer.name], check, every)
    return joined_blocks(layer, blocks, Status("exact"), 0.0) if blocks else None


def final_weights(view: View, layer: Layer) -> RebuiltWeights | None:
    """The layer's weights as the training left them; None where they were not stored, or are of another shape."""
    final, stored = view.snapshot.final() or {}, layer.stored
    initial = view.stored_weights("initial")
    names = [block.name for block in stored.parameters]
    if not names or any(name not in final or final[name].shape != initial[name].shape for name in names):
        return None
    return joined_blocks(stored, blocks_of(stored, final), Status("exact"), 0.0).of(layer)


def no_slot(view: View, layer: Layer) -> Selection:
    # No SQL reads like this, so no mask has this identity.
    return Selection("no slot", np.zeros(view.snapshot.entries(layer.name).count, dtype=np.bool_))


def _identity(partners: Mapping[str, Selection] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, selection.identity) for name, selection in (partners or {}).items()))


def _rebuild(
    view: View,
    layer: Layer,
    selection: Selection,
    at_step: int | None,
    status: Status,
    check: Check,
    partners: Mapping[str, Selection] | None,
) -> RebuiltWeights:
    parameters = build(view, layer, selection, at_step, check, partners)
    unrecorded_change = 0.0
    at_end = at_step is None or at_step == view.snapshot.steps
    terms = unrecorded_changes(view, layer, selection, check, partners) if at_end and not status.exact else {}
    parameters = {name: own + terms[name] if name in terms else own for name, own in parameters.items()}
    if whole := deleted_terms.added(view, layer, terms, at_step):
        unrecorded_change = length(whole) / (length(way(view, layer)) or math.nan)
    return joined_blocks(layer, parameters, status, unrecorded_change)


def tied(view: View, layer: Layer, where: str | Filter | None, check: Check) -> dict[str, Selection]:
    """The entries that a mask leaves of the other layers that hold a block of this one.

    Raises BadInput where one of them has slots of another space, and the mask names more than columns of the sample: it
    says nothing of those slots then.
    """
    own = {block.block_name for block in layer.parameters}
    found = {}
    for other in view.snapshot.layers.values():
        if other.name == layer.name or own.isdisjoint(block.block_name for block in other.parameters):
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
    layer: Layer, blocks: Mapping[str, Doubles], status: Status, unrecorded_change: float
) -> RebuiltWeights:
    """The blocks in their places of [W | b]; those that are weights as parts of it."""
    weight = np.empty((layer.d_out, layer.weight_width))
    placed = dict(blocks)
    for place in layer.weights:
        weight[:, place.start : place.stop] = blocks[place.block_name]
        placed[place.block_name] = weight[:, place.start : place.stop]
    biases = [blocks[place.block_name] for place in layer.biases]
    return RebuiltWeights(weight, np.sum(biases, axis=0) if biases else None, placed, status, unrecorded_change)

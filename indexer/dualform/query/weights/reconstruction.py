"""How well the record rebuilds the trained layers: ||[W|b]_T - rebuilt|| / ||[W|b]_T - [W|b]_0||, by a pass over all
slots. It confirms what the watch measured while the training ran."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dualform.answers import Reconstruction, Reconstructions, Status
from dualform.query.view import Check, View
from dualform.query.weights.block_status import BFLOAT16, EXACT, NAMES, BlockDistance, name_of, name_of_block
from dualform.query.weights.exactness import (
    roundings,
    status,
    status_of_watched,
    stood_still,
    unwatched,
    with_precision,
)
from dualform.query.weights.recorded_blocks import length, unrecorded_changes, way
from dualform.query.weights.rounding_gradients import rounding_gradients
from dualform.query.weights.scores_only import why_scores_only
from dualform.query.where import mask
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer

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
    every = {name: mask.selection(view, other, None) for name, other in view.snapshot.layers.items()}
    terms = unrecorded_changes(view, layer, every[layer.name], check, every, afresh=True)
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

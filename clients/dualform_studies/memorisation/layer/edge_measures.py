"""How the edges of the attention layer's maps lie to the level lines of its heads, and what becomes of frontiers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform_studies.memorisation.layer.edges import (
    beyond_chance,
    border_length,
    borders,
    ridges,
    shifted_as_near,
    steepness,
    strongest,
    within,
)
from dualform_studies.memorisation.layer.maps import LayerMaps, layer_maps, raw_patterns
from dualform_studies.memorisation.transformer.network import AttentionOnly


@dataclass(frozen=True)
class EdgeMeasures:
    """Of one trained network. A level line is where a head's two logits are equal, and hardmax has its edge.

    None stands for what cannot be measured in it: where there are no level lines, no frontiers, or no edges.
    """

    explained: float | None
    """How far the steepest points of the sum of the heads lie at the heads' level lines, beyond chance."""
    covered: float | None
    """How far the heads' level lines lie at edges of the sum, over how far they lie at edges of their own head's map:
    1 where the sum has every edge that its heads have. Means over the heads, both beyond chance."""
    covered_hardmax: float | None
    """The same with all attention to the token that gets more, where every level line is an edge by construction."""
    frontiers: float | None
    """How far the frontiers between classes lie at the heads' level lines, beyond chance."""
    frontiers_shifted: float | None
    """The share of all shifts of the level lines around the torus that bring as much of the frontiers to them."""
    shortened: float | None
    """Share of the frontiers' length that is gone when every head attends the same everywhere."""


def level_lines(network: AttentionOnly, points: int) -> NDArray[np.bool_]:
    """bool[H, G, G]: where the token to which a head attends most changes."""
    return np.stack([borders(raw > 0) for raw in raw_patterns(network, points)])


def measure_edges(network: AttentionOnly, points: int) -> EdgeMeasures:
    """On a grid of so many points a side."""
    maps, by_head = layer_maps(network, points), level_lines(network, points)
    near = within(np.asarray(by_head.any(axis=0)))
    classes = maps.classes().token
    frontiers, length = borders(classes), border_length(classes)
    plain = border_length(layer_maps(network, points, "constant").classes().token)
    return EdgeMeasures(
        beyond_chance(strongest(steepness(maps.heads_together)), near),
        _covered(by_head, maps),
        _covered(by_head, layer_maps(network, points, "hardmax")),
        beyond_chance(frontiers, near),
        shifted_as_near(frontiers, near),
        1 - plain / length if length else None,
    )


def _covered(lines: NDArray[np.bool_], maps: LayerMaps) -> float | None:
    """Of the level lines bool[H, G, G] of the heads of these maps."""
    together = within(ridges(maps.heads_together))
    found = [
        (in_sum, in_own)
        for line, own in zip(lines, maps.heads, strict=True)
        for in_sum, in_own in ((beyond_chance(line, together), beyond_chance(line, within(ridges(own)))),)
        if in_sum is not None and in_own is not None
    ]
    in_sum, in_own = (sum(values) for values in zip(*found, strict=True)) if found else (0.0, 0.0)
    return in_sum / in_own if in_own > 0 else None

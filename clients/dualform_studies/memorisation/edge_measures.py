"""How the edges of the attention layer's maps lie to the level lines of its heads, and what becomes of frontiers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform_studies.memorisation.edges import beyond_chance, border_length, borders, steepness, strongest, within
from dualform_studies.memorisation.layer_maps import layer_maps, raw_patterns
from dualform_studies.memorisation.network import AttentionOnly


@dataclass(frozen=True)
class EdgeMeasures:
    """Of one trained network. A level line is where a head's two logits are equal, and hardmax has its edge."""

    explained: float
    """How far the steepest points of the sum of the heads lie at the heads' level lines, beyond chance."""
    covered: float
    """How far the heads' level lines lie at the steepest points of the sum, beyond chance."""
    frontiers: float
    """How far the frontiers between classes lie at the heads' level lines, beyond chance."""
    shortened: float
    """Share of the frontiers' length that is gone when every head attends the same everywhere; 0 if there are none."""


def level_lines(network: AttentionOnly, points: int) -> NDArray[np.bool_]:
    """bool[H, G, G]: where the token to which a head attends most changes."""
    return np.stack([borders(raw > 0) for raw in raw_patterns(network, points)])


def measure_edges(network: AttentionOnly, points: int) -> EdgeMeasures:
    """On a grid of so many points a side."""
    maps = layer_maps(network, points)
    lines = np.asarray(level_lines(network, points).any(axis=0))
    near, edges = within(lines), strongest(steepness(maps.heads_together))
    classes = maps.classes().token
    length = border_length(classes)
    plain = border_length(layer_maps(network, points, "constant").classes().token)
    return EdgeMeasures(
        beyond_chance(edges, near),
        beyond_chance(lines, within(edges)),
        beyond_chance(borders(classes), near),
        1 - plain / length if length else 0.0,
    )

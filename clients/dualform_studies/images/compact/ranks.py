"""How well the network does on a few directions of each layer's update. Shapes: R directions of a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from dualform_studies.images.compact.update import Update
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.training.network import accuracy, with_weights
from dualform_studies.pages.folder import Report
from dualform_studies.progress import Progress, or_silent

ALL_LAYERS = "all layers"
SHARES = (0.9, 0.99, 0.999)
"""Of the squared Frobenius norm, and of the accuracy."""

_EACH_UP_TO = 32
"""Ranks up to here are all tried, of those beyond every one that is an eighth greater than the one before."""


def tried_ranks(directions: int) -> list[int]:
    """The ranks that are tried of a layer with so many directions, ascending: 0, 1, 2, …, R."""
    ranks = list(range(min(_EACH_UP_TO, directions) + 1))
    while ranks[-1] < directions:
        ranks.append(min(directions, ranks[-1] + ranks[-1] // 8))
    return ranks


def accuracies_by_rank(
    updates: Mapping[str, Update], widths: Sequence[int], dataset: Dataset, progress: Progress | None = None
) -> dict[str, dict[int, float]]:
    """By layer and rank: the test accuracy where that layer alone keeps so many directions; the last entry is of all
    layers, where each keeps so many, or all that it has."""
    cases: dict[str, Sequence[str]] = {name: (name,) for name in updates} | {ALL_LAYERS: tuple(updates)}
    ranks = {name: tried_ranks(max(updates[layer].directions for layer in cut)) for name, cut in cases.items()}
    total, done = sum(map(len, ranks.values())), 0
    found: dict[str, dict[int, float]] = {}
    for name, cut in cases.items():
        found[name] = {}
        for rank in ranks[name]:
            or_silent(progress)("evaluating truncated layers", done, total)
            kept = {layer: rank if layer in cut else update.directions for layer, update in updates.items()}
            found[name][rank] = accuracy_with(updates, kept, widths, dataset)
            done += 1
    or_silent(progress)("evaluating truncated layers", total, total)
    return found


def accuracy_with(
    updates: Mapping[str, Update], kept: Mapping[str, int], widths: Sequence[int], dataset: Dataset
) -> float:
    """Test accuracy of the network whose layers keep so many directions each, at most all that they have."""
    weights: dict[str, Tensor] = {}
    for layer, update in updates.items():
        weights |= update.parameters(min(kept[layer], update.directions))
    return accuracy(with_weights(widths, weights), dataset)


def rank_keeping(share: float, by_rank: Mapping[int, float]) -> int:
    """The least rank tried from which on accuracy never falls below this share of that with all directions."""
    ranks = sorted(by_rank)
    least = share * by_rank[ranks[-1]]
    below = [rank for rank in ranks if by_rank[rank] < least]
    return next(rank for rank in ranks if not below or rank > below[-1])


def rank_report(update: Update, by_rank: Mapping[int, float], slots: int) -> Report:
    """One layer's row: directions that hold each share of the update and of the accuracy, and the numbers they are."""
    whole = update.directions_holding(SHARES[-1])
    return {
        "directions": update.directions,
        "holding_energy": {str(share): update.directions_holding(share) for share in SHARES},
        "keeping_accuracy": {str(share): rank_keeping(share, by_rank) for share in SHARES},
        "numbers": {
            "slots": slots * (len(update.left) + update.right.shape[1] - 1),
            "directions": update.numbers(whole),
            "weight": update.initial.size,
        },
    }

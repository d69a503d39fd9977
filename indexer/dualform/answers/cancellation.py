"""The terms that a filter removes: how much they cancel, or which weights they move if a rule scales gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import isnan
from typing import Any

from dualform.answers.columns import Columns, column_of
from dualform.answers.scan import Scan
from dualform.answers.table import Shown

WHOSE_STATUS = "The status is that of the whole sum."
WHAT_AN_ABLATION_MEANS = (
    "An ablation removes terms from this training's sum by arithmetic. It is not retraining without them: what remains "
    f"was learned together with what is removed. {WHOSE_STATUS}"
)
"""Shown with every ablation."""


@dataclass(frozen=True)
class Concentration:
    """How an ablation moves a layer's weights under an optimizer that scales gradients, such as Adam; bias included.

    The part of a slot in such an update is its part of the gradient, times the scale of the whole gradient. If the
    whole gradient of an entry nearly cancels, such a part is unbounded, and a few entries can dominate the result.
    """

    share: float
    """The share of the squared distance in the 1 % of entries that moved furthest, at least one entry. 0.01 if all move
    by the same amount; NaN if nothing moves."""
    greatest: float
    """The largest move of one entry, relative to ||W_T - W_0|| of the whole layer; 0.0 if nothing moves."""


@dataclass(frozen=True, eq=False, repr=False)
class Cancellation(Shown, Mapping[str, float]):
    """By layer, the sum of the norms of the removed terms over the norm of their sum.

    1 means that all terms push one way; tens or hundreds mean that they mostly cancel; NaN means that nothing moves.
    Under optimizers that give slots no separate terms, layers are in `concentrations` instead.
    """

    figures: Mapping[str, float]
    scan: Scan = field(default_factory=Scan)
    concentrations: Mapping[str, Concentration] = field(default_factory=dict)
    """By layer, under optimizers that scale gradients."""

    def __getitem__(self, layer: str) -> float:
        return self.figures[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.figures)

    def __len__(self) -> int:
        return len(self.figures)

    def record(self) -> dict[str, Any]:
        """The figures for JSON. `unmoved` lists layers that do not move, whose figures are null."""
        shares = {**self.figures, **{layer: one.share for layer, one in self.concentrations.items()}}
        return {
            "cancellation": dict(self.figures),
            "concentration": {layer: asdict(one) for layer, one in self.concentrations.items()},
            "unmoved": [layer for layer, share in shares.items() if isnan(share)],
        }

    def shown(self, most: int) -> tuple[Columns, int]:
        """One row for each layer: its figure, or how concentrated the moves are."""
        layers = [*self.figures, *self.concentrations]
        named, others = layers[:most], self.concentrations
        found = {"layer": column_of(named)}
        if self.figures:
            found["cancellation"] = column_of([self.figures.get(layer) for layer in named])
        for name in ("share", "greatest") if others else ():
            found[name] = column_of([getattr(others[layer], name) if layer in others else None for layer in named])
        return Columns(found, self.scan), len(layers)

    def title(self) -> str:
        said = []
        if self.figures:
            said.append("1 where the masked terms push one way, tens or hundreds where they cancel")
        if self.concentrations:
            said.append("share of the squared distance in 1 % of the entries, and the furthest move of one")
        return f"Cancellation: {'; '.join(said) or 'nothing was measured'}"

"""What a mask takes out of the sum: how much its terms cancel or, under rules that scale, where their moves gather."""

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
    """How a mask moves a layer's weights under a rule that scales gradients, as Adam's does: bias included.

    A slot's share of such an update is its share of the gradient, through the scale that the whole gradient made. Where
    the whole gradient of an entry all but cancels, a share of it has no bound, and a few entries may hold the answer.
    """

    share: float
    """Of the squared distance from the weights that all slots make: what the one per cent of the entries that moved
    furthest, at least one entry, hold. 0.01 where all move alike; NaN where the mask moves nothing."""
    greatest: float
    """The furthest that one entry moved, relative to ||W_T - W_0||, the distance of the layer's weights as a whole; 0.0
    where the mask moves nothing."""


@dataclass(frozen=True, eq=False, repr=False)
class Cancellation(Shown, Mapping[str, float]):
    """By layer, the sum of the removed terms' norms over the norm of their sum.

    1 where they all push one way; tens or hundreds where they mostly cancel; NaN where they move nothing. Layers whose
    update rule gives no slot a term of its own have none, and stand in `concentrations` instead.
    """

    figures: Mapping[str, float]
    scan: Scan = field(default_factory=Scan)
    concentrations: Mapping[str, Concentration] = field(default_factory=dict)
    """By layer, under rules that scale gradients."""

    def __getitem__(self, layer: str) -> float:
        return self.figures[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.figures)

    def __len__(self) -> int:
        return len(self.figures)

    def record(self) -> dict[str, Any]:
        """As JSON has it. `unmoved`: layers that the mask moves nothing of, whose figures are undefined, and null."""
        shares = {**self.figures, **{layer: one.share for layer, one in self.concentrations.items()}}
        return {
            "cancellation": dict(self.figures),
            "concentration": {layer: asdict(one) for layer, one in self.concentrations.items()},
            "unmoved": [layer for layer, share in shares.items() if isnan(share)],
        }

    def shown(self, most: int) -> tuple[Columns, int]:
        """A row a layer: its figure, or, under rules that scale gradients, how concentrated the mask's moves are."""
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

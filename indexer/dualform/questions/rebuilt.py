"""Questions about outputs and weights that are rebuilt from the record.

All take `at_step`, the number of recorded steps that have been taken: 0 is the initial network, None the end. With
`allow_inexact` they are answered from a record that is not exact too, beyond the bound up to which it is without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dualform.answers import Cancellation, Outputs, Weights
from dualform.errors import BadInput
from dualform.questions.arguments import as_masks, check_layer, check_step
from dualform.questions.layer_question import LayerQuestion
from dualform.questions.question import Question


@dataclass(frozen=True)
class Output(LayerQuestion[Outputs]):
    """A layer's output when only the slots of a mask speak (paper equation 13)."""

    where: str | None = None
    at_step: int | None = None
    allow_inexact: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_step(self.at_step)


@dataclass(frozen=True)
class NetworkWeights(Question[Weights]):
    """The parameters of the whole network when only the slots of a mask speak."""

    where: str | Mapping[str, str] | None = None
    """One mask for all slot spaces, or masks by space, which leave the spaces that they do not name whole."""
    at_step: int | None = None
    allow_inexact: bool = False

    def __post_init__(self) -> None:
        check_step(self.at_step)
        object.__setattr__(self, "where", as_masks(self.where))


@dataclass(frozen=True)
class MaskCancellation(Question[Cancellation]):
    """How much the terms that a mask removes cancel each other, by layer."""

    where: str | Mapping[str, str]
    """As in NetworkWeights. Layers of spaces that it does not name are left out of the answer."""
    at_step: int | None = None
    layer: str | None = None
    """None for every recorded layer."""
    allow_inexact: bool = False

    def __post_init__(self) -> None:
        if not self.where:
            raise BadInput(
                "cancellation needs a where.", hint="It is about the slots that a mask removes.", field="where"
            )
        check_step(self.at_step)
        if self.layer is not None:
            check_layer(self.layer)
        object.__setattr__(self, "where", as_masks(self.where))

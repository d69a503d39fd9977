"""Questions about outputs and weights that are rebuilt from the record.

All take `at_step`, the number of recorded steps that have been taken: 0 is the initial network, None the end. With
`allow_inexact` they are answered from a record that is not exact too, beyond the bound up to which it is without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dualform.answers import Cancellation, Contributions, Outputs, Weights
from dualform.errors import BadInput
from dualform.questions.arguments import as_by, as_flag, as_temperature, check_layer, check_step
from dualform.questions.filters import Filter, as_filters
from dualform.questions.layer_question import LayerQuestion
from dualform.questions.question import Question

_JOINED = 16
"""Queries that share a pass of a softmax over the values: each costs nearly as much as it would alone, and has to wait
for the others."""


@dataclass(frozen=True)
class Output(LayerQuestion[Outputs]):
    """A layer's output when only the slots of a mask speak (paper equation 13).

    W_0 q + b + sum_t (x_t . q) e_t with the kernel "linear", which reads weights that are rebuilt once for all queries;
    W_0 q + b + sum_t p_t e_t with "softmax" (remarks 2.3 and 3.2), p the softmax of (x_t . q) / temperature over the
    slots that stay, which reads every slot for every query. Only the attention changes: values, W_0 and the bias b, as
    it is under the same mask, are those of "linear" as of the same step. Scores are canonical, as top-k ranks them: a
    temperature near 0 gives the mean value of the slots of the greatest score. What float64 rounds of a score, about
    1e-15 |x_t| |q|, over the temperature is the relative error of p_t.
    """

    where: str | Filter | None = None
    at_step: int | None = None
    allow_inexact: bool = False
    kernel: str = "linear"
    """"linear" or "softmax"."""
    temperature: float | None = None
    """Of "softmax", finite and above 0; 1.0 where none is given. None for "linear"."""
    initial: bool = True
    """Whether W_0 and the bias are part of the answer; False leaves the sum over the slots alone, without any of the
    bias: neither where it began nor what training added to it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_step(self.at_step)
        object.__setattr__(self, "temperature", as_temperature(self.kernel, self.temperature))
        object.__setattr__(self, "allow_inexact", as_flag(self.allow_inexact, "allow_inexact"))
        object.__setattr__(self, "initial", as_flag(self.initial, "initial"))

    @property
    def rebuilds(self) -> bool:
        return True

    @property
    def most_joined(self) -> int | None:
        return _JOINED if self.kernel == "softmax" else None


@dataclass(frozen=True)
class Contribution(LayerQuestion[Contributions]):
    """What each group of the slots of a mask brought to a layer's output (paper equation 13, its sum group by group).

    As a value, for `Answers.ask`; `Answers.contributions` makes one, and says what its fields mean. Raises BadInput for
    what cannot be asked of any memory.
    """

    by: tuple[str, ...]
    where: str | Filter | None = None
    at_step: int | None = None
    allow_inexact: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "by", as_by(self.by))
        if not self.by:
            raise BadInput("by must name at least one column.", hint='For example by="label".', field="by")
        check_step(self.at_step)
        object.__setattr__(self, "allow_inexact", as_flag(self.allow_inexact, "allow_inexact"))

    @property
    def rebuilds(self) -> bool:
        return True


@dataclass(frozen=True)
class NetworkWeights(Question[Weights]):
    """The parameters of the whole network when only the slots of a mask speak (paper equation 13, for every layer).

    As a value, for `Answers.ask`; `Answers.weights` makes one. Raises BadInput for what cannot be asked of any memory.
    """

    where: str | Filter | Mapping[str, str | Filter] | None = None
    """One mask for all slot spaces, or masks by space, which leave the spaces that they do not name whole."""
    at_step: int | None = None
    """As of so many recorded steps; None for the end."""
    allow_inexact: bool = False

    def __post_init__(self) -> None:
        check_step(self.at_step)
        object.__setattr__(self, "allow_inexact", as_flag(self.allow_inexact, "allow_inexact"))
        object.__setattr__(self, "where", as_filters(self.where))


@dataclass(frozen=True)
class MaskCancellation(Question[Cancellation]):
    """How much the terms that a mask removes cancel each other or, where a rule scales gradients, how far it moves the
    weights: by layer.
    """

    where: str | Filter | Mapping[str, str | Filter]
    """As in NetworkWeights. Layers of spaces that it does not name are left out of the answer."""
    at_step: int | None = None
    layer: str | None = None
    """None for every recorded layer."""
    allow_inexact: bool = False

    def __post_init__(self) -> None:
        if not self.where:
            raise BadInput(
                "cancellation needs where=.",
                hint="Pass the ablation to examine, for example where=\"dataset <> 'mnist'\".",
                field="where",
            )
        check_step(self.at_step)
        if self.layer is not None:
            check_layer(self.layer)
        object.__setattr__(self, "allow_inexact", as_flag(self.allow_inexact, "allow_inexact"))
        object.__setattr__(self, "where", as_filters(self.where))

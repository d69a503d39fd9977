"""Questions that rebuild a layer: outputs, weights, contributions, placebos.

Questions about outputs and weights that are rebuilt from the record.

All take `at_step`, the number of recorded steps that have been taken: 0 is the initial network, None the end. With
`allow_inexact` they are answered from a record that is not exact too, beyond the bound up to which it is without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dualform.answers import Cancellation, Contributions, Outputs, Placebos, Weights
from dualform.errors import BadInput
from dualform.questions.arguments import as_by, as_flag, as_k, as_temperature, check_layer, check_step
from dualform.questions.filters import Filter, as_filters
from dualform.questions.question import LayerQuestion, Question

_JOINED = 16
"""The most queries that share a softmax pass over the values. Each costs nearly as much as it would alone, and waits
for the others."""


@dataclass(frozen=True)
class Output(LayerQuestion[Outputs]):
    """The output of a layer from only the slots that an ablation keeps (paper equation 13).

    - kernel "linear": W_0 q + b + sum_t (x_t . q) e_t. The weights are rebuilt once for all queries.
    - kernel "softmax": W_0 q + b + sum_t p_t e_t (paper remarks 2.3 and 3.2). p is the softmax of (x_t . q) /
      temperature over the slots that stay. Every slot is read for every query.

    With "softmax" only the attention changes. The values, W_0 and the bias are the same as with "linear". A temperature
    near 0 gives the mean value of the slots with the highest score. The relative error of p_t is about 1e-15 |x_t| |q|
    / temperature, from rounding in float64.

    The fields are the arguments of `Answers.output`. Raises BadInput for invalid arguments.
    """

    where: str | Filter | None = None
    at_step: int | None = None
    allow_inexact: bool = False
    kernel: str = "linear"
    """ "linear" or "softmax"."""
    temperature: float | None = None
    """The temperature of "softmax", finite and above 0, 1.0 by default; None for "linear"."""
    initial: bool = True
    """Whether W_0 and the bias are included. False leaves only the sum over the slots, without their part of the bias.
    """

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
    """The contribution of each group of slots to the output of a layer (paper equation 13, summed by group).

    The fields are the arguments of `Answers.contributions`. Raises BadInput for invalid arguments.
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
    """The parameters of the whole network from only some slots (paper equation 13, for every layer).

    The fields are the arguments of `Answers.weights`. Raises BadInput for invalid arguments.
    """

    where: str | Filter | Mapping[str, str | Filter] | None = None
    """One ablation for all slot spaces, or ablations by space. Spaces that it does not name stay whole."""
    at_step: int | None = None
    """The number of recorded steps that count; None for the end."""
    allow_inexact: bool = False

    def __post_init__(self) -> None:
        check_step(self.at_step)
        object.__setattr__(self, "allow_inexact", as_flag(self.allow_inexact, "allow_inexact"))
        object.__setattr__(self, "where", as_filters(self.where))


@dataclass(frozen=True)
class MaskCancellation(Question[Cancellation]):
    """How much the terms that an ablation removes cancel each other, by layer.

    The fields are the arguments of `Answers.cancellation`. Raises BadInput for invalid arguments.
    """

    where: str | Filter | Mapping[str, str | Filter]
    """As in `NetworkWeights`. Layers of spaces that it does not name are left out of the result."""
    at_step: int | None = None
    layer: str | None = None
    """The name of one layer; None for all."""
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


RANDOM_SETS, MOST_SETS = 50, 1000
"""Random sets that are drawn where no other number is given, and at most."""


@dataclass(frozen=True)
class Placebo(LayerQuestion[Placebos]):
    """How predictions change under an ablation, under random ablations of its size, and under its siblings.

    The fields are the arguments of `Answers.placebo`. Raises BadInput for invalid arguments.
    """

    where: str | Filter | None = None
    n: int = RANDOM_SETS
    at_step: int | None = None
    allow_inexact: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.where:
            raise BadInput(
                "placebo needs where=.",
                hint="Pass the ablation to compare with random ones, for example where=\"dataset <> 'mnist'\".",
                field="where",
            )
        object.__setattr__(self, "n", as_k(self.n, "random set", "n"))
        if self.n > MOST_SETS:
            raise BadInput(f"n must be at most {MOST_SETS:,} random sets, not {self.n:,}.", field="n")
        check_step(self.at_step)
        object.__setattr__(self, "allow_inexact", as_flag(self.allow_inexact, "allow_inexact"))

    @property
    def rebuilds(self) -> bool:
        return True

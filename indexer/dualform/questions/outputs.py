"""Questions about outputs and weights that are rebuilt from the record.

All take `at_step`, the number of recorded steps that have been taken: 0 is the initial network, None the end. With
`allow_inexact` they are answered from a record that is not exact too, beyond the bound up to which it is without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from dualform.answers import Cancellation, Contributions, Outputs, Placebos, Weights
from dualform.errors import BadInput
from dualform.questions.arguments import Flag, LayerName, SomeColumns, Step, as_k, as_temperature
from dualform.questions.filters import Filter, Where, Wheres, as_filters
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

    rebuilds: ClassVar[bool] = True
    where: Where = None
    at_step: Step = None
    allow_inexact: Flag = False
    kernel: str = "linear"
    """ "linear" or "softmax"."""
    temperature: float | None = None
    """The temperature of "softmax", finite and above 0, 1.0 by default; None for "linear"."""
    initial: Flag = True
    """Whether W_0 and the bias are included. False leaves only the sum over the slots, without their part of the bias.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "temperature", as_temperature(self.kernel, self.temperature))

    @property
    def most_joined(self) -> int | None:
        return _JOINED if self.kernel == "softmax" else None


@dataclass(frozen=True)
class Contribution(LayerQuestion[Contributions]):
    """The contribution of each group of slots to the output of a layer (paper equation 13, summed by group).

    The fields are the arguments of `Answers.contributions`. Raises BadInput for invalid arguments.
    """

    rebuilds: ClassVar[bool] = True
    by: SomeColumns
    where: Where = None
    at_step: Step = None
    allow_inexact: Flag = False


@dataclass(frozen=True)
class NetworkWeights(Question[Weights]):
    """The parameters of the whole network from only some slots (paper equation 13, for every layer).

    The fields are the arguments of `Answers.weights`. Raises BadInput for invalid arguments.
    """

    where: Wheres = None
    """One ablation for all slot spaces, or ablations by space. Spaces that it does not name stay whole."""
    at_step: Step = None
    """The number of recorded steps that count; None for the end."""
    allow_inexact: Flag = False


@dataclass(frozen=True)
class MaskCancellation(Question[Cancellation]):
    """How much the terms that an ablation removes cancel each other, by layer.

    The fields are the arguments of `Answers.cancellation`. Raises BadInput for invalid arguments.
    """

    where: Annotated[str | Filter | Mapping[str, str | Filter], as_filters]
    """As in `NetworkWeights`. Layers of spaces that it does not name are left out of the result."""
    at_step: Step = None
    layer: LayerName = None
    """The name of one layer; None for all."""
    allow_inexact: Flag = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_where(self.where, "cancellation", "examine")


RANDOM_SETS, MOST_SETS = 50, 1000
"""Random sets that are drawn where no other number is given, and at most."""


def as_sets(n: int, name: str) -> int:
    """A number of random sets."""
    if (sets := as_k(n, "random set", name)) > MOST_SETS:
        raise BadInput(f"{name} must be at most {MOST_SETS:,} random sets, not {sets:,}.", field=name)
    return sets


@dataclass(frozen=True)
class Placebo(LayerQuestion[Placebos]):
    """How predictions change under an ablation, under random ablations of its size, and under its siblings.

    The fields are the arguments of `Answers.placebo`. Raises BadInput for invalid arguments.
    """

    rebuilds: ClassVar[bool] = True
    where: Where = None
    n: Annotated[int, as_sets] = RANDOM_SETS
    at_step: Step = None
    allow_inexact: Flag = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_where(self.where, "placebo", "compare with random ones")


def _require_where(where: Any, question: str, does: str) -> None:
    if not where:
        hint = f"Pass the ablation to {does}, for example where=\"dataset <> 'mnist'\"."
        raise BadInput(f"{question} needs where=.", hint=hint, field="where")

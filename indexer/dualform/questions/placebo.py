"""The question whether what an ablation changes means anything."""

from __future__ import annotations

from dataclasses import dataclass

from dualform.answers import Placebos
from dualform.errors import BadInput
from dualform.questions.arguments import as_flag, as_k, check_step
from dualform.questions.filters import Filter
from dualform.questions.layer_question import LayerQuestion

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

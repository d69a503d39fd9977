"""Questions about scores: hits, sums by group and distributions; and the target of a contribution.

Shapes: n queries, d_out outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dualform.answers import Distributions, GroupSums, Hits
from dualform.errors import BadInput
from dualform.questions.arguments import (
    By,
    Flag,
    GroupCount,
    SlotCount,
    SomeColumns,
    Step,
    as_points,
    as_score,
    check_fields,
    shown,
)
from dualform.questions.filters import Where
from dualform.questions.question import Answer_co, LayerQuestion, Vectors, finite_rows

CONTRIBUTION = "contribution"
"""The name of the score that has a direction."""
_FORMS = 'Pass target=3 for output 3, target="3-8" for output 3 minus output 8, or float32[d_out] or [n, d_out].'
_MOST_LETTERS = 40
"""The most characters of a target."""
TargetLike: TypeAlias = "int | str | ArrayLike | Target"


@dataclass(frozen=True)
class Target:
    """The direction u and the step of a contribution, (x_t . q) a_t (delta_t . u).

    It is one output of the layer, one output minus another (`minus`), or `vectors`. Raises BadInput for other
    combinations and for negative outputs.
    """

    output: int | None = None
    minus: int | None = None
    """The output to subtract, in a margin; None without one."""
    vectors: Vectors | None = None
    """float32[1, d_out] for all queries, or float32[n, d_out], one for each."""
    at_step: Step = None
    """The number of recorded steps that count; None for the end."""
    allow_inexact: Flag = False
    """As in `Output`."""

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.output is None) == (self.vectors is None) or (self.vectors is not None and self.minus is not None):
            raise BadInput("target must be one output, a margin of two, or vectors.", hint=_FORMS, field="target")
        for name in ("output", "minus"):
            number = getattr(self, name)
            if number is None:
                continue
            if isinstance(number, bool) or not isinstance(number, Integral) or number < 0:
                raise BadInput(
                    f"target must name outputs by whole numbers from 0 on, not {shown(number)}.",
                    hint=_FORMS,
                    field="target",
                )
            object.__setattr__(self, name, int(number))
        if self.output is not None and self.output == self.minus:
            raise BadInput(
                f"target cannot be output {self.output} minus itself, which is 0.", hint=_FORMS, field="target"
            )

    def rows(self, queries: int, width: int) -> NDArray[np.float32]:
        """float32[queries, width]: the direction of each query."""
        if self.vectors is not None:
            return np.broadcast_to(self.vectors.rows, (queries, width))
        found = np.zeros((queries, width), dtype=np.float32)
        found[:, self.output] = 1
        if self.minus is not None:
            found[:, self.minus] = -1
        return found

    @property
    def joins(self) -> bool:
        """Whether several queries can share it."""
        return self.vectors is None


def as_target(
    score: str, target: TargetLike | None, at_step: int | None = None, allow_inexact: bool = False
) -> Target | None:
    """The target of a question with that score; None for a score that has none.

    Raises BadInput for a contribution without a target, for another score with a target, `at_step` or `allow_inexact`,
    which scores of keys ignore, and for an invalid target.
    """
    if score != CONTRIBUTION:
        named = {"target": target is not None, "at_step": at_step is not None, "allow_inexact": allow_inexact}
        for name, given in named.items():
            if given:
                raise BadInput(
                    f'{name} cannot be used with score="{score}".',
                    hint=f'Pass score="{CONTRIBUTION}", or leave {name} out.',
                    field=name,
                )
        return None
    if target is None:
        raise BadInput(f'score="{CONTRIBUTION}" needs target=.', hint=_FORMS, field="target")
    if isinstance(target, Target):
        if at_step is not None or allow_inexact:
            raise BadInput(
                "at_step and allow_inexact cannot be combined with a dualform.Target, which has its own.",
                hint="Pass them to Target: dualform.Target(3, at_step=100).",
                field="at_step",
            )
        return target
    output, minus, vectors = None, None, None
    if isinstance(target, str):
        output, minus = _outputs(target)
    elif isinstance(target, Integral):
        output = int(target) if not isinstance(target, bool) else target
    else:
        vectors = Vectors(finite_rows(target, "target", "direction", "d_out"))
    return Target(output, minus, vectors, at_step, allow_inexact)


def _outputs(said: str) -> tuple[int, int | None]:
    """The outputs of "3" or "3-8"."""
    output, dash, minus = (part.strip() for part in said.partition("-"))
    if not (output.isdecimal() and (minus.isdecimal() or not dash)) or len(said) > _MOST_LETTERS:
        raise BadInput(f"target cannot be {said[:_MOST_LETTERS]!r}.", hint=_FORMS, field="target")
    return int(output), int(minus) if dash else None


POINTS = 200
"""The default number of ranks in a distribution: enough to draw it."""
_JOINED = 16
"""The most distribution queries that share a pass over the keys. Each costs nearly as much as it would alone."""


class ScoreQuestion(LayerQuestion[Answer_co]):
    """The base of queries about scores."""

    score: str
    target: Target | None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "target", as_target(self.score, self.target))

    @property
    def kind(self) -> Hashable | None:
        return super().kind if self.target is None or self.target.joins else None

    @property
    def rebuilds(self) -> bool:
        return self.target is not None


@dataclass(frozen=True)
class TopK(ScoreQuestion[Hits]):
    """The k slots that each query attends to most (paper section 5.2, figure 4).

    The fields are the arguments of `Answers.topk`. Raises BadInput for invalid arguments.
    """

    k: SlotCount = 10
    where: Where = None
    by: By = ()
    """Columns to group by; each group has separate hits."""
    score: Annotated[str, as_score] = "dot"
    """ "dot", "abs", "cosine", or "contribution" with `target`."""
    allow_partial: Flag = False
    """Whether to return the hits of other machines if one does not answer; `scan.missing` lists it."""
    target: Target | None = None
    """The direction and the step of "contribution"."""
    distinct: By = ()
    """Columns; only the best slot for each of their values is returned. "sample" means dataset and sample."""

    @property
    def bytes_a_query(self) -> float | None:
        return None if self.by else 12.0 * self.k + 8


@dataclass(frozen=True)
class GroupSum(ScoreQuestion[GroupSums]):
    """The sum of scores over each group of slots (paper section 5.2, figure 5).

    The fields are the arguments of `Answers.group_sum`. Raises BadInput for invalid arguments.
    """

    by: SomeColumns
    where: Where = None
    score: Annotated[str, as_score] = "dot"
    """As in `TopK`."""
    allow_partial: Flag = False
    """As in `TopK`."""
    target: Target | None = None
    """As in `TopK`."""
    k: GroupCount = None
    """Only the k groups of each query with the largest sums by absolute value; None for all."""

    @property
    def bytes_a_query(self) -> float | None:
        return None if self.k is None else 16.0 * self.k


@dataclass(frozen=True)
class Distribution(ScoreQuestion[Distributions]):
    """The scores of each query by rank, over all slots.

    The fields are the arguments of `Answers.distribution`. Raises BadInput for invalid arguments.
    """

    most_joined: ClassVar[int | None] = _JOINED
    where: Where = None
    score: Annotated[str, as_score] = "dot"
    """As in `TopK`."""
    target: Target | None = None
    """As in `TopK`."""
    points: Annotated[int, as_points] = POINTS
    """The most ranks to return."""

    @property
    def bytes_a_query(self) -> float | None:
        return 12.0 * self.points + 16

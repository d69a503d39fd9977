"""Questions about attention weights."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from dualform.answers import Distributions, GroupSums, Hits
from dualform.errors import BadInput
from dualform.questions.arguments import as_by, as_flag, as_k, as_points, check_score
from dualform.questions.filters import Filter
from dualform.questions.layer_question import LayerQuestion
from dualform.questions.question import Answer_co
from dualform.questions.target import Target, as_target

POINTS = 200
"""The default number of ranks in a distribution: enough to draw it."""
_JOINED = 16
"""The most distribution queries that share a pass over the keys. Each costs nearly as much as it would alone."""


class ScoreQuestion(LayerQuestion[Answer_co]):
    """The base of queries about scores."""

    score: str
    target: Target | None

    @property
    def kind(self) -> Hashable | None:
        return super().kind if self.target is None or self.target.joins else None

    @property
    def rebuilds(self) -> bool:
        return self.target is not None

    def _check_score(self) -> None:
        """Raises BadInput for an unknown score, or a missing target."""
        check_score(self.score)
        object.__setattr__(self, "target", as_target(self.score, self.target))


@dataclass(frozen=True)
class TopK(ScoreQuestion[Hits]):
    """The k slots that each query attends to most (paper section 5.2, figure 4).

    The fields are the arguments of `Answers.topk`. Raises BadInput for invalid arguments.
    """

    k: int = 10
    where: str | Filter | None = None
    by: tuple[str, ...] = ()
    """Columns to group by; each group has separate hits."""
    score: str = "dot"
    """ "dot", "abs", "cosine", or "contribution" with `target`."""
    allow_partial: bool = False
    """Whether to return the hits of other machines if one does not answer; `scan.missing` lists it."""
    target: Target | None = None
    """The direction and the step of "contribution"."""
    distinct: tuple[str, ...] = ()
    """Columns; only the best slot for each of their values is returned. "sample" means dataset and sample."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", as_k(self.k, "datapoint"))
        super().__post_init__()
        object.__setattr__(self, "by", as_by(self.by))
        object.__setattr__(self, "distinct", as_by(self.distinct, "distinct"))
        self._check_score()
        object.__setattr__(self, "allow_partial", as_flag(self.allow_partial, "allow_partial"))

    @property
    def bytes_a_query(self) -> float | None:
        return None if self.by else 12.0 * self.k + 8


@dataclass(frozen=True)
class GroupSum(ScoreQuestion[GroupSums]):
    """The sum of scores over each group of slots (paper section 5.2, figure 5).

    The fields are the arguments of `Answers.group_sum`. Raises BadInput for invalid arguments.
    """

    by: tuple[str, ...]
    where: str | Filter | None = None
    score: str = "dot"
    """As in `TopK`."""
    allow_partial: bool = False
    """As in `TopK`."""
    target: Target | None = None
    """As in `TopK`."""
    k: int | None = None
    """Only the k groups of each query with the largest sums by absolute value; None for all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "by", as_by(self.by))
        if not self.by:
            raise BadInput("by must name at least one column.", hint='For example by="label".', field="by")
        self._check_score()
        if self.k is not None:
            object.__setattr__(self, "k", as_k(self.k, "group"))
        object.__setattr__(self, "allow_partial", as_flag(self.allow_partial, "allow_partial"))

    @property
    def bytes_a_query(self) -> float | None:
        return None if self.k is None else 16.0 * self.k


@dataclass(frozen=True)
class Distribution(ScoreQuestion[Distributions]):
    """The scores of each query by rank, over all slots.

    The fields are the arguments of `Answers.distribution`. Raises BadInput for invalid arguments.
    """

    where: str | Filter | None = None
    score: str = "dot"
    """As in `TopK`."""
    target: Target | None = None
    """As in `TopK`."""
    points: int = POINTS
    """The most ranks to return."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_score()
        object.__setattr__(self, "points", as_points(self.points))

    @property
    def bytes_a_query(self) -> float | None:
        return 12.0 * self.points + 16

    @property
    def most_joined(self) -> int | None:
        return _JOINED

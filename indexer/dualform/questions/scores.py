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
"""Ranks at which a distribution is given, where nothing else is asked for: enough to draw it."""
_JOINED = 16
"""Queries about distributions that share a pass over the keys: each costs nearly as much as it would alone."""


class ScoreQuestion(LayerQuestion[Answer_co]):
    """What questions about scores have in common, beside their queries. Its kinds are dataclasses with these fields."""

    score: str
    target: Target | None

    @property
    def kind(self) -> Hashable | None:
        return super().kind if self.target is None or self.target.joins else None

    @property
    def rebuilds(self) -> bool:
        return self.target is not None

    def _check_score(self) -> None:
        """Raises BadInput for a score that is no name, or without the direction that it needs."""
        check_score(self.score)
        object.__setattr__(self, "target", as_target(self.score, self.target))


@dataclass(frozen=True)
class TopK(ScoreQuestion[Hits]):
    """The k training datapoints that each query attends to most (paper section 5.2, figure 4).

    As a value, for `Answers.ask`; `Answers.topk` makes one, and says what its fields mean. Raises BadInput for what
    cannot be asked of any memory.
    """

    k: int = 10
    where: str | Filter | None = None
    by: tuple[str, ...] = ()
    """Columns; with any, the k best of each group."""
    score: str = "dot"
    """"dot", "abs" or "cosine", or "contribution" with `target`."""
    allow_partial: bool = False
    """Of a memory on several machines: answer without the shards that do not, and say which (scan.missing)."""
    target: Target | None = None
    """Of "contribution": along which direction, and as of which step."""
    distinct: tuple[str, ...] = ()
    """Columns; with any, one hit for each of their values, its best slot. "sample" stands for dataset and sample."""

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
    """The sum of attention weights of each group of training datapoints (paper section 5.2, figure 5).

    As a value, for `Answers.ask`; `Answers.group_sum` makes one, and says what its fields mean. Raises BadInput for
    what cannot be asked of any memory.
    """

    by: tuple[str, ...]
    where: str | Filter | None = None
    score: str = "dot"
    """As in TopK."""
    allow_partial: bool = False
    """Of a memory on several machines: answer without the shards that do not, and say which (scan.missing)."""
    target: Target | None = None
    """As in TopK."""
    k: int | None = None
    """Only the k groups of each query whose sums are largest, whatever their sign; None for all groups."""

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
    """How the attention weights of each query are spread over all training datapoints: by rank, and in sum.

    As a value, for `Answers.ask`; `Answers.distribution` makes one, and says what its fields mean. Raises BadInput for
    what cannot be asked of any memory.
    """

    where: str | Filter | None = None
    score: str = "dot"
    """As in TopK."""
    target: Target | None = None
    """As in TopK."""
    points: int = POINTS
    """At most so many ranks."""

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

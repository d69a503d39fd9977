"""Questions about attention weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dualform.answers import GroupSums, Hits
from dualform.errors import BadInput
from dualform.questions.arguments import as_by, as_flag, check_score
from dualform.questions.layer_question import LayerQuestion


@dataclass(frozen=True)
class TopK(LayerQuestion[Hits]):
    """The k training datapoints that each query attends to most (paper section 5.2, figure 4).

    As a value, for `Answers.ask`; `Answers.topk` makes one, and says what its fields mean. Raises BadInput for what
    cannot be asked of any memory.
    """

    k: int = 10
    where: str | None = None
    by: tuple[str, ...] = ()
    """Columns; with any, the k best of each group."""
    score: str = "signed"
    """The name of a score (query/score/kinds/): "signed", "abs", "cosine", or one of your own."""
    allow_partial: bool = False
    """Of a memory on several machines: answer without the shards that do not, and say which (scan.missing)."""

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int | np.integer) or self.k < 1:
            raise BadInput(f"k is {self.k!r}.", hint="Ask for at least 1 datapoint.", field="k")
        object.__setattr__(self, "k", int(self.k))
        super().__post_init__()
        object.__setattr__(self, "by", as_by(self.by))
        check_score(self.score)
        object.__setattr__(self, "allow_partial", as_flag(self.allow_partial, "allow_partial"))

    @property
    def bytes_a_query(self) -> float | None:
        return None if self.by else 12.0 * self.k + 8


@dataclass(frozen=True)
class GroupSum(LayerQuestion[GroupSums]):
    """The sum of attention weights of each group of training datapoints (paper section 5.2, figure 5).

    As a value, for `Answers.ask`; `Answers.group_sum` makes one, and says what its fields mean. Raises BadInput for
    what cannot be asked of any memory.
    """

    by: tuple[str, ...]
    where: str | None = None
    score: str = "signed"
    """The name of a score (query/score/kinds/): "signed", "abs", "cosine", or one of your own."""
    allow_partial: bool = False
    """Of a memory on several machines: answer without the shards that do not, and say which (scan.missing)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "by", as_by(self.by))
        if not self.by:
            raise BadInput("by names no column.", hint='Group by a slot column, for example by="label".', field="by")
        check_score(self.score)
        object.__setattr__(self, "allow_partial", as_flag(self.allow_partial, "allow_partial"))

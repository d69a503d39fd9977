"""What a question may take at most: nothing is bounded in process, and a server sets bounds for strangers.

An answer's size is known once queries, mask and groups are. So what would not fit is refused before it is worked on,
with what would fit. Counted are the numbers alone: what a message holds beside them makes it a little larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from dualform.errors import BadInput

HIT_BYTES, COUNT_BYTES, SUM_BYTES, RANK_BYTES = 12, 8, 8, 12
"""Of a slot with its score; of how many hits a query has in a group; of the sum that a query gives to a group; of the
score at a rank, with the sum up to there."""


@dataclass(frozen=True)
class QuestionBounds:
    answer_bytes: float = inf
    """Of the numbers of an answer, and of queries that a question names by number."""
    where_bytes: float = inf
    """Of a mask's text, as UTF-8."""
    where_nodes: float = inf
    """Of a mask's syntax tree: columns, constants, and what is done with them."""
    patterns: float = inf
    """In a mask: LIKE, regexp_matches and the like."""
    pattern_letters: float = inf
    """Of one of them."""

    def require(self, count: int, bytes_each: float, hint: str, field: str = "") -> None:
        """Raises BadInput for an answer to `count` queries, or about so many slots, that would be too large.

        `hint` has {} where it says how many would fit.
        """
        if count * bytes_each > self.answer_bytes:
            raise BadInput(
                f"The answer would take {_mebibytes(count * bytes_each)}; the server's limit is "
                f"{_mebibytes(self.answer_bytes)}.",
                hint=hint.format(int(self.answer_bytes // bytes_each)),
                field=field,
            )

    def require_queries(self, count: int, width: int) -> None:
        """Raises BadInput for more queries than there may be of those that are named by number, each so wide."""
        if 4 * count * width > self.answer_bytes:
            raise BadInput(
                f"{count:,} queries of {width:,} numbers take {_mebibytes(4 * count * width)}; the server's limit is "
                f"{_mebibytes(self.answer_bytes)}.",
                hint=f"Pass at most {int(self.answer_bytes // (4 * width)):,} queries at a time.",
                field="queries",
            )


def _mebibytes(count: float) -> str:
    return f"{count / 2**20:.1f} MiB"


UNBOUNDED = QuestionBounds()

"""What a question may take at most, in answers, in the size of its filter, and in processor time.

How large a mask may be where strangers write it.

A regular expression becomes a program before the first slot is looked at, which nothing interrupts: its size is
estimated from its text, before it is made.

What a question may take at most: nothing is bounded in process, and a server sets bounds for strangers.

An answer's size is known once queries, mask and groups are. So what would not fit is refused before it is worked on,
with what would fit. Counted are the numbers alone: what a message holds beside them makes it a little larger.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from math import inf, prod
from typing import NamedTuple

from dualform.errors import BadInput, BadMask

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


LONGEST = 1 << 18
"""Characters of any mask: room for a list of some tens of thousands of slots."""
REGULAR_EXPRESSIONS = ("regexp_matches", "regexp_full_match")
MOST_STATES = 4096
"""Of all regular expressions of a bounded mask together: as many letters, or fewer with repetitions."""
_CLASS_STATES = 64
"""Of a class of Unicode's, as \\pL."""
_CLASS, _REPETITION = re.compile(r"\\[pP]"), re.compile(r"\{(\d*),?(\d*)\}")


class Pattern(NamedTuple):
    function: str
    text: str | None
    """None where it is no constant."""

    @property
    def states(self) -> int:
        """About as many as the program of a regular expression has, or more; 0 for other patterns."""
        if self.function not in REGULAR_EXPRESSIONS or self.text is None:
            return 0
        letters = len(self.text) + _CLASS_STATES * len(_CLASS.findall(self.text))
        # Counts of repetitions one inside another multiply; more than five digits are refused in any case.
        counts = (int((last or first or "1")[:6]) for first, last in _REPETITION.findall(self.text))
        return letters * prod(max(1, count) for count in counts)


def require_short(text: str, bounds: QuestionBounds) -> None:
    """Raises BadMask for a text of more bytes than there may be."""
    if len(text) > bounds.where_bytes or len(text.encode(errors="replace")) > bounds.where_bytes:
        raise BadMask(
            f"where must be at most {bounds.where_bytes:,} bytes long on this server.",
            hint=f"Name fewer values, or a range of slots. dualform.open reads up to {LONGEST:,} characters.",
            field="where",
        )


def require_simple(nodes: int, patterns: tuple[Pattern, ...], bounds: QuestionBounds) -> None:
    """Raises BadMask for a mask of more nodes or patterns than there may be, or of larger ones."""
    if bounds == UNBOUNDED:
        return
    if nodes > bounds.where_nodes:
        raise _beyond(f"where must have at most {bounds.where_nodes} parts, not {nodes}.", "Name fewer values.")
    if len(patterns) > bounds.patterns:
        raise _beyond(
            f"where must have at most {bounds.patterns} patterns, not {len(patterns)}.",
            "Join regular expressions with |.",
        )
    longest = max((len(one.text) for one in patterns if one.text is not None), default=0)
    if longest > bounds.pattern_letters:
        raise _beyond(
            f"A pattern in where must be at most {bounds.pattern_letters} letters long, not {longest}.", "Split it."
        )
    if any(one.text is None and one.function in REGULAR_EXPRESSIONS for one in patterns):
        raise _beyond("A regular expression in where must be a constant.", "Write it as a text in quotes.")
    if sum(one.states for one in patterns) > MOST_STATES:
        raise _beyond(
            f"The regular expressions in where must have at most {MOST_STATES} states.",
            r"Repeat less, for example {2} instead of {20}, and use fewer classes such as \pL.",
        )


def _beyond(message: str, hint: str) -> BadMask:
    return BadMask(message, hint=f"{hint} dualform.open on the folder has no such limit.", field="where")


_taken = threading.local()


def add(seconds: float) -> None:
    """To be called by the thread that asked, once its helper has ended."""
    _taken.seconds = taken() + seconds


def taken() -> float:
    """Seconds of the processor that helpers took for this thread since it began."""
    return float(getattr(_taken, "seconds", 0.0))

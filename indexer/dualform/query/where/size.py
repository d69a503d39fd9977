"""How large a mask may be where strangers write it.

A regular expression becomes a program before the first slot is looked at, which nothing interrupts: its size is
estimated from its text, before it is made.
"""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

from dualform.errors import BadMask
from dualform.query.bounds import UNBOUNDED, QuestionBounds

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
            f"where takes more than {bounds.where_bytes} bytes.",
            hint=f"Name fewer values, or a range of slots. In process {LONGEST} characters are read.",
            field="where",
        )


def require_simple(nodes: int, patterns: tuple[Pattern, ...], bounds: QuestionBounds) -> None:
    """Raises BadMask for a mask of more nodes or patterns than there may be, or of larger ones."""
    if bounds == UNBOUNDED:
        return
    if nodes > bounds.where_nodes:
        raise _beyond(f"where has {nodes} parts; at most {bounds.where_nodes} are read.", "Name fewer values.")
    if len(patterns) > bounds.patterns:
        raise _beyond(
            f"where has {len(patterns)} patterns; at most {bounds.patterns} are matched.",
            "Join regular expressions with |.",
        )
    longest = max((len(one.text) for one in patterns if one.text is not None), default=0)
    if longest > bounds.pattern_letters:
        raise _beyond(f"a pattern in where has {longest} letters; it may have {bounds.pattern_letters}.", "Split it.")
    if any(one.text is None and one.function in REGULAR_EXPRESSIONS for one in patterns):
        raise _beyond("a regular expression in where is no constant.", "Write it as a text in quotes.")
    if sum(one.states for one in patterns) > MOST_STATES:
        raise _beyond(
            f"the regular expressions in where have more than {MOST_STATES} states.",
            r"Repeat less, as {2} instead of {20}, and use fewer classes as \pL.",
        )


def _beyond(message: str, hint: str) -> BadMask:
    return BadMask(message, hint=f"{hint} In process there is no such bound.", field="where")

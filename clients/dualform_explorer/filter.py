"""The filter of a page: chips and an SQL condition, written together as one SQL `where`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from dualform.errors import BadMask
from dualform_explorer.chip import Chip

_LETTER = r"A-Za-z_\x80-\x9f\xa1-\u1fff\u200c-\u202e\u2030-\u205e\u2061-\u2fff\u3001-\ufefe\uff00-\U0010ffff"
"""Of a name: whatever is beyond ASCII, but for what DuckDB takes for a space."""
_TOKEN = re.compile(
    rf"""
    (?<![{_LETTER}0-9$]) [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
    | (?<![{_LETTER}0-9$]) \$((?:[{_LETTER}][{_LETTER}0-9]*)?)\$.*?\$\1\$
    | --[^\n\r]* | /\* | [()]
    """,
    re.DOTALL | re.VERBOSE,
)
"""Texts, names, comments of a line, the beginnings of others, and parentheses, as DuckDB reads them."""
_COMMENT = re.compile(r"/\*|\*/")
"""What counts within a comment: they may stand in one another."""


def where_of(
    chips: Iterable[Chip], own: str = "", before: int | None = None, complete: Collection[str] = ()
) -> str | None:
    """The slots that stay; None where all do. Chips that leave slots out all hold; of those about the same columns that
    name what alone stays, one must hold.

    `before`: slots of earlier steps alone. `complete`: columns known to be NULL nowhere. Raises BadMask for a condition
    that would end the parentheses around it, as "a) OR (b", and so let slots in that a chip leaves out.
    """
    parts: list[str] = []
    allowed: dict[tuple[str, ...], list[str]] = {}
    for chip in chips:
        sql = chip.sql(complete)
        if chip.only:
            allowed.setdefault(chip.columns, []).append(sql)
        else:
            parts.append(sql)
    parts = [one[0] if len(one) == 1 else f"({' OR '.join(one)})" for one in allowed.values()] + parts
    if own:
        parts.append(_enclosed(own) if parts or before is not None else own)
    if before is not None:
        parts.append(f"step < {before}")
    return " AND ".join(parts) or None


def _enclosed(own: str) -> str:
    depth, within, place = 0, 0, 0
    while depth >= 0 and (token := (_COMMENT if within else _TOKEN).search(own, place)) is not None:
        place = token.end()
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        within += {"/*": 1, "*/": -1}.get(token[0], 0)
    if within:
        raise BadMask(f"{own!r} begins a comment that it does not end.", hint="End it with */.", field="where")
    if depth:
        does = (
            "opens a parenthesis that it does not close" if depth > 0 else "closes a parenthesis that it did not open"
        )
        raise BadMask(f"{own!r} {does}.", hint="Give one condition, whole by itself.", field="where")
    return f"({own}\n)"  # on a line of its own, for it may end in a comment

"""The mask of a page: chips and a condition of one's own, written together as one SQL `where`."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dualform_explorer.chip import Chip


def where_of(
    chips: Iterable[Chip], own: str = "", before: int | None = None, complete: Collection[str] = ()
) -> str | None:
    """The slots that stay; None where all do. Chips that leave slots out all hold; of those about the same columns that
    name what alone stays, one must hold.

    `before`: slots of earlier steps alone. `complete`: columns known to be NULL nowhere.
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
        # On a line of its own, for it may end in a comment.
        parts.append(f"({own}\n)" if parts or before is not None else own)
    if before is not None:
        parts.append(f"step < {before}")
    return " AND ".join(parts) or None

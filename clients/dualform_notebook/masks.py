"""Filters by mouse, as a front end gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dualform.errors import BadInput
from dualform_explorer.filter import Chip


def chip_of(given: Any) -> Chip:
    """A group of slots to remove, or to keep: {"values": {column: value}, "keep": false}; None is NULL.

    Raises BadInput for anything else.
    """
    values = given.get("values") if isinstance(given, Mapping) else None
    if (
        not isinstance(values, Mapping)
        or not values
        or not isinstance(given.get("keep", False), bool)
        or not all(isinstance(value, str | int | float | bool | None) for value in values.values())
    ):
        raise BadInput(f"a mask is {given!r}.", hint='Give {"values": {"label": 3}, "keep": False}.', field="masks")
    return Chip.of(given.get("keep", False), list(map(str, values)), list(values.values()))


def words_of(chip: Chip) -> str:
    """As a reader has it."""
    return f"{'only' if chip.only else 'without'} {chip.words}"

"""Bounds on the size of an answer, which fills an agent's context. Answers count what they leave out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dualform.answers.table import WIDEST, json_value

MOST_BYTES = 32 << 10
"""The most bytes of an answer as JSON."""
MOST_ROWS = 200
MOST_TEXT = 300
"""Letters of a text that a memory holds."""
MOST_MESSAGE = 1000
"""Letters of an error's message, and of its hint: it stands twice in an answer, and a letter may take six bytes."""
MOST_NAMES = 30
"""Of datasets, columns, query sets and the like."""
MOST_QUERIES = 8
"""The most stored examples in one question."""


def bounded(record: Mapping[str, Any], rows: str) -> dict[str, Any]:
    """An answer as JSON has it, with as many of its `rows` as there is room for, and how many were left out."""
    found = {name: plain(value) for name, value in record.items()}
    every, kept = found[rows], []
    room = MOST_BYTES - _bytes({**found, rows: [], f"{rows}_left_out": len(every)})
    for row in every[:MOST_ROWS]:
        room -= _bytes(row) + 2
        if room < 0:
            break
        kept.append(row)
    return {**found, rows: kept, f"{rows}_left_out": len(every) - len(kept)}


def plain(value: Any) -> Any:
    """A value as JSON has it, which JavaScript may read; long texts are cut."""
    if isinstance(value, Mapping):
        return dict(zip(cut_apart(map(str, value)), map(plain, value.values()), strict=True))
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    found = json_value(value, WIDEST)
    return cut(found) if isinstance(found, str) else found


def as_json(value: Any) -> str:
    """In one line, as short as JSON can be."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def first(named: Mapping[str, Any]) -> dict[str, Any]:
    """The first of many names."""
    return dict(list(named.items())[:MOST_NAMES])


def cut(text: str, most: int = MOST_TEXT) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def cut_apart(names: Iterable[str]) -> list[str]:
    """The names, cut, with numbers at the ends of those that are alike then."""
    found: dict[str, None] = {}
    for name in names:
        own, number = cut(name), 1
        while own in found:
            number += 1
            own = f"{cut(name)[: MOST_TEXT - 10]}…{number}"
        found[own] = None
    return list(found)


def _bytes(value: Any) -> int:
    return len(as_json(value).encode(errors="replace"))

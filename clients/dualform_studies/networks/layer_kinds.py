"""Layers of a network of equal blocks, by what they are in their block."""

from __future__ import annotations

import re
from collections.abc import Iterable


def by_kind(layers: Iterable[str]) -> dict[str, dict[int, str]]:
    """Kind -> number of the block -> layer, of layers whose names hold one number; others are left out."""
    found: dict[str, dict[int, str]] = {}
    for layer in layers:
        if match := re.fullmatch(r".*\.(\d+)\.(.+)", layer):
            found.setdefault(match.group(2), {})[int(match.group(1))] = layer
    return found

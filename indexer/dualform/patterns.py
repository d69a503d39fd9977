"""Names and patterns of layers."""

from __future__ import annotations

from fnmatch import fnmatchcase


def matches(name: str, pattern: str) -> bool:
    """Whether a layer's name is, or fits, a pattern."""
    return name == pattern or fnmatchcase(name, pattern)

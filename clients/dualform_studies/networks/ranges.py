"""From the least to the greatest of some figures, in words."""

from __future__ import annotations

from collections.abc import Sequence


def span(figures: Sequence[float], form: str) -> str:
    """As "0.82 to 1.9", and one figure where both read the same; "none" without any."""
    if not figures:
        return "none"
    least, most = f"{min(figures):{form}}", f"{max(figures):{form}}"
    return least if least == most else f"{least} to {most}"

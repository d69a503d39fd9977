"""Scores by rank and the share that they make up, over one logarithmic axis of ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from dualform_explorer.numbers import rounded

_WIDTH, _HEIGHT = 1000.0, 300.0
_SMALL = 60
"""Points of a small figure."""


def rank_curve(points: Sequence[tuple[int, float, float]], small: bool = False) -> Markup:
    """Of each point its rank, score and share, ranks ascending. `small`: fewer of them, and without an axis."""
    if not points:
        return Markup("")
    if small:
        points = [*points[: -1 : max(1, len(points) // _SMALL)], points[-1]]
    ranks, scores, shares = zip(*points, strict=True)
    span = math.log10(ranks[-1]) or 1.0
    low, high = min(0.0, *scores), max(0.0, *scores)
    across = [_WIDTH * math.log10(rank) / span for rank in ranks]
    height = (high - low) or 1.0
    by_score = _line(across, [_HEIGHT * (high - own) / height for own in scores])
    by_share = _line(across, [_HEIGHT * (1 - own) for own in shares])
    zero = _HEIGHT * high / height
    lines = (
        f'<line x1="0" x2="{_WIDTH:g}" y1="{zero:.2f}" y2="{zero:.2f}" class="zero"/>'
        f'<polyline points="{by_share}" class="share"/><polyline points="{by_score}" class="score-line"/>'
    )
    box = f'viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" preserveAspectRatio="none"'
    if small:
        return Markup(f'<svg class="ranks" {box} aria-hidden="true">{lines}</svg>')  # numbers of ours alone
    decades = [10**power for power in range(int(span) + 1)]
    grid = "".join(
        f'<line x1="{100 * math.log10(own) / span:.3f}%" x2="{100 * math.log10(own) / span:.3f}%" y1="0" y2="100%" '
        'class="grid"/>'
        for own in decades
    )
    names = "".join(
        f'<text x="{100 * math.log10(own) / span:.3f}%" y="100%" dy="1.2em" text-anchor="{_anchor(own, span)}">'
        f"{rounded(own)}</text>"
        for own in decades
    )
    return Markup(  # numbers of ours alone
        f'<svg class="ranks" aria-hidden="true">{grid}{names}<svg {box} width="100%" height="100%">{lines}</svg></svg>'
    )


def _line(across: Sequence[float], down: Sequence[float]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))


def _anchor(rank: int, span: float) -> str:
    place = math.log10(rank) / span
    return "start" if place < 0.02 else "end" if place > 0.95 else "middle"

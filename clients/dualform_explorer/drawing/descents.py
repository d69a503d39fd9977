"""Scores of several groups side by side, each group's in descending order."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

_HEIGHT = 300.0


def descents(groups: Sequence[tuple[int, Sequence[float]]], ranked: int) -> Markup:
    """Of each group its hue and its scores; a group has a place for `ranked` of them."""
    every = [score for _, scores in groups for score in scores]
    low, high = min(0.0, *every, 0.0), max(0.0, *every, 0.0)
    scale = _HEIGHT / ((high - low) or 1.0)
    zero = high * scale
    width = float(ranked)
    parts = []
    for place, (hue, scores) in enumerate(groups):
        left = place * width
        if not scores:
            continue
        each = width / max(len(scores), ranked)
        line = " ".join(f"{left + rank * each:.1f},{zero - score * scale:.1f}" for rank, score in enumerate(scores))
        right = left + (len(scores) - 1) * each
        parts.append(f'<polygon points="{left:.1f},{zero:.1f} {line} {right:.1f},{zero:.1f}" class="h{hue}"/>')
        if place:
            parts.append(f'<line x1="{left:g}" x2="{left:g}" y1="0" y2="{_HEIGHT:g}" class="grid"/>')
    total = max(len(groups), 1) * width
    return Markup(  # numbers of ours alone
        f'<svg class="descents" viewBox="0 0 {total:g} {_HEIGHT:g}" preserveAspectRatio="none" aria-hidden="true">'
        f'{"".join(parts)}<line x1="0" x2="{total:g}" y1="{zero:.1f}" y2="{zero:.1f}" class="zero"/></svg>'
    )

"""Bars side by side over the steps of a training, each divided among datasets."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from dualform_explorer.numbers import rounded

_HEIGHT = 100.0


def histogram(bars: Sequence[tuple[int, int, Sequence[tuple[int, float]], float]], small: bool = False) -> Markup:
    """Of each bar its first and last step, the hue and size of its parts, and their sum: positive ones upwards, others
    down. `small`: without what is said of a bar that is pointed at.
    """
    up = max((sum(size for _, size in parts if size > 0) for _, _, parts, _ in bars), default=0.0)
    down = max((-sum(size for _, size in parts if size < 0) for _, _, parts, _ in bars), default=0.0)
    scale = _HEIGHT / (up + down) if up + down else 0.0
    zero = up * scale
    drawn = []
    for place, (first, last, parts, total) in enumerate(bars):
        high = low = zero
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        for hue, size in parts:
            height = abs(size) * scale
            top = low
            if size >= 0:
                high -= height
                top = high
            else:
                low += height
            drawn.append(f'<rect x="{place}" y="{top:.3f}" width="1.02" height="{height:.3f}" class="h{hue}"/>')
        if small:
            continue
        drawn.append(
            f'<rect x="{place}" y="0" width="1" height="{_HEIGHT:g}" class="hit" data-first="{first}" '
            f'data-last="{last}" data-said="{steps}: {rounded(total, 4)}"/>'
        )
    line = f'<line x1="0" x2="{len(bars)}" y1="{zero:.3f}" y2="{zero:.3f}" class="zero"/>'
    return Markup(
        f'<svg class="histogram" viewBox="0 0 {max(len(bars), 1)} {_HEIGHT:g}" preserveAspectRatio="none" '
        f'aria-hidden="true">{"".join(drawn)}{line}</svg>'
    )

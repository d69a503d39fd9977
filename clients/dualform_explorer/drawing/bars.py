"""Bars of single numbers, each as wide as its cell."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

_WIDTH, _HEIGHT = 200.0, 12.0


def bar(value: float, largest: float, signed: bool, kind: str = "", ghost: float | None = None) -> Markup:
    """A bar from zero: at the left, or in the middle where numbers of both signs are `signed`. `ghost`: an outline of
    what it was before; `kind`: a class of the stylesheet.
    """
    zero = _WIDTH / 2 if signed else 0.0
    scale = (_WIDTH - zero) / largest if largest else 0.0
    own = _rect(value * scale, zero, 2.0, _HEIGHT - 4.0, kind or ("plus" if value >= 0 else "minus"))
    was = "" if ghost is None else _rect(ghost * scale, zero, 0.5, _HEIGHT - 1.0, "ghost")
    line = f'<line x1="{zero:g}" x2="{zero:g}" y1="0" y2="{_HEIGHT:g}" class="zero"/>'
    return Markup(  # numbers of ours and names of classes
        f'<svg class="bar" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" preserveAspectRatio="none" aria-hidden="true">'
        f"{was}{own}{line}</svg>"
    )


def columns(values: Sequence[tuple[float | None, int, float | None, str]], largest: float) -> Markup:
    """Small upright bars side by side: of each its value, its hue, an outline of what it was before, and its name."""
    width, height = 10.0, 40.0
    signed = any((own or 0.0) < 0 for value, _, was, _ in values for own in (value, was))
    zero = height / 2 if signed else height
    scale = (height / 2 if signed else height) / largest if largest else 0.0
    parts = []
    for place, (value, hue, was, name) in enumerate(values):
        for own, kind in ((was, "ghost"), (value, f"h{hue}")):
            if own is not None:
                size = abs(own) * scale
                top = zero - size if own >= 0 else zero
                left, wide = place * width + 1, width - 2
                parts.append(
                    f'<rect x="{left:g}" y="{top:.2f}" width="{wide:g}" height="{size:.2f}" class="{kind}">'
                    f"<title>{escape(name)}</title></rect>"
                )
    total = max(len(values), 1) * width
    line = f'<line x1="0" x2="{total:g}" y1="{zero:g}" y2="{zero:g}" class="zero"/>'
    return Markup(
        f'<svg class="columns" viewBox="0 0 {total:g} {height:g}" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(parts)}{line}</svg>"
    )


def _rect(length: float, zero: float, top: float, height: float, kind: str) -> str:
    left = zero + min(length, 0.0)
    return f'<rect x="{left:.2f}" y="{top:g}" width="{abs(length):.2f}" height="{height:g}" class="{kind}"/>'


def span(begin: float, end: float, ends: tuple[float, float], kind: str) -> Markup:
    """A bar from one number to another, of those between `ends`; a line stands at zero."""
    low, high = ends
    scale = _WIDTH / (high - low) if high > low else 0.0
    zero, start = (0.0 - low) * scale, (begin - low) * scale
    own = _rect((end - begin) * scale, start, 2.0, _HEIGHT - 4.0, kind)
    line = f'<line x1="{zero:.2f}" x2="{zero:.2f}" y1="0" y2="{_HEIGHT:g}" class="zero"/>'
    return Markup(
        f'<svg class="bar" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" preserveAspectRatio="none" aria-hidden="true">'
        f"{own}{line}</svg>"
    )

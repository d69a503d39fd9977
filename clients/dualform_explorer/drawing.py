"""Figures as inline SVG. The HTML next to a figure gives its units.

Colours are CSS classes, so that figures follow light and dark mode: h0 to h9 for groups, `plus` and `minus` for signs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup, escape

from dualform_explorer.words import rounded

_WIDTH, _HEIGHT = 200.0, 12.0


def bar(value: float, largest: float, signed: bool, kind: str = "", ghost: float | None = None) -> Markup:
    """A bar from zero. Zero is at the left, or in the middle if values are `signed`. `ghost`: a previous value, drawn
    as an outline; `kind`: a CSS class.
    """
    size = largest or 1.0
    return span(0.0, value, (-size if signed else 0.0, size), kind or ("plus" if value >= 0 else "minus"), ghost)


def span(begin: float, end: float, ends: tuple[float, float], kind: str, ghost: float | None = None) -> Markup:
    """A bar between two numbers, on an axis with the given `ends` and a line at zero. `ghost`: a previous end, drawn as
    an outline.
    """
    place = _axis(ends)

    def rect(end: float, top: float, kind: str) -> str:
        left, right = sorted((place(begin), place(end)))
        high = _HEIGHT - 2 * top
        return f'<rect x="{left:.2f}" y="{top:g}" width="{right - left:.2f}" height="{high:g}" class="{kind}"/>'

    was = "" if ghost is None else rect(ghost, 0.5, "ghost")
    line = f'<line x1="{place(0.0):.2f}" x2="{place(0.0):.2f}" y1="0" y2="{_HEIGHT:g}" class="zero"/>'
    return Markup(  # only numbers and class names
        f'<svg class="bar" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" preserveAspectRatio="none" aria-hidden="true">'
        f"{was}{rect(end, 2.0, kind)}{line}</svg>"
    )


def _axis(ends: tuple[float, float]) -> Callable[[float], float]:
    """The place of a number across a bar."""
    low, high = ends
    return lambda value: (value - low) * _WIDTH / (high - low) if high > low else 0.0


def columns(values: Sequence[tuple[float | None, int, float | None, str]], largest: float) -> Markup:
    """Small upright bars side by side, each with a value, a hue, a previous value (an outline) and a name."""
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


def ticks(values: Sequence[float], ends: tuple[float, float], mark: float) -> Markup:
    """Numbers as ticks on an axis with the given `ends`: a thick one at `mark`, a thin one at zero."""
    place, zero = _axis(ends), [(0.0, 0, "zero")] if ends[0] <= 0 <= ends[1] else []
    drawn = "".join(
        f'<line x1="{place(value):.2f}" x2="{place(value):.2f}" y1="{top}" y2="{_HEIGHT - top:g}" class="{kind}"/>'
        for value, top, kind in (*zero, *((value, 2.5, "tick") for value in values), (mark, 0, "mark"))
    )
    return Markup(
        f'<svg class="bar ticks" viewBox="-2 0 {_WIDTH + 4:g} {_HEIGHT:g}" preserveAspectRatio="none" '
        f'aria-hidden="true">{drawn}</svg>'
    )


_DESCENT = 300.0


def descents(groups: Sequence[tuple[int, Sequence[float]]], ranked: int) -> Markup:
    """Curves of descending scores. Each group has a hue and its scores, and room for `ranked` of them."""
    every = [score for _, scores in groups for score in scores]
    low, high = min(0.0, *every, 0.0), max(0.0, *every, 0.0)
    scale = _DESCENT / ((high - low) or 1.0)
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
            parts.append(f'<line x1="{left:g}" x2="{left:g}" y1="0" y2="{_DESCENT:g}" class="grid"/>')
    total = max(len(groups), 1) * width
    return Markup(  # only numbers
        f'<svg class="descents" viewBox="0 0 {total:g} {_DESCENT:g}" preserveAspectRatio="none" aria-hidden="true">'
        f'{"".join(parts)}<line x1="0" x2="{total:g}" y1="{zero:.1f}" y2="{zero:.1f}" class="zero"/></svg>'
    )


_LINES_WIDTH, _LINES_HEIGHT = 1000.0, 160.0
_HISTOGRAM_HEIGHT = 100.0


def lines(
    at: Sequence[int], several: Sequence[tuple[int, Sequence[float]]], ends: tuple[float, float], few: bool = False
) -> Markup:
    """Lines over the steps `at`, each with a hue and values, on an axis with the given `ends` and a rule at zero.
    `few`: steps are missing, so that those at hand are dots on a dashed line.
    """
    low, high = ends
    first, last = at[0], max(at[-1], at[0] + 1)
    up = _LINES_HEIGHT / ((high - low) or 1.0)
    drawn = []
    for hue, values in several:
        places = [
            f"{_LINES_WIDTH * (step - first) / (last - first):.1f},{(high - value) * up:.1f}"
            for step, value in zip(at, values, strict=True)
            if math.isfinite(value)
        ]
        drawn.append(f'<polyline points="{" ".join(places)}" class="h{hue}{" dashed" if few else ""}"/>')
        if few:  # a line without length and with a round end is a dot, however the figure is stretched
            drawn.append(f'<path d="{" ".join(f"M{own}h0" for own in places)}" class="dots h{hue}"/>')
    zero = high * up
    rule = f'<line x1="0" x2="{_LINES_WIDTH:g}" y1="{zero:.1f}" y2="{zero:.1f}" class="zero"/>'
    cursor = f'<line class="cursor" x1="0" x2="0" y1="0" y2="{_LINES_HEIGHT:g}"/>'
    return Markup(  # only numbers
        f'<svg class="lines" viewBox="0 0 {_LINES_WIDTH:g} {_LINES_HEIGHT:g}" preserveAspectRatio="none" '
        f'aria-hidden="true">{rule if low <= 0 <= high else ""}{"".join(drawn)}{cursor}</svg>'
    )


def histogram(bars: Sequence[tuple[int, int, Sequence[tuple[int, float]], float]], small: bool = False) -> Markup:
    """A histogram over steps. Each bar has its first and last step, the hue and size of its parts, and their sum.
    Positive parts go up, negative ones down. `small`: without tooltips.
    """
    up = max((sum(size for _, size in parts if size > 0) for _, _, parts, _ in bars), default=0.0)
    down = max((-sum(size for _, size in parts if size < 0) for _, _, parts, _ in bars), default=0.0)
    scale = _HISTOGRAM_HEIGHT / (up + down) if up + down else 0.0
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
            f'<rect x="{place}" y="0" width="1" height="{_HISTOGRAM_HEIGHT:g}" class="hit" data-first="{first}" '
            f'data-last="{last}" data-said="{steps}: {rounded(total, 4)}"/>'
        )
    line = f'<line x1="0" x2="{len(bars)}" y1="{zero:.3f}" y2="{zero:.3f}" class="zero"/>'
    return Markup(
        f'<svg class="histogram" viewBox="0 0 {max(len(bars), 1)} {_HISTOGRAM_HEIGHT:g}" preserveAspectRatio="none" '
        f'aria-hidden="true">{"".join(drawn)}{line}</svg>'
    )


_ACROSS, _BAR, _NAME, _LETTER, _PHONE = 1000.0, 20, 22, 7.0, 330.0
"""The width of a ribbon in its own units; then, in pixels, the height of a bar, of the name above it, the width of a
letter, and of a phone."""


def ribbon(layers: Sequence[tuple[str, str, str, bool, Sequence[tuple[int, float, str, str] | None]]]) -> Markup:
    """Layers from top to bottom. Each has the shares of its groups side by side: positive ones to the right of zero,
    negative ones to the left. A band joins the shares of a group in neighbouring layers.

    `layers`: name, title, link and whether it is chosen; then for each group, in the same order in all layers, its hue,
    share, text and tooltip, or None if the layer lacks the group.
    """
    pitch, above = 64 if len(layers) <= 12 else _BAR + _NAME, list[tuple[float, float] | None]()
    left, right = (
        max((sum(max(sign * own[1], 0.0) for own in parts if own) for *_, parts in layers), default=0.0)
        for sign in (-1, 1)
    )
    scale = _ACROSS / ((left + right) or 1.0)
    bands, drawn = list[str](), list[str]()
    for number, (name, called, address, chosen, parts) in enumerate(layers):
        top, ends, here = number * pitch + _NAME, [left * scale] * 2, list[tuple[float, float] | None]()
        frame, current = f'<rect y="{top}" width="100%" height="{_BAR}" class="frame"/>', ' aria-current="true"'
        drawn.append(
            f'<a href="{escape(address)}" class="card" data-layer="{escape(name)}"{current if chosen else ""}>'
            f'<text y="{top - 6}">{escape(called)}</text>'
        )
        for part in parts:
            here.append(None)
            if part is None:
                continue
            hue, share, written, said = part
            side = share >= 0
            begin, ends[side] = ends[side], ends[side] + share * scale
            low, high = here[-1] = min(begin, ends[side]), max(begin, ends[side])
            place = f'x="{low / 10:.2f}%" width="{(high - low) / 10:.2f}%" y="{top}" height="{_BAR}"'
            drawn.append(f'<rect {place} class="h{hue}"><title>{escape(said)}</title></rect>')
            if (high - low) / _ACROSS * _PHONE > _LETTER * len(written) + 2:
                middle = f'x="{(low + high) / 20:.2f}%" y="{top + 14}"'
                drawn.append(f'<text {middle} class="on" aria-hidden="true">{escape(written)}</text>')
            if above and (was := above[len(here) - 1]):
                up, half = top - pitch + _BAR, top - (pitch - _BAR) / 2
                path = f"M{was[0]:.1f} {up}C{was[0]:.1f} {half} {low:.1f} {half} {low:.1f} {top}H{high:.1f}"
                path += f"C{high:.1f} {half} {was[1]:.1f} {half} {was[1]:.1f} {up}Z"
                bands.append(f'<path class="h{hue}" d="{path}"/>')
        drawn.append(f"{frame if chosen else ''}</a>")
        above = here
    high = pitch * (len(layers) - 1) + _NAME + _BAR
    size = f'width="100%" height="{high}"'
    zero = f'<line x1="{left * scale / 10:.2f}%" x2="{left * scale / 10:.2f}%" y1="0" y2="100%" class="zero"/>'
    return Markup(  # only numbers and escaped texts
        f'<svg class="ribbon" {size}><svg viewBox="0 0 {_ACROSS:g} {high}" {size} '
        f'preserveAspectRatio="none">{"".join(bands)}</svg>{"".join(drawn)}{zero if left else ""}</svg>'
    )


_RANKS_WIDTH, _RANKS_HEIGHT = 1000.0, 300.0


def rank_curve(points: Sequence[tuple[int, float, float]]) -> Markup:
    """Each point has a rank, a score and a share; ranks ascend."""
    if not points:
        return Markup("")
    ranks, scores, shares = zip(*points, strict=True)
    span = math.log10(ranks[-1]) or 1.0
    low, high = min(0.0, *scores), max(0.0, *scores)
    across = [_RANKS_WIDTH * math.log10(rank) / span for rank in ranks]
    height = (high - low) or 1.0
    by_score = _line(across, [_RANKS_HEIGHT * (high - own) / height for own in scores])
    by_share = _line(across, [_RANKS_HEIGHT * (1 - own) for own in shares])
    zero = _RANKS_HEIGHT * high / height
    lines = (
        f'<line x1="0" x2="{_RANKS_WIDTH:g}" y1="{zero:.2f}" y2="{zero:.2f}" class="zero"/>'
        f'<polyline points="{by_share}" class="share"/><polyline points="{by_score}" class="score-line"/>'
    )
    box = f'viewBox="0 0 {_RANKS_WIDTH:g} {_RANKS_HEIGHT:g}" preserveAspectRatio="none"'
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
    return Markup(  # only numbers
        f'<svg class="ranks" aria-hidden="true">{grid}{names}<svg {box} width="100%" height="100%">{lines}</svg></svg>'
    )


def _line(across: Sequence[float], down: Sequence[float]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))


def _anchor(rank: int, span: float) -> str:
    place = math.log10(rank) / span
    return "start" if place < 0.02 else "end" if place > 0.95 else "middle"


def boxed(box: Any) -> Markup:
    """A frame that the stylesheet puts over a picture."""
    width, height = box.picture
    frame = f'x="{box.x:.2f}" y="{box.y:.2f}" width="{box.width:.2f}" height="{box.height:.2f}"'
    line = max(width, height) / 60
    return Markup(
        f'<svg class="over" viewBox="0 0 {width:g} {height:g}" aria-hidden="true">'
        f'<rect {frame} class="frame behind" stroke-width="{2 * line:.2f}"/>'
        f'<rect {frame} class="frame" stroke-width="{line:.2f}"/></svg>'
    )


def heat_map(cells: Sequence[tuple[str, str, str]], grid: tuple[int, int], chosen: int) -> Markup:
    """A grid of cells over a picture, row by row. Each cell has a colour class, a link and a tooltip."""
    rows, columns = grid
    parts = []
    for number, (colour, address, words) in enumerate(cells):
        row, column = divmod(number, columns)
        place = f'x="{column}" y="{row}" width="1" height="1"'
        parts.append(f'<rect {place} class="heat {escape(colour)}"/>')
        said = f"<title>{escape(words)}</title>"
        parts.append(f'<a href="{escape(address)}" tabindex="-1"><rect {place} class="hit">{said}</rect></a>')
    row, column = divmod(chosen, columns)
    parts += [
        f'<rect x="{column}" y="{row}" width="1" height="1" class="frame {kind}" stroke-width="{wide}"/>'
        for kind, wide in (("behind", max(rows, columns) / 30), ("", max(rows, columns) / 60))
    ]
    return Markup(f'<svg class="over" viewBox="0 0 {columns} {rows}" preserveAspectRatio="none">{"".join(parts)}</svg>')

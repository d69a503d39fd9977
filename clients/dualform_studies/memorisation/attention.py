"""The attention pattern as a trigonometric polynomial, and the edges of what the attention layer adds up.

A head's raw pattern is the difference of the last token's two attention logits, so the attention to the first token is
its sigmoid. With the two words at the angles t1 and t2 of their circle, r(t) = (cos t, sin t), W = sqrt(d) [u v] with
the circle's axes u, v in its columns, q_1 and q_2 the positions' vectors and s = q_1 - q_2 (shapes: e the head's
dimension, d = 3; G points a side, H heads):

    x_j = W r(t_j) + q_j                                        the stream
    raw = x_2 . M (x_1 - x_2)                                   M = Q^T K / sqrt(e), of rank e at most
        = r_2 . A r_1  -  r_2 . A r_2  +  (b - c) . r_2  +  c . r_1  +  q_2 . M s

    A = W^T M W        b = W^T M s        c = W^T M^T q_2

Multiplied out, with A = [[A11, A12], [A21, A22]]:

    1              q_2 . M s - (A11 + A22) / 2
    cos t1         c_1                              sin t1         c_2
    cos t2         b_1 - c_1                        sin t2         b_2 - c_2
    cos(t1 - t2)   (A11 + A22) / 2                  sin(t1 - t2)   (A12 - A21) / 2
    cos(t1 + t2)   (A11 - A22) / 2                  sin(t1 + t2)   (A12 + A21) / 2
    cos 2 t2      -(A11 - A22) / 2                  sin 2 t2      -(A12 + A21) / 2

The harmonics are eleven, and the last two are tied to those of t1 + t2, which leaves nine numbers. A head of dimension
3 can have any nine: [W q_2]^T M [W s] is any 3 x 3 matrix, unless q_2 or s lies in the circle's plane. One
of dimension 2 has a matrix of rank 2 there, eight numbers, and one of dimension 1, of rank 1, five: `product_pattern`.

This is the polynomial of which "Visualizing small Attention-only Transformers" speaks; the derivation is ours.

What that text observes of the layer's output in one network is measured in several. All maps are linear in the stream,
so they add up, and so do their colours: (red, green, blue) = 1/2 + v / (2 R), with R the greatest numbers of any map in
a figure, so that nothing is clipped. Opposite sides of the torus are joined, so every difference and every distance
goes around.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import maximum_filter
from torch import Tensor

from dualform_studies.claims import Claim, judge, plain_percent
from dualform_studies.figures import PALETTE, new_figure, save_animation
from dualform_studies.memorisation.torus import (
    AXES,
    PLACED,
    TorusMaps,
    grid_angles,
    grid_of,
    level_line,
    mark_pairs,
    paint,
    pair_places,
    torus_axes,
    torus_maps,
    word_angles,
)
from dualform_studies.memorisation.transformer import HEAD_WIDTH, LENGTH, WIDTH, AttentionOnly, Recipe
from dualform_studies.report import Page, report_folder

Head: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Query and key [e, d] and the positions [d, S] in columns, of float64."""
_NOTHING = 1e-9  # beside the greatest of several numbers, one this small is a rounding error
_HEADS = 60  # random heads whose harmonics and parameters are counted
_SIDE = 16  # points a side of the grid whose Fourier transform is taken: more than twice the highest frequency


def coefficients(query: Tensor, key: Tensor, positions: Tensor) -> Tensor:
    """[11]: by harmonic, for a head of any dimension e: `query` and `key` [e, d], `positions` [d, 2] in columns.

    Of float64, and differentiable.
    """
    form = query.T @ key / len(query) ** 0.5
    circle = WIDTH**0.5 * AXES.T
    last, shift = positions[:, 1], positions[:, 0] - positions[:, 1]
    both = circle.T @ form @ circle
    to_last = circle.T @ form @ shift - circle.T @ form.T @ last
    to_first = circle.T @ form.T @ last
    even, odd = (both[0, 0] - both[1, 1]) / 2, (both[0, 1] + both[1, 0]) / 2
    half_trace = (both[0, 0] + both[1, 1]) / 2
    constant = last @ form @ shift - half_trace
    turned = (both[0, 1] - both[1, 0]) / 2
    return torch.stack([constant, *to_first, *to_last, half_trace, turned, even, odd, -even, -odd])


def head_coefficients(network: AttentionOnly) -> NDArray[np.float64]:
    """float64[H, 11]: of each head of the network."""
    weights = {name: weight.detach().double() for name, weight in network.state_dict().items()}
    heads = zip(weights["query.weight"].split(HEAD_WIDTH), weights["key.weight"].split(HEAD_WIDTH), strict=True)
    return torch.stack([coefficients(query, key, weights["position.weight"]) for query, key in heads]).numpy()


def evaluate(of: NDArray[np.float64], first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """The polynomials with coefficients float64[..., 11] at angles [...] in radians: float64[..., *angles.shape]."""
    angles = (first, second, first - second, first + second, 2 * second)
    harmonics = [np.ones_like(first), *(wave(angle) for angle in angles for wave in (np.cos, np.sin))]
    return np.tensordot(of, np.stack(harmonics), axes=1)


def product_pattern(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    phase: float,
    offset: float,
    key_phase: float,
    key_offset: float,
) -> NDArray[np.float64]:
    """The raw pattern of a head of dimension 1, but for its scale: these are the other four of five free parameters.

    The first factor is the query, the second the difference of the keys. Its level lines are therefore those of the
    factors: t2 held at two values, and a curve.
    """
    keys = np.cos(first - key_phase) - np.cos(second - key_phase) + key_offset
    return np.asarray((np.cos(second - phase) + offset) * keys)


def polynomial_error(network: AttentionOnly, points: int) -> float:
    """The greatest difference between a head's raw pattern on the torus and its polynomial, over the pattern's range.

    Attention would not do: its sigmoid hides what is wrong where it is all but 0 or 1.
    """
    raw = torus_maps(network, points).raw
    differences = np.abs(evaluate(head_coefficients(network), *grid_angles(points)) - raw)
    return float((differences.max(axis=(1, 2)) / np.ptp(raw, axis=(1, 2))).max())


def random_heads(dimension: int, draws: int) -> Iterator[Head]:
    """So many heads of dimension e with positions of their own, all from a normal distribution."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(draws):
        sizes = ((dimension, WIDTH), (dimension, WIDTH), (WIDTH, LENGTH))
        query, key, positions = (torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
        yield query, key, positions


def raw_pattern(head: Head, points: Tensor) -> Tensor:
    """[B]: the difference of the last token's two attention logits, for words at `points` [B, S, d] of the circle."""
    query, key, positions = head
    stream = points + positions.T
    asked, keys = stream[:, 1] @ query.T, stream @ key.T
    raw: Tensor = (asked * (keys[:, 0] - keys[:, 1])).sum(dim=-1) / len(query) ** 0.5
    return raw


def count_harmonics(head: Head) -> int:
    """Sines and cosines that the head's pattern is made of, and the constant as one, by its Fourier transform."""
    raw = raw_pattern(head, grid_of(_SIDE)).view(_SIDE, _SIDE).numpy()
    # On a grid that begins at 0, cosines are real parts and sines imaginary ones; ours begins half a cell later.
    frequencies = np.fft.fftfreq(_SIDE, 1 / _SIDE)
    spectrum = np.fft.fft2(raw) * np.exp(-1j * np.pi / _SIDE * (frequencies[:, None] + frequencies))
    parts = np.abs(np.stack([spectrum.real, spectrum.imag]))
    # The transform of real numbers holds every frequency twice, but for the constant.
    return 1 + int((parts > _NOTHING * parts.max()).sum() - 1) // 2


def count_parameters(head: Head) -> int:
    """Directions in which the pattern's coefficients move with the head's numbers: the rank of their Jacobian."""
    blocks = torch.func.jacrev(coefficients, argnums=(0, 1, 2))(*head)
    jacobian = torch.cat([block.flatten(1) for block in blocks], dim=1).numpy()
    return int(np.linalg.matrix_rank(jacobian, tol=_NOTHING * np.abs(jacobian).max()))


def polynomial_claims(networks: Sequence[AttentionOnly], points: int) -> list[Claim]:
    """That the pattern is a trigonometric polynomial, of so many harmonics and parameters."""
    error = max(polynomial_error(network, points) for network in networks)
    ours = f"the two differ by {error:.0e} of the pattern's range at most, in {len(networks)} trained networks"
    claims = [judge("memorisation.polynomial", error, ours)]
    multiplied_out = "; seven is how many terms its product has when it is multiplied out"
    for dimension, what, said, count, remark in (
        (3, "harmonics", 11, count_harmonics, ""),
        (3, "free parameters", 9, count_parameters, ""),
        (1, "harmonics", 7, count_harmonics, multiplied_out),
        (1, "free parameters", 5, count_parameters, ""),
    ):
        counts = np.array([count(head) for head in random_heads(dimension, _HEADS)])
        numbers, times = np.unique(counts, return_counts=True)
        first, *others = sorted(zip(times.tolist(), numbers.tolist(), strict=True), reverse=True)
        found = [f"{first[1]} in {first[0]} of {_HEADS} random heads", *(f"{one} in {often}" for often, one in others)]
        ours, share = ", ".join(found) + remark, float((counts == said).mean())
        claims.append(judge("memorisation.parameters", share, ours, dimension=dimension, count=said, what=what))
    return claims


_FRAMES = 24
_MILLISECONDS = 180
_SIDES = {"second": PALETTE[0], "first": PALETTE[6]}
"""By the token that gets more attention: dark and light, so that they stay apart without their colours."""


def circle_through(points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The circle through three points float64[3, n] that are not on one line; it begins at the first.

    Returns the centre, float64[n], and from it to the points at 0 and at 90 degrees, float64[2, n].
    """
    start, *others = points
    sides = np.stack([other - start for other in others])
    # The centre lies in the plane of the points, as far from the first as from each of the others.
    shares = np.linalg.solve(2 * sides @ sides.T, (sides**2).sum(axis=1))
    centre = start + shares @ sides
    begins = start - centre
    across = sides[0] - begins * (sides[0] @ begins) / (begins @ begins)
    return centre, np.stack([begins, across * np.linalg.norm(begins) / np.linalg.norm(across)])


def draw_level_lines(path: Path, coefficients: NDArray[np.float64], frames: int = _FRAMES) -> Path:
    """Left a head of dimension 3, on the circle through the patterns of the network's heads, float64[3, 11]; right one
    of dimension 1, whose query's phase turns once while both offsets swing.

    Patterns are brought to length 1, which moves no level line. Ties between coefficients are linear, so they hold all
    the way round. The PNG moves; the SVG is the first frame.
    """
    centre, targets = circle_through(coefficients / np.linalg.norm(coefficients, axis=1, keepdims=True))
    along = np.linspace(0, 2 * np.pi, 181)
    angles = np.meshgrid(along, along)
    taken: list[Image.Image] = []
    with new_figure(path, 4.0) as figure:
        axes = torus_axes(figure, columns=2)[0]
        axes[0].set_title("a head of dimension 3: all nine parameters")
        axes[1].set_title("a head of dimension 1: three of five")
        handles = [
            Patch(facecolor=ink, edgecolor="black", label=f"more attention to the {token} token")
            for token, ink in _SIDES.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
        # The last is the first again: what the SVG will show.
        for frame in [*range(frames), 0]:
            turn = 2 * np.pi * frame / frames
            cosine, sine = np.cos(turn), np.sin(turn)
            three = evaluate(centre + np.array([cosine, sine]) @ targets, *angles)
            one = product_pattern(*angles, turn, 0.7 * cosine, 0.0, 0.6 + 0.9 * sine)
            drawn = [*_draw_sides(axes[0], along, three), *_draw_sides(axes[1], along, one)]
            if len(taken) < frames:
                pixels = BytesIO()
                figure.savefig(pixels, format="png", dpi=100)
                taken.append(Image.open(pixels).convert("RGB"))
                # The first frame has laid out the figure for all of them.
                figure.set_layout_engine("none")
                for artist in drawn:
                    artist.remove()
    return save_animation(path, taken, _MILLISECONDS)


def _draw_sides(panel: Axes, along: NDArray[np.float64], raw: NDArray[np.float64]) -> list[Any]:
    """Where either token gets more attention, and the line between; antialiasing would make frames far larger."""
    degrees, most = np.degrees(along), float(np.abs(raw).max())
    levels, inks = [-2 * most, 0, 2 * most], list(_SIDES.values())
    filled = panel.contourf(degrees, degrees, raw, levels, colors=inks, antialiased=False)
    return [filled, panel.contour(degrees, degrees, raw, [0], colors="black", linewidths=1.4, antialiased=False)]


def polynomial_section(page: Page, network: AttentionOnly, recipe: Recipe) -> None:
    page.heading("The attention pattern's polynomial")
    page.paragraph(
        "The difference of the two attention logits, with which the last token chooses between the first token and "
        "itself, is `x₂ · M (x₁ - x₂)` with one matrix M for each head. A word at the angle t is `√3 (u cos t + v sin "
        "t)`, so the difference is a trigonometric polynomial of the two words' angles: in the first angle of degree "
        "1, in the second of degree 2, since the last token is asked about itself. Its eleven coefficients are linear "
        "in M; those of cos 2t₂ and sin 2t₂ are those of cos(t₁ + t₂) and sin(t₁ + t₂) with their sign changed, which "
        "leaves nine. Heads of dimension 2 have eight, since their M has rank 2. On a grid of the torus the difference "
        f"and the polynomial are apart by at most {polynomial_error(network, recipe.grid):.0e} of its range."
    )
    page.paragraph(
        "Of a head of dimension 1, M is a product of two vectors, and so is the pattern: `k (cos(t₂ - a) + b) "
        "(cos(t₁ - c) - cos(t₂ - c) + d)`, with five parameters k, a, b, c, d. Multiplied out it has seven terms: `k/2 "
        "cos(t₁ + t₂ - a - c) + k/2 cos(t₁ - t₂ + a - c) - k/2 cos(2t₂ - a - c) + k b cos(t₁ - c) - k b cos(t₂ - c) + "
        "k d cos(t₂ - a) + k (b d - cos(a - c) / 2)`. Its level line is that of its factors: two straight lines at "
        "which the query changes its sign, and a curve on which the two keys are equal."
    )
    page.figure(
        draw_level_lines(report_folder(page.run) / "level-line.png", head_coefficients(network)),
        "The level line at which both tokens get the same attention, moving as the parameters go round a circle. Left: "
        "the circle in the space of the nine parameters that passes through the patterns of this network's three "
        "heads. Right: a head of dimension 1, whose phase a turns while b and d swing.",
    )


STRONGEST = 0.1
"""The share of a map's points that are its steepest: those at which it changes fastest."""
REACH = 10.0
"""Degrees within which an edge lies at another."""
CHANCE = 0.05
"""Of all shifts: frontiers that fewer bring as near to the level lines lie there by more than chance."""
_ACROSS = ((1, 0), (1, 1), (0, 1), (1, -1))
"""Steps up and to the right, in directions of 0, 45, 90 and 135 degrees from upwards."""


@dataclass(frozen=True)
class EdgeMeasures:
    """Of one trained network. A level line is where a head's two logits are equal, and hardmax has its edge.

    explained           how far the steepest points of the sum of the heads lie at the heads' level lines, beyond chance
    covered             how far the heads' level lines lie at edges of the sum, over how far they lie at edges of their
                        own head's map: 1 where the sum has every edge that its heads have. Means over the heads, both
                        beyond chance
    frontiers           how far the frontiers between classes lie at the heads' level lines, beyond chance
    frontiers_shifted   the share of all shifts of the level lines around the torus that bring as much of the frontiers
                        to them
    shortened           share of the frontiers' length that is gone when every head attends the same everywhere

    None stands for what cannot be measured in it: where there are no level lines, no frontiers, or no edges.
    """

    explained: float | None
    covered: float | None
    frontiers: float | None
    frontiers_shifted: float | None
    shortened: float | None


def measure_edges(network: AttentionOnly, points: int) -> EdgeMeasures:
    """On a grid of so many points a side."""
    maps, plain = torus_maps(network, points), torus_maps(network, points, "constant")
    lines = [np.logical_or(*borders(raw > 0)) for raw in maps.raw]
    near, together = within(np.logical_or.reduce(lines)), within(ridges(maps.heads_together))
    in_sum, in_own = 0.0, 0.0
    for line, own in zip(lines, maps.heads, strict=True):
        by_sum, by_own = beyond_chance(line, together), beyond_chance(line, within(ridges(own)))
        if by_sum is not None and by_own is not None:
            in_sum, in_own = in_sum + by_sum, in_own + by_own
    sides = borders(maps.classes().token)
    frontiers, length = np.logical_or(*sides), int(sides.sum())
    return EdgeMeasures(
        beyond_chance(strongest(steepness(maps.heads_together)), near),
        in_sum / in_own if in_own > 0 else None,
        beyond_chance(frontiers, near),
        shifted_as_near(frontiers, near),
        1 - int(borders(plain.classes().token).sum()) / length if length else None,
    )


def borders(regions: NDArray[np.int64] | NDArray[np.bool_]) -> NDArray[np.bool_]:
    """bool[2, G, G]: the sides of points above and to the right, where another region begins."""
    return np.stack([regions != np.roll(regions, -1, axis=axis) for axis in (0, 1)])


def steepness(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[G, G]: how fast a map of vectors, float64[G, G, d], changes at each point, per point of the grid."""
    return np.asarray(np.sqrt(sum((change**2).sum(axis=-1) for change in _changes(vectors))))


def ridges(vectors: NDArray[np.float64]) -> NDArray[np.bool_]:
    """bool[G, G]: the edges of a map, float64[G, G, d]: where it is steeper than on either side, in the direction in
    which it changes fastest, and however steep it is elsewhere.

    So a faint edge counts as a strong one does. Source: Canny 1986, "A computational approach to edge detection"
    (suppression of what is no maximum), without his thresholds.
    """
    up, right = _changes(vectors)
    # The direction of fastest change is the first eigenvector of the sum over dimensions of gradient times gradient.
    angle = np.arctan2(2 * (up * right).sum(axis=-1), (up**2).sum(axis=-1) - (right**2).sum(axis=-1)) / 2
    steep, direction = steepness(vectors), np.rint(angle / (np.pi / 4)).astype(np.int64) % len(_ACROSS)
    found = np.zeros(steep.shape, dtype=np.bool_)
    for at, (above, beside) in enumerate(_ACROSS):
        ahead, behind = (np.roll(steep, (sign * above, sign * beside), axis=(0, 1)) for sign in (-1, 1))
        found |= (direction == at) & (steep >= ahead) & (steep > behind)
    return found


def _changes(vectors: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """float64[G, G, d], twice: how fast a map changes upwards and to the right, per point of the grid."""
    return [(np.roll(vectors, -1, axis=axis) - np.roll(vectors, 1, axis=axis)) / 2 for axis in (0, 1)]


def strongest(heights: NDArray[np.float64]) -> NDArray[np.bool_]:
    """bool[G, G]: the greatest tenth of the map's points."""
    return np.asarray(heights > np.quantile(heights, 1 - STRONGEST))


def within(points: NDArray[np.bool_], degrees: float = REACH) -> NDArray[np.bool_]:
    """bool[G, G]: what lies no farther than so many degrees from some of the points, straight across the square."""
    reach = degrees * len(points) / 360
    steps = np.arange(-int(reach), int(reach) + 1)
    return np.asarray(maximum_filter(points, footprint=np.add.outer(steps**2, steps**2) <= reach**2, mode="wrap"))


def beyond_chance(edges: NDArray[np.bool_], near: NDArray[np.bool_]) -> float | None:
    """How much more often edges lie in `near` than points drawn at random: 0 for as often, 1 for all of them.

    None where there are no edges, or `near` is nothing or everything.
    """
    chance = float(near.mean())
    return (float(near[edges].mean()) - chance) / (1 - chance) if edges.any() and 0 < chance < 1 else None


def shifted_as_near(edges: NDArray[np.bool_], near: NDArray[np.bool_]) -> float | None:
    """The share of all shifts of `near` around the torus after which as many of the edges lie in it, or more.

    None where there are no edges, or `near` is nothing or everything.
    """
    if not edges.any() or not near.any() or near.all():
        return None
    overlaps = np.fft.irfft2(np.fft.rfft2(edges) * np.fft.rfft2(near).conj(), s=edges.shape)
    # Counts of points, but for rounding.
    return float((overlaps > (edges & near).sum() - 0.5).mean())


def edge_claims(measured: Sequence[EdgeMeasures]) -> list[Claim]:
    """Where the edges of the layer's sum and of the classes come from; networks in which it shows are judged.

    Frontiers are judged by what level lines do that are shifted around the torus. A claim that none of the networks can
    show is not made.
    """
    near = f"within {REACH:.0f}°"
    claims = []
    for name, field in (("edges-of-sum", "explained"), ("edges-of-heads", "covered"), ("intricate", "shortened")):
        shares = _shown(measured, field)
        if len(shares):
            words = {"near": near, "strongest": plain_percent(STRONGEST)}
            claims.append(judge(f"memorisation.{name}", float(np.median(shares)), _spread(shares), **words))
    shifted = _shown(measured, "frontiers_shifted")
    if len(shifted):
        apart = shifted >= CHANCE
        ours = (
            f"{apart.sum()} of {len(shifted)} networks. Share of the frontiers at the lines, beyond "
            f"chance: {_spread(_shown(measured, 'frontiers'))}; as much or more after {100 * np.median(shifted):.2g} % "
            "of the shifts (median)"
        )
        words = {"near": near, "chance": plain_percent(CHANCE)}
        claims.append(judge("memorisation.frontiers", float(apart.mean()), ours, **words))
    return claims


def _shown(measured: Sequence[EdgeMeasures], field: str) -> NDArray[np.float64]:
    return np.array([getattr(one, field) for one in measured if getattr(one, field) is not None])


def _spread(shares: NDArray[np.float64]) -> str:
    percents = 100 * shares
    return f"{np.median(percents):.0f} % ({percents.min():.0f} to {percents.max():.0f}) in {len(percents)} networks"


_MAPS = 160  # points a side of maps in many colours, which would not fit in a page's PNG finer
_SURFACES = 96  # points a side of surfaces, all of whose quads are drawn one by one
_STEPS = 8  # of colours along each angle of a surface; a smooth change would take more colours than a PNG has
_PARTS = ("red", "green", "blue")
_KEY_HEIGHT = 0.55
_STYLES: Any = ("-", "--", ":")
"""Of the level lines of heads 1, 2 and 3: black, since every colour is a class somewhere."""
Shown: TypeAlias = tuple[str, NDArray[np.float64], NDArray[np.float64] | None]
"""A panel: its title, a map of vectors float64[G, G, 3], and the raw pattern float64[G, G] whose level line it has."""


def full_scale(*maps: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[3]: R, the numbers at which red, green and blue are full, so that no map is clipped."""
    greatest = np.max([np.abs(one).reshape(-1, len(_PARTS)).max(axis=0) for one in maps], axis=0)
    return np.where(greatest > 0, greatest, 1.0)


def colours_of(vectors: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[..., 3] from 0 to 1: red, green and blue."""
    return np.asarray(0.5 + vectors / (2 * scale))


def draw_maps(path: Path, rows: Sequence[Sequence[Shown]], scale: NDArray[np.float64]) -> Path:
    """Maps of vectors in rows, above the key of their colours: what each dimension does to the colour alone."""
    height = 2.45 * len(rows) + 0.35
    with new_figure(path, height + _KEY_HEIGHT, shades=True) as figure:
        (above,), (key,) = figure.subfigures(2, 1, squeeze=False, height_ratios=(height, _KEY_HEIGHT))
        for dimension, (panel, part, reach) in enumerate(
            zip(key.subplots(1, len(_PARTS)), _PARTS, scale.tolist(), strict=True)
        ):
            ramp = np.linspace(-reach, reach, 33)[None, :, None] * np.eye(len(_PARTS))[dimension]
            panel.imshow(colours_of(ramp, scale), aspect="auto", extent=(-reach, reach, 0, 1), interpolation="nearest")
            panel.set_yticks([])
            panel.set_xticks([-reach, 0, reach], [f"{-reach:.1f}", "0", f"{reach:.1f}"])
            panel.set_xlabel(f"stream dimension {dimension + 1}: {part}")
        for panels, row in zip(torus_axes(above, len(rows), len(rows[0])), rows, strict=True):
            for panel, (title, vectors, raw) in zip(panels, row, strict=True):
                panel.imshow(colours_of(vectors, scale), interpolation="nearest", **PLACED)
                if raw is not None:
                    level_line(panel, raw, 0, colors="black", linewidths=0.6)
                panel.set_title(title)
    return path


def draw_edges(path: Path, network: AttentionOnly, facts: Tensor, points: int) -> Path:
    """The steepest points of the sum and the classes, both under the heads' level lines; and without patterns.

    The last are the classes when every head attends the same everywhere.
    """
    soft, angles = torus_maps(network, points), word_angles(network)
    with new_figure(path, 3.25) as figure:
        steep, classes, plain = torus_axes(figure, columns=3)[0]
        steepest = strongest(steepness(soft.heads_together))
        steep.imshow(1 - 0.35 * steepest, cmap="gray", vmin=0, vmax=1, **PLACED)
        steep.set_title("where the sum of heads is steepest")
        paint(classes, soft.classes(), size=8)
        classes.set_title("classes")
        for panel in (steep, classes):
            for style, raw in zip(_STYLES, soft.raw, strict=True):
                level_line(panel, raw, 0, colors="black", linewidths=1.2, linestyles=style)
        paint(plain, torus_maps(network, points, "constant").classes(), angles, size=8)
        mark_pairs(plain, facts, pair_places(angles), size=14)
        plain.set_title("classes, attention held at its mean")
        lines = [
            Line2D([], [], color="black", linestyle=style, label=f"head {head} attends to both tokens alike")
            for head, style in enumerate(_STYLES, start=1)
        ]
        figure.legend(handles=lines, loc="outside lower center", ncols=3)
    return path


def principal_axes(vectors: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A surface float64[G, G, 3] in its principal axes about its mean, each divided by its reach; and float64[3], how
    far it reaches along them.

    Heads write along one direction almost alone, so that a surface in the stream's own axes is seen as a line.
    """
    centred = vectors - vectors.mean(axis=(0, 1))
    along = centred @ np.linalg.svd(centred.reshape(-1, 3), full_matrices=False)[2].T
    reach = np.abs(along).max(axis=(0, 1))
    reach = np.where(reach > 1e-12 * max(1.0, float(reach.max())), reach, 1.0)
    return along / reach, reach


def draw_surfaces(path: Path, maps: TorusMaps) -> Path:
    """The layer's output and each head's as surfaces: red grows with the first angle, blue with the second."""
    surfaces = {"the layer": maps.layer}
    surfaces |= {f"head {head}": vectors for head, vectors in enumerate(maps.heads, start=1)}
    around = np.arange(len(maps.layer) + 1) % len(maps.layer)
    first, second = (np.floor(angle * _STEPS / (2 * np.pi)) / (_STEPS - 1) for angle in grid_angles(len(maps.layer)))
    colours = np.stack([first, np.zeros_like(first), second], axis=-1)
    with new_figure(path, 6.4) as figure:
        axes = figure.subplots(2, 2, subplot_kw={"projection": "3d"})
        for panel, (title, vectors) in zip(axes.flat, surfaces.items(), strict=True):
            points, reach = principal_axes(vectors)
            x, y, z = np.moveaxis(points[np.ix_(around, around)], -1, 0)
            panel.plot_surface(
                x, y, z, facecolors=colours, rstride=1, cstride=1, shade=False, antialiased=False, rasterized=True
            )
            panel.set_title(f"{title}: reach " + ", ".join(f"{along:.2g}" for along in reach))
            panel.view_init(elev=25, azim=-55)
    return path


def layer_section(page: Page, network: AttentionOnly, facts: Tensor, recipe: Recipe) -> None:
    folder, points = report_folder(page.run), min(recipe.grid, _MAPS)
    hard, soft = torus_maps(network, points, "hardmax"), torus_maps(network, points)
    shown = int(np.abs(soft.raw).mean(axis=(1, 2)).argmax())
    line = soft.raw[shown]
    page.heading("What the layer adds up")
    page.paragraph(
        "A head adds up the two positions and the two words, each weighted by its attention. Vectors of the stream "
        "have three dimensions and are shown as red, green and blue. The colours are linear: middle grey is zero, and "
        "what a colour is apart from that grey adds up as the vectors do. One scale holds for all maps of a figure, "
        "chosen such that nothing is clipped. The thin line is where a head attends to both tokens alike."
    )
    kinds = {"hardmax": hard, "softmax": soft}
    before: list[list[Shown]] = [
        [
            (f"positions, {kind}", one.positions[shown], line),
            (f"words, {kind}", one.words[shown], line),
            ("positions + words", one.positions[shown] + one.words[shown], line),
        ]
        for kind, one in kinds.items()
    ]
    page.figure(
        draw_maps(folder / "head-maps.png", before, full_scale(*[vectors for row in before for _, vectors, _ in row])),
        f"Head {shown + 1}, whose attention is the most decided, before its values: the positions, the words, and "
        "both, with all attention to the token that gets more (hardmax) and as the network has it (softmax).",
    )
    scale = full_scale(hard.heads, soft.heads, hard.heads_together, soft.heads_together, soft.layer)
    values: list[list[Shown]] = [
        [(f"head {head + 1}, {kind}", vectors, soft.raw[head]) for head, vectors in enumerate(one.heads)]
        for kind, one in kinds.items()
    ]
    page.figure(
        draw_maps(folder / "value-maps.png", values, scale),
        "Every head after value and output. These maps and those of the next figure share one scale.",
    )
    together: list[Shown] = [
        ("sum of the heads, hardmax", hard.heads_together, None),
        ("sum of the heads, softmax", soft.heads_together, None),
        ("and the second token's own stream", soft.layer, None),
    ]
    page.figure(
        draw_maps(folder / "layer-maps.png", [together], scale),
        "The sum of the three heads, and of the heads and the second token's own stream: the attention layer's output.",
    )
    page.figure(
        draw_edges(folder / "edges.png", network, facts, recipe.grid),
        f"Left: the {plain_percent(STRONGEST)} of the torus where the sum of the heads changes fastest, and the level "
        "lines of the three heads. Middle: the same lines over the classes, which are the layer's output composed with "
        "the unembedding. Right: the classes that the same network would have if each head attended everywhere as it "
        "does on average.",
    )
    page.figure(
        draw_surfaces(folder / "surfaces.png", torus_maps(network, min(points, _SURFACES))),
        "The output of the attention layer as a deformed torus, and what each head adds to it, each in its principal "
        "axes, divided by its reach along them (in the titles). A head reaches much farther along its first axes than "
        "along its last: in the stream's own axes its surface would be seen as a leaf or a line.",
    )

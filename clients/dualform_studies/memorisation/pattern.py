"""What the second study says of attention patterns, the layer's output and the unembedding, put to the test.

What it observes in one network is measured here in several, which are trained alike with facts and starts of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform_studies.claims import Claim, judge, plain_percent
from dualform_studies.memorisation.layer import (
    REACH,
    STRONGEST,
    EdgeMeasures,
    VectorColours,
    draw_edges,
    draw_maps,
    draw_surfaces,
    layer_maps,
    measure_edges,
    raw_patterns,
)
from dualform_studies.memorisation.polynomial import (
    count_harmonics,
    count_parameters,
    draw_level_lines,
    evaluate,
    head_coefficients,
    random_heads,
)
from dualform_studies.memorisation.torus import grid_angles, images_right, nearest, random_directions, word_angles
from dualform_studies.memorisation.transformer import WIDTH, AttentionOnly, Facts, Recipe
from dualform_studies.report import Page, report_folder

POLYNOMIAL = "The attention pattern's polynomial"
LAYER = "What the layer adds up"
"""Headings of the page."""
CHANCE = 0.05
"""Of all shifts: frontiers that fewer bring as near to the level lines lie there by more than chance."""
_HEADS = 60
_NEAR = f"within {REACH:.0f}°"
_DIRECTIONS = 20_000


def polynomial_error(network: AttentionOnly, points: int) -> float:
    """The greatest difference between a head's raw pattern on the torus and its polynomial, over the pattern's range.

    Attention would not do: its sigmoid hides what is wrong where it is all but 0 or 1.
    """
    raw = raw_patterns(network, points)
    differences = np.abs(evaluate(head_coefficients(network), *grid_angles(points)) - raw)
    return float((differences.max(axis=(1, 2)) / np.ptp(raw, axis=(1, 2))).max())


def polynomial_claims(networks: Sequence[AttentionOnly], points: int) -> list[Claim]:
    """That the pattern is a trigonometric polynomial, of so many harmonics and parameters."""
    error = max(polynomial_error(network, points) for network in networks)
    claims = [
        judge(
            "memorisation.polynomial",
            error,
            f"the two differ by {error:.0e} of the pattern's range at most, in {len(networks)} trained networks",
        )
    ]
    for dimension, harmonics, parameters in ((3, 11, 9), (1, 7, 5)):
        heads = list(random_heads(dimension, _HEADS))
        for what, said, found, remark in (
            (
                "harmonics", harmonics, np.array([count_harmonics(head) for head in heads]),
                "; seven is how many terms its product has when it is multiplied out" if dimension == 1 else "",
            ),
            ("free parameters", parameters, np.array([count_parameters(head) for head in heads]), ""),
        ):  # fmt: skip
            share = float((found == said).mean())
            words: dict[str, Any] = {"dimension": dimension, "count": said, "what": what}
            claims.append(judge("memorisation.parameters", share, _counts(found) + remark, **words))
    return claims


def edge_claims(measured: Sequence[EdgeMeasures]) -> list[Claim]:
    """Where the edges of the layer's sum and of the classes come from; networks in which it shows are judged.

    A claim that none of them can show is not made.
    """
    words = {"near": _NEAR, "strongest": plain_percent(STRONGEST)}
    claims = []
    for name, values in (
        ("edges-of-sum", [one.explained for one in measured]),
        ("edges-of-heads", [one.covered for one in measured]),
        ("intricate", [one.shortened for one in measured]),
    ):
        shares = _shown(values)
        if len(shares):
            claims.append(judge(f"memorisation.{name}", float(np.median(shares)), _spread(shares), **words))
    return claims + _frontier_claims(measured)


def _frontier_claims(measured: Sequence[EdgeMeasures]) -> list[Claim]:
    """That frontiers do not lie at level lines, judged by what lines do that are shifted around the torus."""
    shares, shifted = _shown([one.frontiers for one in measured]), _shown([one.frontiers_shifted for one in measured])
    if not len(shares):
        return []
    return [
        judge(
            "memorisation.frontiers",
            float((shifted >= CHANCE).mean()),
            f"{(shifted >= CHANCE).sum()} of {len(shifted)} networks. Share of the frontiers at the lines, beyond "
            f"chance: {_spread(shares)}; as much or more after {100 * np.median(shifted):.2g} % of the shifts (median)",
            near=_NEAR,
            chance=plain_percent(CHANCE),
        )
    ]


def voronoi_claim(networks: Sequence[AttentionOnly], facts: Sequence[Facts]) -> Claim:
    """That the unembedding's cells, which are weighted Voronoi cells by construction, maximise accuracy."""
    directions = random_directions(_DIRECTIONS, WIDTH)
    plain, right = [], []
    for network, own in zip(networks, facts, strict=True):
        rows = network.unembedding.weight.detach().double().numpy()
        winners = (directions @ rows.T).argmax(axis=1)
        plain.append(float((nearest(directions, rows, weighted=False) == winners).mean()))
        right.append(float(images_right(network, own).mean()))
    return judge(
        "memorisation.voronoi",
        float(np.mean(right)),
        f"the cells are weighted Voronoi cells by construction, and {100 * float(np.mean(right)):.1f} % of the pairs "
        f"lie in their own, in {len(networks)} networks; without the weights, {100 * float(np.median(plain)):.0f} % of "
        f"{_DIRECTIONS:,} directions would lie in the same cell (median)",
    )


def _counts(found: NDArray[np.int64]) -> str:
    """As "11 in 58 of 60 random heads, 9 in 2"."""
    numbers, times = np.unique(found, return_counts=True)
    first, *others = sorted(zip(times.tolist(), numbers.tolist(), strict=True), reverse=True)
    words = [f"{first[1]} in {first[0]} of {len(found)} random heads"]
    return ", ".join(words + [f"{number} in {often}" for often, number in others])


def _shown(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([value for value in values if value is not None])


def _spread(shares: NDArray[np.float64]) -> str:
    percents = 100 * shares
    return f"{np.median(percents):.0f} % ({percents.min():.0f} to {percents.max():.0f}) in {len(percents)} networks"


_MAPS = 160
"""Points along each side of maps in many colours, which would not fit in a page's PNG finer."""
_SURFACES = 96
"""Points along each side of surfaces, all of whose quads are drawn one by one."""


def pattern_chapters(
    page: Page,
    network: AttentionOnly,
    facts: Facts,
    recipe: Recipe,
    others: Sequence[AttentionOnly],
    others_facts: Sequence[Facts],
) -> list[Claim]:
    """The figures are of `network`; the claims are measured in it and the `others`, which are trained alike."""
    _polynomial_chapter(page, network, recipe)
    networks = [network, *others]
    measured = [measure_edges(one, recipe.grid) for one in networks]
    _layer_chapter(page, network, facts, recipe)
    return [
        *polynomial_claims(networks, recipe.grid),
        *edge_claims(measured),
        voronoi_claim(networks, [facts, *others_facts]),
    ]


def _polynomial_chapter(page: Page, network: AttentionOnly, recipe: Recipe) -> None:
    coefficients = head_coefficients(network)
    page.heading(POLYNOMIAL)
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
        draw_level_lines(report_folder(page.run) / "level-line.png", coefficients),
        "The level line at which both tokens get the same attention, moving as the parameters go round a circle. Left: "
        "the circle in the space of the nine parameters that passes through the patterns of this network's three "
        "heads. Right: a head of dimension 1, whose phase a turns while b and d swing.",
    )


def _layer_chapter(page: Page, network: AttentionOnly, facts: Facts, recipe: Recipe) -> None:
    folder, angles, points = report_folder(page.run), word_angles(network), min(recipe.grid, _MAPS)
    hard, soft = layer_maps(network, points, "hardmax"), layer_maps(network, points)
    raw = raw_patterns(network, points)
    shown = int(np.abs(raw).mean(axis=(1, 2)).argmax())
    page.heading(LAYER)
    page.paragraph(
        "A head adds up the two positions and the two words, each weighted by its attention. Vectors of the stream "
        "have three dimensions and are shown as red, green and blue. The colours are linear: middle grey is zero, and "
        "what a colour is apart from that grey adds up as the vectors do. One scale holds for all maps of a figure, "
        "chosen such that nothing is clipped. The thin line is where a head attends to both tokens alike."
    )
    kinds = {"hardmax": hard, "softmax": soft}
    before = [
        [
            (f"positions, {kind}", one.positions[shown], raw[shown]),
            (f"words, {kind}", one.words[shown], raw[shown]),
            ("positions + words", one.positions[shown] + one.words[shown], raw[shown]),
        ]
        for kind, one in kinds.items()
    ]
    page.figure(
        draw_maps(
            folder / "head-maps.png", before, VectorColours.over(*[vectors for row in before for _, vectors, _ in row])
        ),
        f"Head {shown + 1}, whose attention is the most decided, before its values: the positions, the words, and "
        "both, with all attention to the token that gets more (hardmax) and as the network has it (softmax).",
    )
    colours = VectorColours.over(hard.heads, soft.heads, hard.heads_together, soft.heads_together, soft.layer)
    values = [
        [(f"head {head + 1}, {kind}", vectors, raw[head]) for head, vectors in enumerate(one.heads)]
        for kind, one in kinds.items()
    ]
    page.figure(
        draw_maps(folder / "value-maps.png", values, colours),
        "Every head after value and output. These maps and those of the next figure share one scale.",
    )
    together = [
        ("sum of the heads, hardmax", hard.heads_together, None),
        ("sum of the heads, softmax", soft.heads_together, None),
        ("and the second token's own stream", soft.layer, None),
    ]
    page.figure(
        draw_maps(folder / "layer-maps.png", [together], colours),
        "The sum of the three heads, and of the heads and the second token's own stream: the attention layer's output.",
    )
    page.figure(
        draw_edges(folder / "edges.png", network, facts, angles, recipe.grid),
        f"Left: the {plain_percent(STRONGEST)} of the torus where the sum of the heads changes fastest, and the level "
        "lines of the three heads. Middle: the same lines over the classes, which are the layer's output composed with "
        "the unembedding. Right: the classes that the same network would have if each head attended everywhere as it "
        "does on average.",
    )
    page.figure(
        draw_surfaces(folder / "surfaces.png", layer_maps(network, min(points, _SURFACES))),
        "The output of the attention layer as a deformed torus, and what each head adds to it, each in its principal "
        "axes, divided by its reach along them (in the titles). A head reaches much farther along its first axes than "
        "along its last: in the stream's own axes its surface would be seen as a leaf or a line.",
    )

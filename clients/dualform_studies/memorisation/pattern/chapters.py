"""The attention pattern as a polynomial, what the layer adds up, and what comes of the study's observations of both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dualform_studies.memorisation.layer.edge_measures import EdgeMeasures, measure_edges
from dualform_studies.memorisation.layer.edges import STRONGEST
from dualform_studies.memorisation.layer.map_figures import (
    draw_edges,
    draw_head_maps,
    draw_layer_maps,
    draw_value_maps,
    value_colours,
)
from dualform_studies.memorisation.layer.maps import layer_maps, raw_patterns
from dualform_studies.memorisation.layer.surface_figure import draw_surfaces
from dualform_studies.memorisation.pattern.claims import (
    LAYER,
    POLYNOMIAL,
    edge_claims,
    polynomial_claims,
    polynomial_error,
    voronoi_claim,
)
from dualform_studies.memorisation.pattern.level_line_figure import draw_level_lines
from dualform_studies.memorisation.pattern.polynomial import HARMONICS, TIED, head_coefficients
from dualform_studies.memorisation.second_study import plain_percent
from dualform_studies.memorisation.torus.maps import word_angles
from dualform_studies.memorisation.transformer.facts import Facts
from dualform_studies.memorisation.transformer.network import AttentionOnly
from dualform_studies.memorisation.transformer.training import Recipe
from dualform_studies.pages.claims import Claim
from dualform_studies.pages.folder import report_folder
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.page import Page
from dualform_studies.pages.words import percent

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
    page.show(_edge_table(measured))
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
    page.show(_coefficient_table(coefficients))
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


def _coefficient_table(coefficients: np.ndarray) -> Table:
    rows = [
        (harmonic.name, *(f"{of[at]:.3f}" for of in coefficients), f"minus that of {TIED[harmonic.name]}"
         if harmonic.name in TIED else "free")
        for at, harmonic in enumerate(HARMONICS)
    ]  # fmt: skip
    columns = ("harmonic", *(f"head {head}" for head in range(1, len(coefficients) + 1)), "")
    return Table("pattern", "The raw attention patterns of the trained heads, in nats.", columns, rows)


def _edge_table(measured: Sequence[EdgeMeasures]) -> Table:
    """The measures of edges and their controls."""
    rows: list[list[Cell]] = []
    steepest = f"steepest {plain_percent(STRONGEST)} of the sum"
    for words, values in (
        (f"{steepest} at level lines, beyond chance", [one.explained for one in measured]),
        ("level lines at edges of the sum, over at edges of their own map", [one.covered for one in measured]),
        ("the same with hardmax: a control, 100 %", [one.covered_hardmax for one in measured]),
        ("frontiers at level lines, beyond chance", [one.frontiers for one in measured]),
        ("shifts of the level lines with as many frontiers at them", [one.frontiers_shifted for one in measured]),
        ("frontiers gone when attention is held at its mean", [one.shortened for one in measured]),
    ):
        shares = [value for value in values if value is not None]
        told = [percent(share) for share in np.percentile(shares, (0, 50, 100))] if shares else ["-"] * 3
        rows.append([words, len(shares), *told])
    return Table(
        "edge-measures",
        f"Where the edges of the layer and of the classes lie, in networks of {len(measured)} seeds. Edges of a map "
        "are the ridges of its steepness: where it changes faster than on either side. Networks in which there is "
        "nothing to measure, such as those without level lines, are left out.",
        ("measure", "networks", "least", "median", "most"),
        rows,
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
    page.figure(
        draw_head_maps(folder / "head-maps.png", {"hardmax": hard, "softmax": soft}, raw[shown], shown),
        f"Head {shown + 1}, whose attention is the most decided, before its values: the positions, the words, and "
        "both, with all attention to the token that gets more (hardmax) and as the network has it (softmax).",
    )
    colours = value_colours(hard, soft)
    page.figure(
        draw_value_maps(folder / "value-maps.png", {"hardmax": hard, "softmax": soft}, raw, colours),
        "Every head after value and output. These maps and those of the next figure share one scale.",
    )
    page.figure(
        draw_layer_maps(folder / "layer-maps.png", hard, soft, colours),
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

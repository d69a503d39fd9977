"""What the second study says of attention patterns and the unembedding, put to the test: criteria and verdicts.

What it observes in one network is measured here in several, which are trained alike with facts and starts of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dualform_studies.memorisation.edge_measures import EdgeMeasures
from dualform_studies.memorisation.edges import REACH
from dualform_studies.memorisation.network import WIDTH, AttentionOnly
from dualform_studies.memorisation.pattern_counts import count_harmonics, count_parameters, random_heads
from dualform_studies.memorisation.pattern_polynomial import OneDimensional, evaluate, head_coefficients
from dualform_studies.memorisation.torus import attention_maps, grid_angles
from dualform_studies.memorisation.voronoi import nearest, random_directions
from dualform_studies.pages.claims import Claim, verdict, verdict_at_most

POLYNOMIAL = "The attention pattern's polynomial"
LAYER = "What the layer adds up"
SPHERE = "The network on the torus"
"""Headings of the page."""
_HEADS = 60
_DIRECTIONS = 20_000
_MOST = "holds from two thirds, in part from one third"


def polynomial_error(network: AttentionOnly, points: int) -> float:
    """The greatest difference between the heads' attention on the torus and what their polynomials say it is."""
    raw = evaluate(head_coefficients(network), *grid_angles(points))
    return float(np.abs(1 / (1 + np.exp(-raw)) - attention_maps(network, points)).max())


def polynomial_claims(networks: Sequence[AttentionOnly], points: int) -> list[Claim]:
    """That the pattern is a trigonometric polynomial, of so many harmonics and parameters."""
    error = max(polynomial_error(network, points) for network in networks)
    claims = [
        Claim(
            "attention pattern", "The raw attention pattern is a trigonometric polynomial.", "derived",
            f"attention differs by {error:.0e} at most, in {len(networks)} trained networks",
            verdict_at_most(error, 1e-6, 1e-3), "holds up to a difference of 1e-6, in part up to 1e-3", POLYNOMIAL,
        )
    ]  # fmt: skip
    for dimension, harmonics, parameters in ((3, 11, 9), (1, 7, 5)):
        heads = list(random_heads(dimension, _HEADS))
        found = np.array([count_harmonics(head) for head in heads])
        free = np.array([count_parameters(head) for head in heads])
        words, said = f"dimension {dimension}", _HEADS
        counted = float((found == harmonics).mean())
        ours, criterion = f"{_common(found)} in {(found == np.median(found)).sum()} of {said} random heads", _MOST
        if dimension == 1:
            terms = {len(OneDimensional.of(*head).terms()) for head in heads}
            counted = max(counted, 0.5 * (terms == {harmonics}))
            ours += f", as for dimension 3; its product multiplied out has {max(terms)} terms"
            criterion = "of the heads: " + _MOST + "; in part also if these are the terms of the formula multiplied out"
        claims += [
            Claim(
                "attention pattern", f"Of a head of {words} it has {harmonics} harmonics.", str(harmonics), ours,
                verdict(counted, 2 / 3, 1 / 3), criterion, POLYNOMIAL,
            ),
            Claim(
                "attention pattern", f"Of a head of {words} it has {parameters} free parameters.", str(parameters),
                f"{_common(free)} in {(free == np.median(free)).sum()} of {said} random heads",
                verdict(float((free == parameters).mean()), 2 / 3, 1 / 3), _MOST, POLYNOMIAL,
            ),
        ]  # fmt: skip
    return claims


def edge_claims(measured: Sequence[EdgeMeasures]) -> list[Claim]:
    """Where the edges of the layer's sum and of the classes come from; the median over networks decides."""
    beyond = "share beyond chance, median over networks: "
    near = f"within {REACH:.0f}°"
    rows = [
        (
            "Each edge of the sum of the heads is an edge of a head's attention pattern.",
            [one.explained for one in measured],
            f"the steepest tenth of the sum's points that lie {near} of a head's level line, {beyond}{_MOST}",
            1, 2 / 3, 1 / 3,
        ),
        (
            "Each edge of a head's attention pattern is an edge of the sum of the heads.",
            [one.covered for one in measured],
            f"the heads' level lines that lie {near} of the steepest tenth of the sum's points, {beyond}{_MOST}",
            1, 2 / 3, 1 / 3,
        ),
        (
            "The frontiers between classes do not easily correlate with these edges.",
            [one.frontiers for one in measured],
            f"the frontiers that lie {near} of a head's level line, {beyond}holds up to one third, in part up to two",
            -1, -1 / 3, -2 / 3,
        ),
        (
            "The frontiers are intricate mainly due to the attention pattern's expressivity.",
            [one.shortened for one in measured],
            "the part of the frontiers' length that is gone when every head attends everywhere as it does on average, "
            "median over networks: holds from one half, in part from one quarter",
            1, 1 / 2, 1 / 4,
        ),
    ]  # fmt: skip
    return [
        Claim(
            "attention layer", claim, "seen in one network", _spread(values), verdict(sign * float(np.median(values)),
            holds, in_part), criterion, LAYER,
        )
        for claim, values, criterion, sign, holds, in_part in rows
    ]  # fmt: skip


def voronoi_claim(networks: Sequence[AttentionOnly]) -> Claim:
    """That the unembedding makes weighted Voronoi cells of the sphere."""
    directions = random_directions(_DIRECTIONS, WIDTH)
    weighted, plain = [], []
    for network in networks:
        rows = network.unembedding.weight.detach().double().numpy()
        winners = (directions @ rows.T).argmax(axis=1)
        weighted.append(float((nearest(directions, rows) == winners).mean()))
        plain.append(float((nearest(directions, rows, weighted=False) == winners).mean()))
    return Claim(
        "unembedding", "The unembedding creates a partition of the sphere into weighted Voronoi cells.", "derived",
        f"{100 * min(weighted):.2f} % of {_DIRECTIONS:,} directions at least, in {len(networks)} networks; "
        f"without the weights {100 * float(np.median(plain)):.0f} % (median)",
        verdict(min(weighted), 0.999, 0.99), "holds from 99.9 % of the directions, in part from 99 %", SPHERE,
    )  # fmt: skip


def _common(counts: NDArray[np.int64]) -> str:
    return f"{np.median(counts):.0f}"


def _spread(shares: Sequence[float]) -> str:
    percent = 100 * np.array(shares)
    return f"{np.median(percent):.0f} % ({percent.min():.0f} to {percent.max():.0f}) in {len(percent)} networks"

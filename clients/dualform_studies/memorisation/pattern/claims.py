"""What the second study says of attention patterns and the unembedding, put to the test: criteria and verdicts.

What it observes in one network is measured here in several, which are trained alike with facts and starts of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dualform_studies.memorisation.layer.edge_measures import EdgeMeasures
from dualform_studies.memorisation.layer.edges import REACH, STRONGEST
from dualform_studies.memorisation.layer.maps import raw_patterns
from dualform_studies.memorisation.pattern.counts import count_harmonics, count_parameters, random_heads
from dualform_studies.memorisation.pattern.polynomial import evaluate, head_coefficients
from dualform_studies.memorisation.second_study import Criterion, mostly, plain_percent, section
from dualform_studies.memorisation.torus.maps import grid_angles
from dualform_studies.memorisation.torus.voronoi import images_right, nearest, random_directions
from dualform_studies.memorisation.transformer.facts import Facts
from dualform_studies.memorisation.transformer.network import WIDTH, AttentionOnly
from dualform_studies.pages.claims import Claim

POLYNOMIAL = "The attention pattern's polynomial"
LAYER = "What the layer adds up"
SPHERE = "The network on the torus"
"""Headings of the page."""
CHANCE = 0.05
"""Of all shifts: frontiers that fewer bring as near to the level lines lie there by more than chance."""
_HEADS = 60
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
    small = Criterion("greatest difference, of the pattern's range", 1e-6, 1e-3, at_most=True, told=plain_percent)
    claims = [
        Claim(
            section("the attention layer"), "The raw attention pattern is a trigonometric polynomial.", "derived",
            f"the two differ by {error:.0e} of the pattern's range at most, in {len(networks)} trained networks",
            small.judge(error), str(small), POLYNOMIAL,
        )
    ]  # fmt: skip
    for dimension, harmonics, parameters in ((3, 11, 9), (1, 7, 5)):
        heads = list(random_heads(dimension, _HEADS))
        for what, said, found, remark in (
            (
                "harmonics", harmonics, np.array([count_harmonics(head) for head in heads]),
                "; seven is how many terms its product has when it is multiplied out" if dimension == 1 else "",
            ),
            ("free parameters", parameters, np.array([count_parameters(head) for head in heads]), ""),
        ):  # fmt: skip
            counted = mostly(f"random heads that have {said}")
            claims.append(
                Claim(
                    section("the attention layer"), f"For a head of dimension {dimension} it has {said} {what}.",
                    str(said), _counts(found) + remark, counted.judge(float((found == said).mean())), str(counted),
                    POLYNOMIAL,
                )
            )  # fmt: skip
    return claims


def edge_claims(measured: Sequence[EdgeMeasures]) -> list[Claim]:
    """Where the edges of the layer's sum and of the classes come from; networks in which it shows are judged.

    A claim that none of them can show is not made.
    """
    near = f"within {REACH:.0f}°"
    claims = []
    for sentence, values, criterion in (
        (
            "Each edge of the sum of the heads is an edge of a head's attention pattern.",
            [one.explained for one in measured],
            mostly(
                f"the steepest {plain_percent(STRONGEST)} of the sum's points that lie {near} of a head's level line, "
                "share beyond chance, median over networks"
            ),
        ),
        (
            "Each edge of a head's attention pattern is an edge of the sum of the heads.",
            [one.covered for one in measured],
            mostly(
                f"the heads' level lines that lie {near} of an edge of the sum, over those that lie {near} of an edge "
                "of their own head's map, shares beyond chance, median over networks"
            ),
        ),
        (
            "The frontiers are intricate mainly due to the attention pattern's expressivity.",
            [one.shortened for one in measured],
            Criterion(
                "the part of the frontiers' length that is gone when every head attends everywhere as it does on "
                "average, median over networks", 1 / 2, 1 / 4,
            ),
        ),
    ):  # fmt: skip
        shares = _shown(values)
        if len(shares):
            judged = criterion.judge(float(np.median(shares)))
            told = ("seen in one network", _spread(shares), judged, str(criterion), LAYER)
            claims.append(Claim(section("the attention layer"), sentence, *told))
    return claims + _frontier_claims(measured)


def _frontier_claims(measured: Sequence[EdgeMeasures]) -> list[Claim]:
    """That frontiers do not lie at level lines, judged by what lines do that are shifted around the torus."""
    shares, shifted = _shown([one.frontiers for one in measured]), _shown([one.frontiers_shifted for one in measured])
    if not len(shares):
        return []
    criterion = mostly(
        f"networks of which at least {plain_percent(CHANCE)} of all shifts of the level lines around the torus bring "
        f"as much of the frontiers within {REACH:.0f}° of them"
    )
    return [
        Claim(
            section("the attention layer"),
            "The frontiers between classes do not easily correlate with the heads' level lines.",
            "seen in one network",
            f"{(shifted >= CHANCE).sum()} of {len(shifted)} networks. Share of the frontiers at the lines, beyond "
            f"chance: {_spread(shares)}; as much or more after {100 * np.median(shifted):.2g} % of the shifts (median)",
            criterion.judge(float((shifted >= CHANCE).mean())),
            str(criterion),
            LAYER,
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
    criterion = Criterion(
        "pairs whose image lies in the cell of their own next token, mean over networks", 0.99, 0.9, told=plain_percent
    )
    return Claim(
        section("the network"),
        "The unembedding partitions the sphere into weighted Voronoi cells that maximise accuracy.",
        "derived, and seen in one network",
        f"the cells are weighted Voronoi cells by construction, and {100 * float(np.mean(right)):.1f} % of the pairs "
        f"lie in their own, in {len(networks)} networks; without the weights, {100 * float(np.median(plain)):.0f} % of "
        f"{_DIRECTIONS:,} directions would lie in the same cell (median)",
        criterion.judge(float(np.mean(right))),
        str(criterion),
        SPHERE,
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

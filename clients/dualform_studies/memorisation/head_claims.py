"""What the text says of attention heads, put to the test. Nearly all of it is about shares of networks:

a share of two thirds holds and one of a third holds in part, unless a claim words another criterion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dualform_studies.memorisation.boosting import sign_test
from dualform_studies.memorisation.ensemble import Ensemble
from dualform_studies.memorisation.many_heads import ManyHeads
from dualform_studies.memorisation.overlap import Alone, Overlaps
from dualform_studies.memorisation.simplex_patterns import Triangles
from dualform_studies.pages.claims import Claim, verdict

ALONE = "What heads know alone"
SIMPLEX = "The simplex of head weights"
BOOSTING = "Boosted training"
ENOUGH = "How many heads are enough"
"""Headings of the page."""
MOST, SOME = 2 / 3, 1 / 3
_SECTION = "second study, attention heads"
_OFTEN = 0.05
"""Of all classes: from here on a pattern is no accident of one seed."""


def alone_claim(networks: Sequence[Alone]) -> Claim:
    """That heads do not share the work by remembering different pairs each."""
    count, overlaps = len(networks), Overlaps.of(networks)
    others = count - overlaps.partitions
    return Claim(
        _SECTION,
        "Heads alone do not know different sets of pairs whose accuracies add up to 1",
        "one network of three heads",
        f"{others} of {count} networks; sizes add up to {overlaps.sizes:.1f} of 25, any knows {overlaps.union:.1f}",
        verdict(others / count, MOST, SOME),
        "networks of which some pair is known by two heads or by none: 2/3 of all; 1/3 in part",
        ALONE,
    )


def simplex_claims(triangles: Triangles) -> list[Claim]:
    networks, classes, counts = len(triangles.centres), len(triangles.classes), triangles.counts()
    best = sum(one.is_best for one in triangles.centres)
    as_good = 100 * float(np.mean([one.as_good for one in triangles.centres]))
    rarest = min(counts.values()) / classes
    return [
        Claim(
            _SECTION,
            "The accuracy over all pairs is greatest in the centre of the simplex, the network as trained",
            "one network",
            f"{best} of {networks} networks; {as_good:.0f} % of the weightings are as good as the best",
            verdict(best / networks, MOST, SOME),
            "networks of which no weighting knows more pairs than the centre: 2/3 of all; 1/3 in part",
            SIMPLEX,
        ),
        Claim(
            _SECTION,
            "A class's accuracy leads in one corner, in two corners, between two heads, or shows no pattern",
            "found by playing with seeds",
            ", ".join(f"{pattern}: {count}" for pattern, count in counts.items()) + f" of {classes} classes",
            verdict(rarest, _OFTEN, min(_OFTEN, 1 / classes)),
            "the rarest of the four patterns: 5 % of all classes; in part where each occurs",
            SIMPLEX,
        ),
    ]


def boosting_claims(trained: Mapping[str, Ensemble]) -> list[Claim]:
    """That boosting knows less than free training; by each optimizer, with the better way to boost."""
    claims = []
    for optimizer, before in (("SGD", ""), ("Adam", "adam ")):
        accuracy = {way: trained[before + way].curve.accuracy[-1] for way in ("free", "shared", "frozen")}
        free = accuracy.pop("free")
        boosted = max(accuracy.values(), key=lambda known: float(known.mean()))
        p = sign_test(free, boosted)
        claims.append(
            Claim(
                _SECTION,
                f"Boosting is less expressive than training all heads at once, by {optimizer}",
                "one curve" if optimizer == "SGD" else "-",
                f"{100 * boosted.mean():.1f} % beside {100 * free.mean():.1f} % (means); {(free > boosted).sum()} of "
                f"{len(free)} seeds know less, {(free < boosted).sum()} more; p = {p:.2g}",
                verdict(1 - p, 0.99, 0.95),
                "one-sided sign test over the seeds, against the better of both ways to boost: p at most 0.01; "
                "0.05 in part",
                BOOSTING,
            )
        )
    return claims


def enough_claims(many: ManyHeads) -> list[Claim]:
    """That heads can be made to share the work, that boosting then succeeds, and that nothing else makes them do it."""
    shares = [float(sets.succeeded.mean()) for sets in many.own_sets]
    least, most = many.enough(MOST), len(many.own_sets)
    by_hand = many.constructed_heads()
    trained = f"trained to, two thirds of the networks do from {least} heads on" if least else "trained to, too few do"
    at = (least or most) - 1
    emerged = Overlaps.of(many.free[at])
    others = emerged.networks - emerged.partitions
    boosted = max((each[-1] for each in many.boosted.values()), key=lambda known: float(known.mean()))
    three = many.free_accuracy()[min(most, 3) - 1]
    as_good = float((boosted >= three).mean())
    return [
        Claim(
            _SECTION,
            "With enough heads, each can be made to remember a different set of pairs",
            "said, with a link",
            f"{trained}; with parameters set by hand, {_range(by_hand)} heads are enough",
            verdict(max(shares), MOST, SOME),
            "networks whose heads alone know all pairs that they were dealt, and together all pairs, at the best "
            f"number of heads up to {most}: 2/3; 1/3 in part",
            ENOUGH,
        ),
        Claim(
            _SECTION,
            "Boosting remembers as well as free training once the network has enough heads",
            "said, not shown",
            f"{100 * boosted.mean():.1f} % with {most} heads beside {100 * three.mean():.1f} % free with 3 (means); as "
            f"many pairs in {100 * as_good:.0f} % of the seeds",
            verdict(as_good, MOST, SOME),
            f"seeds that know as many pairs boosted with {most} heads as free with 3: 2/3; 1/3 in part",
            ENOUGH,
        ),
        Claim(
            _SECTION,
            "Even with enough heads, sets of their own do not emerge by default",
            "said, not shown",
            f"{others} of {emerged.networks} networks of {at + 1} heads, trained freely",
            verdict(others / emerged.networks, MOST, SOME),
            "networks of which some pair is known by two heads alone or by none: 2/3; 1/3 in part",
            ENOUGH,
        ),
    ]


def _range(numbers: Sequence[int]) -> str:
    if not numbers:
        return "no number of"
    least, most = min(numbers), max(numbers)
    return f"{least}" if least == most else f"{least} to {most} (median {np.median(numbers):g})"

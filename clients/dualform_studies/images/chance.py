"""Whether a difference between two countings of the same images is one of chance."""

from __future__ import annotations

CHANCE = 0.01
"""Below it, a difference is none of chance."""


def mcnemar(gained: int, lost: int) -> float:
    """Chance that two classifiers that err alike differ on so many images, or more unevenly: the exact test, two-sided.

    Source: McNemar 1947, "Note on the sampling error of the difference between correlated proportions".
    """
    differ = gained + lost
    tail, ways = 0, 1
    for count in range(min(gained, lost) + 1):
        tail += ways
        ways = ways * (differ - count) // (count + 1)
    return float(min(1.0, 2 * tail / 2**differ))


def is_gain(gained: int, lost: int, tried: int = 1) -> bool:
    """Whether more images are gained than lost, beyond chance, also where the best of so many that were tried is."""
    return gained > lost and mcnemar(gained, lost) < CHANCE / tried

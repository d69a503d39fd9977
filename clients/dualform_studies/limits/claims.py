"""What the paper's section 6 and appendix D say of costs, put to the test, with the criteria."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from dualform_studies.limits.costs import ATTENTION
from dualform_studies.pages.claims import Claim, verdict, verdict_at_most
from dualform_studies.pages.folder import Report
from dualform_studies.pages.words import percent

STORAGE, COSTS, RERUN = "Storage", "What it costs here", "Training again in place of storing"
"""Headings of the page."""

_LINEAR, _ROUGHLY_LINEAR = 0.1, 0.3
"""Relative difference of the bytes of each added slot."""
_STEADY, _ROUGHLY_STEADY = 0.25, 0.5
"""The same of seconds, which are less certain: growth with the square would make it 1 here."""
_NOTHING, _LITTLE = 0.01, 0.1
"""Of a training's time, that one question may take."""


def limits_claims(report: Report) -> Iterator[Claim]:
    measured = report["measured"]
    lengths = [one["slots"] for one in measured]
    if lengths == sorted(set(lengths)):
        yield _storage(measured)
        yield _scoring(measured)
    yield _asking(measured[-1])
    rerun = report["rerun"]
    same = rerun["same"] / rerun["questions"]
    yield Claim(
        "appendix D",
        "A reproducible training can be run again to answer questions, without its datapoints being stored.",
        "an option",
        f"{rerun['same']} of {rerun['questions']} answers equal to the last bit",
        verdict(same, 1.0, 2 / 3),
        "all answers; in part two thirds",
        RERUN,
    )


def _storage(measured: Sequence[Report]) -> Claim:
    sizes = [one["bytes"]["keys"] + one["bytes"]["values"] for one in measured]
    added = _added(measured, sizes)
    return Claim(
        "section 6",
        "Storage grows linearly with the training.",
        "no figure",
        f"{_in_words(measured, [f'{one:,.0f} bytes' for one in added])}, of keys and values",
        verdict_at_most(_difference(added), _LINEAR, _ROUGHLY_LINEAR),
        f"bytes of each added slot within {percent(_LINEAR, 'g')} of each other; in part "
        f"{percent(_ROUGHLY_LINEAR, 'g')}",
        COSTS,
    )


def _scoring(measured: Sequence[Report]) -> Claim:
    added = _added(measured, [one["scoring_seconds"] for one in measured])
    return Claim(
        "appendix D",
        "The time that attention weights take grows linearly with the training.",
        "no figure",
        f"{_in_words(measured, [f'{1e6 * one:.3g} µs' for one in added])}, for the ten best slots of all test images "
        "at all layers",
        verdict_at_most(_difference(added), _STEADY, _ROUGHLY_STEADY),
        f"seconds of each added slot within {percent(_STEADY, 'g')} of each other; in part "
        f"{percent(_ROUGHLY_STEADY, 'g')}",
        COSTS,
    )


def _added(measured: Sequence[Report], amounts: Sequence[float]) -> tuple[float, float]:
    """How much each slot adds, from the first length to the second and from the second to the third."""
    slots = [one["slots"] for one in measured]
    first, second = ((amounts[at + 1] - amounts[at]) / (slots[at + 1] - slots[at]) for at in range(len(slots) - 1))
    return first, second


def _difference(added: tuple[float, float]) -> float:
    """Relative; infinite where what should grow does not."""
    first, second = added
    return abs(second / first - 1) if first > 0 else inf


def _in_words(measured: Sequence[Report], added: Sequence[str]) -> str:
    first, second, third = (f"{one['slots']:,}" for one in measured)
    return f"{added[0]} for each slot from {first} to {second}, {added[1]} from {second} to {third}"


def _asking(measured: Report) -> Claim:
    name = max(ATTENTION, key=lambda one: measured["cold_seconds"][one])
    share = measured["cold_seconds"][name] / measured["plain_seconds"]
    again = max(measured["warm_seconds"][one] for one in ATTENTION) / measured["plain_seconds"]
    return Claim(
        "appendix D",
        "Computing the attention weights of a test input is nothing compared to the training.",
        "no figure",
        f"{percent(share, '.3g')} of the time of the training without recording ({name}, the most expensive "
        f"question, asked once of {measured['slots']:,} slots); asked again, {percent(again, '.2g')} at most",
        verdict_at_most(share, _NOTHING, _LITTLE),
        f"every question about attention weights, at all layers, of a memory just opened, at most "
        f"{percent(_NOTHING, 'g')}; in part {percent(_LITTLE, 'g')}",
        COSTS,
    )

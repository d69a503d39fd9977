"""The remarks of the paper's section 3 that this study puts to the test, with their criteria."""

from __future__ import annotations

from collections.abc import Iterator

from dualform_studies.images.compact.order import BEST
from dualform_studies.pages.claims import Claim, verdict, verdict_at_most
from dualform_studies.pages.folder import Report
from dualform_studies.pages.words import percent

ORDER, SPAN, RANKS = "The order of the slots", "Queries orthogonal to all keys", "Few directions in place of all slots"
"""Headings of the page."""

SAME_ANSWER, _NEARLY_SAME = 1e-6, 1e-4
"""Greatest relative difference between answers that are the same, and nearly so."""
_NOTHING_ADDED, _LITTLE_ADDED = 1e-5, 1e-3
"""Greatest length that training adds to an output, relative to the untrained one."""
_POINTS, _SOME_POINTS = 0.1, 1.0
"""Of accuracy that a compact memory may lose."""


def remarks(report: Report) -> Iterator[Claim]:
    """Remarks 3.1, 3.3 and 3.4, of the study's report; 3.3 only where some layer's keys leave a direction out."""
    yield from _order(report)
    yield from _orthogonal(report)
    yield from _compact(report)


def _order(report: Report) -> Iterator[Claim]:
    layers, pairs = report["order"]["layers"].values(), report["order"]["pairs"]
    apart = max(max(layer["outputs"], layer["sums"]) for layer in layers)
    same = min(layer["same_best"] for layer in layers)
    yield Claim(
        "remark 3.1",
        "Shuffling the memory changes neither outputs nor sums of attention.",
        "equation 13",
        f"a relative difference of {apart:.1e} at most, over {pairs:,} pairs",
        verdict_at_most(apart, SAME_ANSWER, _NEARLY_SAME),
        f"at most {SAME_ANSWER:g} at every layer; in part {_NEARLY_SAME:g}",
        ORDER,
    )
    yield Claim(
        "remark 3.1",
        "Shuffling the memory changes no datapoint among the best.",
        "equation 13",
        f"the same {BEST} best for {percent(same)} of the queries",
        verdict(same, 1.0, 2 / 3),
        "all queries at every layer, pairs that tie with the last apart; in part two thirds",
        ORDER,
    )


def _orthogonal(report: Report) -> Iterator[Claim]:
    asked = {name: layer["query"] for name, layer in report["span"].items() if "query" in layer}
    if not asked:
        return
    added, moved = (max(query[what] for query in asked.values()) for what in ("added", "bias_moved"))
    yield Claim(
        "remark 3.3",
        "A query orthogonal to all keys is answered by the initial weights.",
        "W₀x",
        f"apart from the bias, training adds {added:.1e} of the length of W₀x at most, and the bias moved by "
        f"{moved:.1e} of it at most ({', '.join(asked)})",
        verdict_at_most(added, _NOTHING_ADDED, _LITTLE_ADDED),
        f"at most {_NOTHING_ADDED:g} beside the bias, in every layer with such a query; in part {_LITTLE_ADDED:g}",
        SPAN,
    )


def _compact(report: Report) -> Iterator[Claim]:
    compact = report["compact"]
    lost = 100 * (compact["accuracy_all"] - compact["accuracy"])
    yield Claim(
        "remark 3.4",
        "A more compact attention system does the same: the directions that hold 99.9 % of each update keep the "
        "accuracy.",
        "no figure",
        f"{percent(compact['accuracy'], '.2f')}; {percent(compact['accuracy_all'], '.2f')} with all directions",
        verdict_at_most(lost, _POINTS, _SOME_POINTS),
        f"at most {_POINTS:g} point lost; in part {_SOME_POINTS:g}",
        RANKS,
    )

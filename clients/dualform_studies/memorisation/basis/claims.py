"""What the text says of attention heads, put to the test over networks of many seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np

from dualform_studies.exact_tests import can_reach, sign_test
from dualform_studies.memorisation.basis.many_heads import ManyHeads
from dualform_studies.memorisation.boosting.ways import HEADS_WORDS
from dualform_studies.memorisation.heads.overlap import Alone, Overlaps, fewer_than_chance
from dualform_studies.memorisation.heads.simplex_patterns import RULES, Triangles
from dualform_studies.memorisation.second_study import Criterion, mostly, plain_percent, section
from dualform_studies.memorisation.transformer.ensemble import Ensemble
from dualform_studies.pages.claims import FAILS, HOLDS, IN_PART, Claim, Verdict

ALONE = "What heads know alone"
SIMPLEX = "The simplex of head weights"
BOOSTING = "Boosted training"
ENOUGH = "How many heads are enough"
"""Headings of the page."""
LEVEL = 0.05
"""Greatest p at which a difference over networks is more than chance."""
MOST = mostly("networks that do")
"""Of how many networks a number of heads must be enough."""
_OFTEN = 0.05
"""Of all classes: from here on a pattern is no accident of one seed."""
_SECTION = section("attention heads")


def alone_claims(networks: Sequence[Alone]) -> list[Claim]:
    """That heads do not share the work by remembering different pairs each; no claim by networks too few to tell."""
    if not can_reach(LEVEL, len(networks)):
        return []
    overlaps, fewer = Overlaps.of(networks), fewer_than_chance(networks)
    p = sign_test(fewer)
    parting = mostly("networks of which some pair is known by two heads or by none, each head speaking alone")
    judged = parting.judge(1 - overlaps.partitions / len(networks))
    return [
        Claim(
            _SECTION,
            "Heads alone do not know different sets of pairs whose accuracies add up to 1.",
            "one network of three heads",
            f"{len(networks) - overlaps.partitions} of {len(networks)} networks; sizes add up to {overlaps.sizes:.1f} "
            f"of 25, any knows {overlaps.union:.1f}. Of the pairs not known without heads, two heads share "
            f"{fewer.mean():.2f} fewer than by chance (mean), fewer in {(fewer > 0).sum()} networks; p = {p:.2g}",
            IN_PART if judged == HOLDS and p <= LEVEL else judged,
            f"{parting}; in part, too, if two heads share fewer pairs than sets drawn independently would, by the "
            f"one-sided sign test over the networks (p at most {LEVEL:g})",
            ALONE,
        )
    ]


def simplex_claims(triangles: Triangles) -> list[Claim]:
    networks, classes = len(triangles.centres), len(triangles.classes)
    best = sum(one.is_best for one in triangles.centres)
    as_good = 100 * float(np.mean([one.as_good for one in triangles.centres]))
    centred = mostly("networks of which no weighting knows more pairs than the centre")
    named = [pattern for pattern in triangles.counts() if pattern != "none"]
    by_rule = [triangles.counts(rule) for rule in RULES.values()]
    found = [f"{pattern}: {by_rule[0][pattern]}{_range([one[pattern] for one in by_rule])}" for pattern in named]
    often = max(1, ceil(_OFTEN * classes))
    rare = Criterion(f"classes that show the rarest of the three, of {classes}", often, 1, told=str)
    unpatterned = ", ".join(f"{kind}: {count}" for kind, count in triangles.unpatterned().items())
    return [
        Claim(
            _SECTION,
            "The accuracy over all pairs is greatest in the centre of the simplex, the network as trained.",
            "one network",
            f"{best} of {networks} networks; {as_good:.0f} % of the weightings are as good as the best",
            centred.judge(best / networks),
            str(centred),
            SIMPLEX,
        ),
        Claim(
            _SECTION,
            "By playing with seeds, one sees classes whose accuracy leads in one corner, in two, or between two heads.",
            "found by playing with seeds",
            f"{', '.join(found)} of {classes} classes (in brackets: by other rules); no pattern: "
            f"{by_rule[0]['none']} ({unpatterned})",
            rare.judge(min(by_rule[0][pattern] for pattern in named)),
            f"{rare} ({plain_percent(_OFTEN)} of all, and one)",
            SIMPLEX,
        ),
    ]


def boosting_claims(trained: Mapping[str, Ensemble]) -> list[Claim]:
    """That boosting by SGD knows less than free training, with the better way to boost; no claim where the seeds are
    too few to tell."""
    accuracy = {way: trained[way].curve.accuracy[-1] for way in HEADS_WORDS}
    free = accuracy.pop("free")
    boosted = max(accuracy.values(), key=lambda known: float(known.mean()))
    p, less = sign_test(free - boosted), float(np.mean(free - boosted))
    tested = Criterion("one-sided sign test over the seeds: p", 0.01, LEVEL, at_most=True, told=str)
    judged: Verdict = FAILS if less <= 0 else tested.judge(p)
    if less > 0 and judged == FAILS:
        return []
    return [
        Claim(
            _SECTION,
            "Boosting is less expressive than training all heads at once.",
            "one curve",
            f"{100 * boosted.mean():.1f} %, all at once {100 * free.mean():.1f} % (means); {(free > boosted).sum()} of "
            f"{len(free)} seeds know less, {(free < boosted).sum()} more; p = {p:.2g}",
            judged,
            f"{tested}, against the better of both ways to boost; it does not hold if the mean difference is 0 or "
            "less; else the seeds are too few for a verdict",
            BOOSTING,
        )
    ]


def enough_claims(many: ManyHeads) -> list[Claim]:
    """That heads can be made to share the work, that boosting then succeeds, and that nothing else makes them do it."""
    least, most = many.enough(MOST.holds), len(many.own_sets)
    shares = [float(sets.succeeded.mean()) for sets in many.own_sets]
    by_hand, tried = many.heads_by_hand(), [one for one in many.by_hand if one is not None]
    made = mostly(
        "networks trained to it whose heads alone know sets of their own (all pairs dealt to heads that know them, to "
        f"none more than its share), and together all pairs, at {most} heads, the most that were tried"
    )
    boosted = max((each[-1] for each in many.boosted.values()), key=lambda known: float(known.mean()))
    three = many.free_accuracy()[min(most, 3) - 1]
    as_good = mostly(f"seeds that know as many pairs boosted with {most} heads as free with 3")
    return [
        Claim(
            _SECTION,
            "With enough heads, each can be made to remember a different set of pairs.",
            "stated, with a link",
            f"{100 * shares[-1]:.0f} % of the networks of {most} heads; {MOST.told(MOST.holds)} of them or more "
            + (f"from {least} heads on" if least else "from no number of heads on")
            + f"; with parameters set by hand, {len(by_hand)} of {len(tried)} networks, each head with no pair of "
            f"another's, and {heads_in_words(by_hand)}",
            made.judge(shares[-1]),
            str(made),
            ENOUGH,
        ),
        Claim(
            _SECTION,
            "Boosting remembers as well as free training once the network has enough heads.",
            "stated, not shown",
            f"{100 * boosted.mean():.1f} % with {most} heads, {100 * three.mean():.1f} % free with 3 (means); as "
            f"many pairs in {100 * (boosted >= three).mean():.0f} % of the seeds",
            as_good.judge(float((boosted >= three).mean())),
            str(as_good),
            ENOUGH,
        ),
        _emergence_claim(many, least),
    ]


def _emergence_claim(many: ManyHeads, least: int | None) -> Claim:
    """Judged as the heads that were trained to have sets of their own are, at numbers that were enough for these."""
    without = mostly(
        "networks trained freely whose heads do not know sets of their own alone, judged as if trained to it, at the "
        f"worst number of heads from the least on with which {MOST.told(MOST.holds)} of those trained to it succeed"
    )
    if least is None:
        verdict, ours = FAILS, f"no number of heads up to {len(many.own_sets)} is enough, so that nothing can be judged"
    else:
        rest = many.free[least - 1 :]
        emerged = [Overlaps.of(networks).own_sets / len(networks) for networks in rest]
        worst = least + int(np.argmax(emerged))
        free, trained = Overlaps.of(many.free[worst - 1]), Overlaps.of(many.own_sets[worst - 1].networks)
        verdict = without.judge(1 - max(emerged))
        ours = (
            f"{free.networks - free.own_sets} of {free.networks} networks of {worst} heads, the worst number from "
            f"{least} on; of those trained to it, {trained.networks - trained.own_sets} of {trained.networks}"
        )
    return Claim(
        _SECTION,
        "Even with enough heads, separate sets do not emerge by default.",
        "stated, not shown",
        ours,
        verdict,
        str(without),
        ENOUGH,
    )


def _range(counts: Sequence[int]) -> str:
    """What the counts of several rules lie between; nothing where they agree."""
    return f" ({min(counts)} to {max(counts)})" if min(counts) < max(counts) else ""


def heads_in_words(numbers: Sequence[int]) -> str:
    """As \"6 to 8 heads (median 7)\"."""
    if not numbers:
        return "no number of heads"
    least, most = min(numbers), max(numbers)
    return f"{least} heads" if least == most else f"{least} to {most} heads (median {np.median(numbers):g})"

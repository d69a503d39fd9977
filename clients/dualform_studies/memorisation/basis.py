"""Claims and chapters on heads: whether they are a meaningful basis, and how many are enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from dualform_studies.assignment import Progress, or_silent
from dualform_studies.claims import (
    FAILS,
    HOLDS,
    IN_PART,
    Claim,
    can_reach,
    judge,
    judged,
    plain_percent,
    sign_test,
    verdict,
)
from dualform_studies.memorisation.boosting import WAYS, boost, boundaries, draw_ways, train_ways
from dualform_studies.memorisation.heads import (
    Alone,
    Overlaps,
    OwnSets,
    construct,
    fewer_than_chance,
    heads_alone,
    train_own_sets,
)
from dualform_studies.memorisation.simplex import (
    RULES,
    Simplex,
    Triangles,
    draw_inputs,
    draw_patterns,
    draw_simplexes,
    over_simplex,
    triangles_of,
)
from dualform_studies.memorisation.transformer import (
    HEADS,
    AttentionOnly,
    Ensemble,
    Facts,
    Recipe,
    draw_facts,
    train_siblings,
)
from dualform_studies.report import Cell, Page, Report, Table, in_fraction, percent, report_folder


@dataclass(frozen=True, eq=False)
class ByHand:
    """A network whose parameters were set and not trained."""

    owned: NDArray[np.bool_]
    """bool[H, P]: the pairs that each head was made to know."""
    alone: Alone
    """What its heads know alone."""

    @property
    def proved(self) -> bool:
        """Whether each head alone knows the pairs that it was made to know and no other, and all heads know all."""
        return bool(np.array_equal(self.alone.known, self.owned) and self.alone.together.all())


@dataclass(frozen=True, eq=False)
class ManyHeads:
    """Networks of each number of heads, from 1 on; each is trained with the same seeds."""

    own_sets: list[OwnSets]
    """Trained to give every head a set of its own."""
    free: list[list[Alone]]
    """Trained on all pairs at once: what the heads know alone."""
    boosted: dict[str, NDArray[np.float64]]
    """By whether embeddings go on learning ("shared") or not ("frozen"), float64[H, M]: accuracy after each head."""
    by_hand: list[ByHand | None]
    """By seed; None where no network can be set by hand (heads.py)."""

    def free_accuracy(self) -> NDArray[np.float64]:
        """float64[H, M]: of all heads together."""
        return np.array([[one.together.mean() for one in networks] for networks in self.free])

    def enough(self, share: float) -> int | None:
        """The least number of heads with which, and with every larger number, this share of the networks gave every
        head its set; None if the largest number is too small."""
        too_few = [sets.heads for sets in self.own_sets if sets.succeeded.mean() < share - 1e-9]
        least = max(too_few, default=0) + 1
        return least if least <= len(self.own_sets) else None

    def heads_by_hand(self) -> list[int]:
        """How many heads each network that was set by hand and proved has."""
        return [len(one.owned) for one in self.by_hand if one is not None and one.proved]


def train_many_heads(
    recipe: Recipe, seeds: Sequence[int], siblings: Ensemble, progress: Progress | None = None
) -> ManyHeads:
    """`siblings` are the networks of three heads of these seeds, trained freely."""
    numbers = range(1, recipe.most_heads + 1)
    return ManyHeads(
        [train_own_sets(recipe, seeds, heads, progress) for heads in numbers],
        [
            heads_alone(siblings if heads == HEADS else train_siblings(recipe, seeds, heads, progress))
            for heads in numbers
        ],
        {way: _boosted(recipe, seeds, way, progress) for way in ("shared", "frozen")},
        _by_hand(recipe, seeds, progress),
    )


def _boosted(recipe: Recipe, seeds: Sequence[int], way: str, progress: Progress | None) -> NDArray[np.float64]:
    """float64[H, M]: one training of all heads passes through those of fewer."""
    curve = boost(recipe, seeds, recipe.most_heads, way, progress).curve
    return np.stack([curve.accuracy[curve.at(step)] for step in boundaries(recipe, recipe.most_heads)])


def _by_hand(recipe: Recipe, seeds: Sequence[int], progress: Progress | None) -> list[ByHand | None]:
    say = or_silent(progress)
    found: list[ByHand | None] = []
    for done, seed in enumerate(seeds, start=1):
        facts = draw_facts(seed)
        made = construct(facts, seed, recipe.arrangements)
        found.append(None if made is None else ByHand(made.owned, heads_alone(Ensemble([made.network], [facts]))[0]))
        say("setting parameters by hand", done, len(seeds))
    return found


SIMPLEX = "The simplex of head weights"
BOOSTING = "Boosted training"
ENOUGH = "How many heads are enough"
"""Headings of the page."""
LEVEL = 0.05
"""Greatest p at which a difference over networks is more than chance."""
MOST = 2 / 3
"""The share of networks for which a number of heads must be enough."""
_OFTEN = 0.05
"""Of all classes: from here on a pattern is no accident of one seed."""


def alone_claims(networks: Sequence[Alone]) -> list[Claim]:
    """That heads do not share the work by remembering different pairs each; no claim by networks too few to tell."""
    if not can_reach(LEVEL, len(networks)):
        return []
    overlaps, fewer = Overlaps.of(networks), fewer_than_chance(networks)
    p = sign_test(fewer)
    name = "memorisation.alone"
    ours = (
        f"{len(networks) - overlaps.partitions} of {len(networks)} networks; sizes add up to {overlaps.sizes:.1f} "
        f"of 25, any knows {overlaps.union:.1f}. Of the pairs not known without heads, two heads share "
        f"{fewer.mean():.2f} fewer than by chance (mean), fewer in {(fewer > 0).sum()} networks; p = {p:.2g}"
    )
    claim = judge(name, 1 - overlaps.partitions / len(networks), ours, level=LEVEL)
    return [replace(claim, verdict=IN_PART) if claim.verdict == HOLDS and p <= LEVEL else claim]


def simplex_claims(triangles: Triangles) -> list[Claim]:
    networks, classes = len(triangles.centres), len(triangles.classes)
    best = sum(one.is_best for one in triangles.centres)
    as_good = 100 * float(np.mean([one.as_good for one in triangles.centres]))
    named = [pattern for pattern in triangles.counts() if pattern != "none"]
    by_rule = [triangles.counts(rule) for rule in RULES.values()]
    found = [f"{pattern}: {by_rule[0][pattern]}{_range([one[pattern] for one in by_rule])}" for pattern in named]
    often = max(1, ceil(_OFTEN * classes))
    unpatterned = ", ".join(f"{kind}: {count}" for kind, count in triangles.unpatterned().items())
    return [
        judge(
            "memorisation.centre",
            best / networks,
            f"{best} of {networks} networks; {as_good:.0f} % of the weightings are as good as the best",
        ),
        judged(
            "memorisation.triangles",
            verdict(min(by_rule[0][pattern] for pattern in named), often, 1),
            f"{', '.join(found)} of {classes} classes (in brackets: by other rules); no pattern: "
            f"{by_rule[0]['none']} ({unpatterned})",
            classes=classes,
            often=often,
            share=plain_percent(_OFTEN),
        ),
    ]


def boosting_claims(trained: Mapping[str, Ensemble]) -> list[Claim]:
    """That boosting by SGD knows less than free training, with the better way to boost; no claim where the seeds are
    too few to tell."""
    accuracy = {way: trained[way].curve.accuracy[-1] for way in WAYS}
    free = accuracy.pop("free")
    boosted = max(accuracy.values(), key=lambda known: float(known.mean()))
    p, less = sign_test(free - boosted), float(np.mean(free - boosted))
    ours = (
        f"{100 * boosted.mean():.1f} %, all at once {100 * free.mean():.1f} % (means); {(free > boosted).sum()} of "
        f"{len(free)} seeds know less, {(free < boosted).sum()} more; p = {p:.2g}"
    )
    claim = judge("memorisation.boosting", p, ours)
    if less <= 0:
        return [replace(claim, verdict=FAILS)]
    return [] if claim.verdict == FAILS else [claim]


def enough_claims(many: ManyHeads) -> list[Claim]:
    """That heads can be made to share the work, that boosting then succeeds, and that nothing else makes them do it."""
    least, most = many.enough(MOST), len(many.own_sets)
    shares = [float(sets.succeeded.mean()) for sets in many.own_sets]
    by_hand, tried = many.heads_by_hand(), [one for one in many.by_hand if one is not None]
    boosted = max((each[-1] for each in many.boosted.values()), key=lambda known: float(known.mean()))
    three = many.free_accuracy()[min(most, 3) - 1]
    return [
        judge(
            "memorisation.own-sets",
            shares[-1],
            f"{100 * shares[-1]:.0f} % of the networks of {most} heads; {in_fraction(MOST)} of them or more "
            + (f"from {least} heads on" if least else "from no number of heads on")
            + f"; with parameters set by hand, {len(by_hand)} of {len(tried)} networks, each head with no pair of "
            f"another's, and {heads_in_words(by_hand)}",
            heads=most,
        ),
        judge(
            "memorisation.boosting-as-good",
            float((boosted >= three).mean()),
            f"{100 * boosted.mean():.1f} % with {most} heads, {100 * three.mean():.1f} % free with 3 (means); as "
            f"many pairs in {100 * (boosted >= three).mean():.0f} % of the seeds",
            heads=most,
        ),
        _emergence_claim(many, least),
    ]


def _emergence_claim(many: ManyHeads, least: int | None) -> Claim:
    """Judged as the heads that were trained to have sets of their own are, at numbers that were enough for these."""
    name = "memorisation.emergence"
    if least is None:
        return judged(
            name, FAILS, f"no number of heads up to {len(many.own_sets)} is enough, so that nothing can be judged"
        )
    emerged = [Overlaps.of(networks).own_sets / len(networks) for networks in many.free[least - 1 :]]
    worst = least + int(np.argmax(emerged))
    free, trained = Overlaps.of(many.free[worst - 1]), Overlaps.of(many.own_sets[worst - 1].networks)
    return judge(
        name,
        1 - max(emerged),
        f"{free.networks - free.own_sets} of {free.networks} networks of {worst} heads, the worst number from "
        f"{least} on; of those trained to it, {trained.networks - trained.own_sets} of {trained.networks}",
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


def boosting_chapter(page: Page, trained: Mapping[str, Ensemble], recipe: Recipe) -> tuple[list[Claim], Report]:
    page.heading(BOOSTING)
    page.paragraph(
        f"Head 1 learns alone for {recipe.steps:,} updates and is frozen, then head 2 learns for "
        f"{recipe.later_steps:,}, then head 3; the text does not say whether the embeddings go on learning meanwhile, "
        "so both are run, each with more updates than free training has, by SGD with momentum."
    )
    page.figure(
        draw_ways(report_folder(page.run) / "boosting.png", trained, recipe),
        "Accuracy while training: the median over the seeds, shaded from the first quartile to the third.",
    )
    return boosting_claims(trained), {
        "ways": {way: [round(25 * known) for known in trained[way].curve.accuracy[-1].tolist()] for way in WAYS}
    }


def enough_chapter(
    page: Page, recipe: Recipe, seeds: Sequence[int], siblings: Ensemble, progress: Progress | None
) -> tuple[list[Claim], Report]:
    """`siblings` are the networks of these seeds with three heads, trained freely."""
    many = train_many_heads(recipe, seeds, siblings, progress)
    page.heading(ENOUGH)
    page.paragraph(
        "Can each head remember a set of pairs of its own, so that it knows them alone, and all heads together know "
        "all? Two answers. Trained to it: the pairs are dealt to the heads at random, and the loss asks all heads "
        f"for all pairs and each head alone for its own (Adam, {recipe.own_steps:,} updates). Set by hand: words are "
        "placed on their circle so that the second token alone always gives a wrong answer, and each head is given an "
        "attention that turns to the second token for its own pairs, which all have one next token, and to a silent "
        "first token for all others."
    )
    page.show(_table(many))
    return enough_claims(many), {
        "enough": {
            "trained": many.enough(MOST),
            "by_hand": many.heads_by_hand(),
            "succeeded": [float(sets.succeeded.mean()) for sets in many.own_sets],
            "emerged": [Overlaps.of(networks).own_sets / len(networks) for networks in many.free],
        }
    }


def _table(many: ManyHeads) -> Table:
    rows: list[list[Cell]] = []
    by_hand, built = np.array(many.heads_by_hand()), len(many.by_hand)
    accuracy = many.free_accuracy()
    for at, sets in enumerate(many.own_sets):
        freely, trained = Overlaps.of(many.free[at]), Overlaps.of(sets.networks)
        rows.append(
            [
                sets.heads,
                f"{trained.own_sets} of {trained.networks}",
                percent(sets.own.mean()),
                f"{trained.sizes:.1f}",
                f"{trained.partitions} of {trained.networks}",
                f"{int((by_hand <= sets.heads).sum())} of {built}",
                *(percent(many.boosted[way][at].mean()) for way in ("shared", "frozen")),
                percent(accuracy[at].mean()),
                f"{freely.own_sets} of {freely.networks}",
                f"{freely.sizes:.1f}",
                f"{freely.partitions} of {freely.networks}",
            ]
        )
    columns = (
        "heads", "trained to: sets of their own", "pairs known by the head they were dealt to",
        "pairs known alone, added up", "accuracies add up to 1", "set by hand: networks that do",
        "boosted: accuracy", "boosted, embeddings frozen", "free: accuracy", "free: sets of their own",
        "free: pairs known alone, added up", "free: accuracies add up to 1",
    )  # fmt: skip
    return Table("enough", "What heads can be made to do, and what they do, by their number.", columns, rows)


def basis_chapters(
    page: Page,
    network: AttentionOnly,
    facts: Facts,
    recipe: Recipe,
    seeds: Sequence[int],
    siblings: Ensemble,
    progress: Progress | None,
) -> tuple[list[Claim], Report]:
    """What the recorded network's heads do, and those of its siblings of other seeds. Returns claims and findings."""
    triangles = triangles_of(siblings.networks(), [draw_facts(seed) for seed in seeds], seeds, recipe.simplex)
    claims = alone_claims(heads_alone(siblings)) + simplex_claims(triangles)
    report = simplex_chapter(page, over_simplex(network, facts, recipe.simplex), triangles, facts)
    for found, more in (
        boosting_chapter(page, train_ways(recipe, seeds, siblings, progress), recipe),
        enough_chapter(page, recipe, seeds, siblings, progress),
    ):
        claims += found
        report |= more
    return claims, report


def simplex_chapter(page: Page, simplex: Simplex, triangles: Triangles, facts: Facts) -> Report:
    folder = report_folder(page.run)
    page.heading(SIMPLEX)
    page.paragraph(
        "The triangles vary the heads' weights, which sum to 3: the cross in the middle is the network as trained, a "
        "corner is one head alone, three times as strong."
    )
    page.figure(
        draw_simplexes(folder / "simplex.png", simplex, facts),
        "Accuracy over the simplex of head weights, in the steps that it has; at the corners, that of one head alone.",
    )
    page.figure(
        draw_inputs(folder / "simplex-inputs.png", simplex, facts),
        "The same for each pair (pair → next token): the probability of its next token, and the border of the "
        "weights with which that token is the most likely one.",
    )
    page.figure(
        draw_patterns(folder / "simplex-patterns.png", triangles),
        f"The four patterns, found in {len(triangles.centres)} networks of different seeds by a rule that was fixed "
        "before: of each pattern the class of the most pairs, and of several the one of the first seed.",
    )
    return {"patterns": {str(pattern): count for pattern, count in triangles.counts().items()}}

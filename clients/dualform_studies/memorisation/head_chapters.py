"""Are attention heads a meaningful basis? What they know alone, the simplex of their weights, boosting, more heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dualform_studies.memorisation import head_tables
from dualform_studies.memorisation.boosting import train_ways
from dualform_studies.memorisation.boosting_figure import draw_ways
from dualform_studies.memorisation.ensemble import Ensemble
from dualform_studies.memorisation.facts import Facts, draw_facts
from dualform_studies.memorisation.falls import HeadOne, train_head_one
from dualform_studies.memorisation.falls_figure import draw_falls
from dualform_studies.memorisation.head_claims import (
    ALONE,
    BOOSTING,
    ENOUGH,
    SIMPLEX,
    alone_claim,
    boosting_claims,
    enough_claims,
    simplex_claims,
)
from dualform_studies.memorisation.many_heads import train_many_heads
from dualform_studies.memorisation.many_heads_figure import draw_many_heads
from dualform_studies.memorisation.network import AttentionOnly, with_weights
from dualform_studies.memorisation.overlap import Alone, Overlaps, heads_alone
from dualform_studies.memorisation.simplex import Simplex, over_simplex
from dualform_studies.memorisation.simplex_figures import draw_inputs, draw_patterns, draw_simplexes
from dualform_studies.memorisation.simplex_patterns import Triangles, triangles_of
from dualform_studies.memorisation.training import Recipe
from dualform_studies.pages.claims import Claim
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.page import Page
from dualform_studies.progress import Progress


def basis_chapters(
    page: Page, network: AttentionOnly, facts: Facts, recipe: Recipe, seeds: Sequence[int], progress: Progress | None
) -> tuple[list[Claim], Report]:
    """What the recorded network's heads do, and those of networks of other seeds. Returns claims and what was found."""
    trained = train_ways(recipe, seeds, progress)
    free = trained["free"]
    others = heads_alone(free)
    triangles = triangles_of(
        [with_weights(free.weights(member)) for member in range(len(seeds))],
        [draw_facts(seed) for seed in seeds],
        seeds,
        recipe.simplex,
    )
    simplex, alone = over_simplex(network, facts, recipe.simplex), heads_alone(Ensemble([network], [facts]))[0]
    claims, report = (
        [alone_claim(others), *simplex_claims(triangles)],
        alone_chapter(page, simplex, alone, others, facts),
    )
    report |= simplex_chapter(page, simplex, triangles, facts)
    claims += boosting_claims(trained)
    report |= boosting_chapter(page, trained, train_head_one(recipe, seeds, progress), recipe)
    found, more = enough_chapter(page, recipe, seeds, progress)
    return claims + found, report | more


def alone_chapter(page: Page, simplex: Simplex, alone: Alone, others: Sequence[Alone], facts: Facts) -> Report:
    """Which pairs each head knows by itself, and how these sets overlap."""
    overlaps = Overlaps.of(others)
    page.heading(ALONE)
    page.paragraph(
        "Were each head to remember pairs of its own, the pairs known by each alone would be different ones, and "
        f"add up to all 25. They are {' + '.join(map(str, alone.sizes))} here, of which {int(alone.union.sum())} are "
        f"different, and {int(alone.without.sum())} are known without any head, from the second token's own stream. "
        f"In {overlaps.networks} networks, each of other facts and another start, two heads share "
        f"{overlaps.shared:.1f} pairs on average, where sets of their sizes that were drawn independently would "
        f"share {overlaps.shared_by_chance:.1f}; the heads of {overlaps.partitions} networks part the pairs between "
        "them."
    )
    page.show(head_tables.heads(simplex, alone, facts), head_tables.overlap(alone, facts), head_tables.overlaps(others))
    return {
        "heads": {
            "alone": alone.sizes.tolist(),
            "union": int(alone.union.sum()),
            "without": int(alone.without.sum()),
            "together": int(alone.together.sum()),
        }
    }


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
    page.show(head_tables.patterns(triangles))
    counts = triangles.counts()
    return {"patterns": {str(pattern): count for pattern, count in counts.items()}}


def boosting_chapter(
    page: Page, trained: Mapping[str, Ensemble], head_one: Mapping[str, HeadOne], recipe: Recipe
) -> Report:
    """Boosted training beside free training, and why head 1 forgets."""
    folder, seeds = report_folder(page.run), len(trained["free"].curve.accuracy[-1])
    page.heading(BOOSTING)
    page.paragraph(
        f"Head 1 learns alone for {recipe.steps:,} updates and is frozen, then head 2 learns for "
        f"{recipe.later_steps:,}, then head 3; the text does not say whether the embeddings go on learning meanwhile, "
        f"so both are run, each with more updates than free training has. {seeds} seeds, each with facts and a "
        "start of its own. Adam stands beside as a comparison: the memory was asked of SGD with momentum, under which "
        "a slot has one coefficient."
    )
    page.figure(
        draw_ways(folder / "boosting.png", trained, recipe),
        "Accuracy while training: the median over the seeds, shaded from the first quartile to the third. Right: "
        "every seed at its end, with medians.",
    )
    page.show(head_tables.ways(trained))
    page.paragraph(_why_it_falls(head_one))
    page.figure(
        draw_falls(folder / "falls.png", head_one),
        "Head 1 learning alone. Left: by SGD and by Adam, with other steps. Middle: the seeds that fall by SGD, "
        "moved so that they fall at 0, each and their median. Right: the greatest curvature of their loss in what "
        "learns, over the one that gradient descent with momentum follows, 2 (1 + momentum) / learning rate.",
    )
    page.show(head_tables.falls(head_one))
    return {
        "ways": {
            name: [round(25 * known) for known in ensemble.curve.accuracy[-1].tolist()]
            for name, ensemble in trained.items()
        },
        "falls": {name: int(one.fell.sum()) for name, one in head_one.items()},
    }


def _why_it_falls(found: Mapping[str, HeadOne]) -> str:
    sgd, small = found["SGD"], found["SGD, small"]
    fell, count = int(sgd.fell.sum()), len(sgd.fell)
    if not fell:
        return f"Head 1 keeps what it knows in all {count} seeds: no seed loses 5 pairs or more at once."
    lost, lost_small = (100 * float((one.best - one.end).mean()) for one in (sgd, small))
    verdict = (
        "It is the optimizer's collapse more than a matter of what one head can hold"
        if lost_small < lost / 2
        else "Smaller steps lose as much, so it is not the optimizer's collapse alone"
    )
    return (
        f"Head 1 loses 5 pairs or more at once in {fell} of {count} seeds, and the mean with them. {verdict}: on the "
        f"way it has known {lost:.1f} points more than at the end, and {lost_small:.1f} points with a quarter of the "
        f"learning rate and four times the updates, where {int(small.fell.sum())} seeds fall. As it learns, its loss "
        f"grows more curved. In {int(sgd.at_bound()[sgd.fell].sum())} of the {fell} seeds that fell, it had come "
        f"within a tenth of what gradient descent with momentum follows ({sgd.bound:.0f}), and so it had in "
        f"{int(sgd.at_bound()[~sgd.fell].sum())} of the {count - fell} others: there, steps overshoot, and some "
        "seeds are thrown out of what they had learned. Adam divides by the root of the second moment, which grows "
        f"small as gradients do: {int(found['Adam'].fell.sum())} seeds fall, {int(found['Adam, ε'].fell.sum())} with "
        f"a larger ε, and {int(found['Adam, small'].fell.sum())} with smaller steps."
    )


def enough_chapter(
    page: Page, recipe: Recipe, seeds: Sequence[int], progress: Progress | None
) -> tuple[list[Claim], Report]:
    """From how many heads on each can remember a set of its own."""
    many = train_many_heads(recipe, seeds, progress)
    by_hand = many.constructed_heads()
    page.heading(ENOUGH)
    page.paragraph(
        "Can each head remember a set of pairs of its own, so that it knows them alone, and all heads together know "
        "all? Two answers. Trained to it: the pairs are dealt to the heads at random, and the loss asks all heads "
        f"for all pairs and each head alone for its own (Adam, {recipe.own_steps:,} updates). Set by hand: words are "
        "placed on their circle so that the second token alone always gives a wrong answer, and each head is given "
        "an attention that turns to the second token for its own pairs, which all have one next token, and to a "
        "silent first token for all others. Evaluated, each of these heads alone knows its own pairs and no other, "
        f"and all together know all: this was so in {len(by_hand)} of {len(many.constructed)} networks, with "
        f"{_numbers(by_hand)}. In the {sum(one is None for one in many.constructed)} others, a second token has all "
        "five next tokens, so that whatever it gives without any head is right for one pair. With 25 heads it can "
        "be done for any network but these, one pair a head. Both numbers are upper bounds: a training that fails, or "
        "a plane that is not found, does not prove that there is none."
    )
    page.figure(
        draw_many_heads(report_folder(page.run) / "many-heads.png", many),
        "Left: accuracy by the number of heads. Right: of how many networks the heads remember sets of their own.",
    )
    page.show(head_tables.enough(many))
    return enough_claims(many), {
        "enough": {
            "trained": many.enough(2 / 3),
            "by_hand": by_hand,
            "succeeded": [float(sets.succeeded.mean()) for sets in many.own_sets],
        }
    }


def _numbers(heads: Sequence[int]) -> str:
    return f"{min(heads)} to {max(heads)} heads, {np.median(heads):g} in the median" if heads else "no heads"

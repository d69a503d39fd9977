"""Are attention heads a meaningful basis? What they know alone, the simplex of their weights, boosting, more heads."""

from __future__ import annotations

from collections.abc import Sequence

from dualform_studies.exact_tests import sign_test
from dualform_studies.memorisation.basis.boosting_chapter import boosting_chapter
from dualform_studies.memorisation.basis.claims import ALONE, LEVEL, SIMPLEX, alone_claims, simplex_claims
from dualform_studies.memorisation.basis.enough_chapter import enough_chapter
from dualform_studies.memorisation.boosting.falls import train_head_one
from dualform_studies.memorisation.boosting.ways import train_ways
from dualform_studies.memorisation.heads import tables
from dualform_studies.memorisation.heads.overlap import Alone, Overlaps, fewer_than_chance, heads_alone
from dualform_studies.memorisation.heads.simplex import Simplex, over_simplex
from dualform_studies.memorisation.heads.simplex_figures import draw_inputs, draw_patterns, draw_simplexes
from dualform_studies.memorisation.heads.simplex_patterns import Triangles, triangles_of
from dualform_studies.memorisation.transformer.ensemble import Ensemble
from dualform_studies.memorisation.transformer.facts import Facts, draw_facts
from dualform_studies.memorisation.transformer.network import AttentionOnly
from dualform_studies.memorisation.transformer.training import Recipe
from dualform_studies.pages.claims import Claim
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.page import Page
from dualform_studies.progress import Progress


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
    others = heads_alone(siblings)
    triangles = triangles_of(siblings.networks(), [draw_facts(seed) for seed in seeds], seeds, recipe.simplex)
    simplex, alone = over_simplex(network, facts, recipe.simplex), heads_alone(Ensemble([network], [facts]))[0]
    claims = alone_claims(others) + simplex_claims(triangles)
    report = alone_chapter(page, simplex, alone, others, facts) | simplex_chapter(page, simplex, triangles, facts)
    for found, more in (
        boosting_chapter(
            page, train_ways(recipe, seeds, siblings, progress), train_head_one(recipe, seeds, progress), recipe
        ),
        enough_chapter(page, recipe, seeds, siblings, progress),
    ):
        claims += found
        report |= more
    return claims, report


def alone_chapter(page: Page, simplex: Simplex, alone: Alone, others: Sequence[Alone], facts: Facts) -> Report:
    """Which pairs each head knows by itself, and how these sets overlap."""
    overlaps, outside = Overlaps.of(others), Overlaps.of([one.outside for one in others])
    p = sign_test(fewer_than_chance(others))
    page.heading(ALONE)
    page.paragraph(
        "Were each head to remember pairs of its own, the pairs known by each alone would be different ones, and "
        f"add up to all 25. They are {' + '.join(map(str, alone.sizes))} here, of which {int(alone.union.sum())} are "
        f"different, and {int(alone.without.sum())} are known without any head, from the second token's own stream. "
        f"In {overlaps.networks} networks, each of other facts and another start, the heads of {overlaps.partitions} "
        f"part the pairs between them. Two heads share {overlaps.shared:.2f} pairs on average, where sets of their "
        f"sizes that were drawn independently would share {overlaps.shared_by_chance:.2f}. That counts pairs that are "
        f"known without any head, which most heads know, too; of the others, two heads share {outside.shared:.2f} "
        f"where {outside.shared_by_chance:.2f} are expected (one-sided sign test over the networks: p = {p:.2g}). "
        + (
            "So heads do tend to different pairs, without parting them."
            if p <= LEVEL
            else "So it is not shown that heads tend to different pairs at all."
        )
    )
    page.show(tables.heads(simplex, alone, facts), tables.overlap(alone, facts), tables.overlaps(others))
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
    page.show(tables.patterns(triangles))
    counts = triangles.counts()
    return {"patterns": {str(pattern): count for pattern, count in counts.items()}}

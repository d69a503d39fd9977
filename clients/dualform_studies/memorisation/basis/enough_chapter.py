"""From how many heads on each can remember a set of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dualform_studies.memorisation.basis.claims import ENOUGH, MOST, enough_claims, heads_in_words
from dualform_studies.memorisation.basis.many_heads import ManyHeads, train_many_heads
from dualform_studies.memorisation.basis.many_heads_figure import draw_many_heads
from dualform_studies.memorisation.heads.overlap import Overlaps
from dualform_studies.memorisation.transformer.ensemble import Ensemble
from dualform_studies.memorisation.transformer.training import Recipe
from dualform_studies.pages.claims import Claim
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.page import Page
from dualform_studies.pages.words import percent
from dualform_studies.progress import Progress


def enough_chapter(
    page: Page, recipe: Recipe, seeds: Sequence[int], siblings: Ensemble, progress: Progress | None
) -> tuple[list[Claim], Report]:
    """`siblings` are the networks of these seeds with three heads, trained freely."""
    many = train_many_heads(recipe, seeds, siblings, progress)
    page.heading(ENOUGH)
    page.paragraph(
        "Can each head remember a set of pairs of its own, so that it knows them alone, and all heads together know "
        "all? Two answers. Trained to it: the pairs are dealt to the heads at random, and the loss asks all heads "
        f"for all pairs and each head alone for its own (Adam, {recipe.own_steps:,} updates). It does not ask a head "
        "to be wrong about the pairs of others. Set by hand: words are placed on their circle so that the second token "
        "alone always gives a wrong answer, and each head is given an attention that turns to the second token for its "
        "own pairs, which all have one next token, and to a silent first token for all others. " + _by_hand(many)
    )
    page.paragraph(
        "Networks that were trained freely are judged as those that were trained to it: their heads know sets of their "
        "own if the pairs can be dealt to them so that each head alone knows those dealt to it, in whichever way, and "
        "to no head more than its share. That accuracies alone add up to 1 is more: then heads are also wrong about "
        "the pairs of others."
    )
    page.figure(
        draw_many_heads(report_folder(page.run) / "many-heads.png", many),
        "Left: accuracy by the number of heads. Right: of how many networks the heads know sets of their own.",
    )
    page.show(_table(many))
    return enough_claims(many), {
        "enough": {
            "trained": many.enough(MOST.holds),
            "by_hand": many.heads_by_hand(),
            "succeeded": [float(sets.succeeded.mean()) for sets in many.own_sets],
            "emerged": [Overlaps.of(networks).own_sets / len(networks) for networks in many.free],
        }
    }


def _by_hand(many: ManyHeads) -> str:
    """What became of the networks that were set by hand: proved, impossible, or built and not as they should be."""
    proved, built = many.heads_by_hand(), [one for one in many.by_hand if one is not None]
    words = (
        f"Evaluated, each of these heads alone knows its own pairs and no other, and all together know all, in "
        f"{len(proved)} of {len(many.by_hand)} networks"
    )
    if proved:
        words += f", with {heads_in_words(proved)}"
    if len(built) < len(many.by_hand):
        words += (
            f". For {len(many.by_hand) - len(built)}, none can be built so: a second token has all five next tokens, "
            "and whatever it gives without any head is right for one pair"
        )
    if len(proved) < len(built):
        words += f". In {len(built) - len(proved)}, heads do not know what they were built to know"
    return (
        words + ". With 25 heads a network can be built for any facts but such, one pair a head. Both numbers are "
        "upper bounds: a training that fails, or a plane that is not found, does not prove that there is none."
    )


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

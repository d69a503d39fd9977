"""Tables of heads: alone, on the simplex, boosted, and how many are enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dualform_studies.memorisation.boosting import WAYS, sign_test
from dualform_studies.memorisation.ensemble import Ensemble
from dualform_studies.memorisation.facts import Facts
from dualform_studies.memorisation.falls import HeadOne
from dualform_studies.memorisation.many_heads import ManyHeads
from dualform_studies.memorisation.network import HEADS
from dualform_studies.memorisation.overlap import Alone, Overlaps
from dualform_studies.memorisation.simplex import Simplex, classes_of
from dualform_studies.memorisation.simplex_patterns import PATTERNS, Rule, Triangles
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.words import percent

STRICTER, LAXER = Rule(large=3 / 4, greater=1 / 3), Rule(large=3 / 5, greater=1 / 6)
"""Beside the rule: whether the counts hang on its two numbers."""


def heads(simplex: Simplex, alone: Alone, facts: Facts) -> Table:
    classes = classes_of(facts)
    known = {"all, as trained": alone.together}
    known |= {f"head {head + 1} alone": right for head, right in enumerate(alone.known)}
    known |= {
        f"head {head + 1} alone, threefold": simplex.right[simplex.at(*(3.0 * (np.arange(HEADS) == head)))]
        for head in range(HEADS)
    }
    known["no head"] = alone.without
    rows: list[list[Cell]] = [
        [name, int(right.sum()), *(f"{right[pairs].sum()} of {pairs.sum()}" for pairs in classes.values())]
        for name, right in known.items()
    ]
    columns = ("heads that speak", "pairs known", *(f"of those that give {token}" for token in classes))
    return Table("heads", "Pairs known by each head, of 25.", columns, rows)


def overlap(alone: Alone, facts: Facts) -> Table:
    """The pairs that each head knows alone, that heads share, and that any knows."""

    def row(name: str, right: np.ndarray, chance: float | None) -> list[Cell]:
        names = " ".join(pair for pair, is_known in zip(facts.names, right, strict=True) if is_known)
        return [name, int(right.sum()), "-" if chance is None else f"{chance:.1f}", names or "-"]

    rows = [row(f"head {head + 1}", right, None) for head, right in enumerate(alone.known)]
    for group in alone.groups():
        words = "heads " + " and ".join(str(head + 1) for head in group) if len(group) == 2 else "all heads"
        rows.append(row(words, alone.shared(*group), alone.shared_by_chance(*group)))
    rows.append(row("any head", alone.union, alone.union_by_chance))
    rows.append(row("no head speaks", alone.without, None))
    return Table(
        "overlap",
        "Pairs that heads know alone, in the recorded network. By chance: expected of sets of the same sizes, drawn "
        "independently.",
        ("known by", "pairs", "by chance", "which"),
        rows,
    )


def overlaps(networks: Sequence[Alone]) -> Table:
    found = Overlaps.of(networks)
    rows: list[tuple[Cell, ...]] = [
        ("what the heads know alone, added up", f"{found.sizes:.1f}", "-"),
        ("known by any head alone", f"{found.union:.1f}", f"{found.union_by_chance:.1f}"),
        ("known by both of two heads", f"{found.shared:.2f}", f"{found.shared_by_chance:.2f}"),
        ("networks whose heads share no pair", f"{found.disjoint} of {found.networks}", "-"),
        ("networks whose heads share no pair and leave none", f"{found.partitions} of {found.networks}", "-"),
    ]
    return Table(
        "overlaps",
        f"The same over {found.networks} networks: means, in pairs of 25.",
        ("", "found", "by chance"),
        rows,
    )


def patterns(triangles: Triangles) -> Table:
    by_rule = [triangles.counts(rule) for rule in (None, STRICTER, LAXER)]
    examples = triangles.examples()
    rows: list[list[Cell]] = []
    for pattern, meaning in PATTERNS.items():
        example = examples.get(pattern)
        shown = "-" if example is None else f"seed {example.seed}, {example.token}"
        rows.append([pattern, meaning, *(counts[pattern] for counts in by_rule), shown])
    return Table(
        "patterns",
        f"What the triangles of {len(triangles.classes)} classes show, in {len(triangles.centres)} networks. A corner "
        "is where one head has two thirds of the weight or more; between two heads, both have a third or more and the "
        "other one a sixth at most. In the rule, an accuracy is large from 2/3 on and greater from a difference of 1/4 "
        "on; in the stricter one 3/4 and 1/3, in the laxer one 3/5 and 1/6.",
        ("pattern", "what the text makes of it", "classes", "by the stricter rule", "by the laxer rule", "shown"),
        rows,
    )


def ways(trained: Mapping[str, Ensemble]) -> Table:
    rows = []
    for name, way in WAYS.items():
        curve = trained[name].curve
        accuracy, loss = curve.accuracy[-1], curve.loss[-1]
        free = trained["free" if way.optimizer == "SGD" else "adam free"].curve.accuracy[-1]
        rows.append(
            (
                way.words, curve.steps[-1], f"{100 * accuracy.mean():.1f} %",
                " / ".join(f"{100 * part:.0f}" for part in np.percentile(accuracy, (25, 50, 75))) + " %",
                f"{100 * accuracy.min():.0f} %", f"{int((accuracy > 0.99).sum())} of {len(accuracy)}",
                "-" if way.heads == "free" else f"{(free > accuracy).sum()} : {(free < accuracy).sum()}",
                "-" if way.heads == "free" else f"{sign_test(free, accuracy):.2g}",
                f"{np.median(loss):.2g}",
            )
        )  # fmt: skip
    columns = (
        "training", "updates", "accuracy, mean", "quartiles", "worst seed", "seeds that know all 25",
        "seeds where free knows more : less", "p (sign test)", "loss in nats, median",
    )  # fmt: skip
    return Table("ways", "Free and boosted training, over the same seeds.", columns, rows)


def falls(found: Mapping[str, HeadOne]) -> Table:
    rows = []
    for one in found.values():
        steps = [fall for fall in one.falls() if fall is not None]
        rows.append(
            (
                one.words, one.steps, f"{int(one.fell.sum())} of {len(one.fell)}",
                f"{np.median(steps):,.0f}" if steps else "-", f"{100 * one.best.mean():.1f} %",
                f"{100 * one.end.mean():.1f} %", "-" if one.bound is None else f"{one.bound:.0f}",
                "-" if one.bound is None else f"{int(one.at_bound()[one.fell].sum())} of {int(one.fell.sum())}",
                "-" if one.bound is None else f"{int(one.at_bound()[~one.fell].sum())} of {int((~one.fell).sum())}",
            )
        )  # fmt: skip
    columns = (
        "head 1 alone, by", "updates", "seeds that fall", "at update, median", "best accuracy on the way, mean",
        "at the end, mean", "curvature that it follows", "falls near it", "no fall, but near it",
    )  # fmt: skip
    return Table(
        "falls",
        "Head 1 learning alone: the same networks, with other steps. A fall is a loss of 5 pairs or more within a "
        "twentieth of the training. The last columns count seeds of which the loss came within a tenth of the "
        "curvature that gradient descent with momentum follows, up to the fall or to the end.",
        columns,
        rows,
    )


def enough(many: ManyHeads) -> Table:
    rows: list[list[Cell]] = []
    by_hand, count = np.array(many.constructed_heads()), len(many.constructed)
    free = many.free_accuracy()
    for at, sets in enumerate(many.own_sets):
        freely = Overlaps.of(many.free[at])
        seeds = len(sets.own)
        rows.append(
            [
                sets.heads,
                f"{int(sets.succeeded.sum())} of {seeds}",
                percent(sets.own.mean()),
                percent(sets.together.mean()),
                f"{int((by_hand <= sets.heads).sum())} of {count}",
                *(percent(many.boosted[way][at].mean()) for way in ("shared", "frozen")),
                percent(free[at].mean()),
                f"{freely.sizes:.1f}",
                f"{freely.partitions} of {seeds}",
            ]
        )
    columns = (
        "heads", "trained to: networks that do", "pairs known by their own head alone", "by all heads",
        "set by hand: networks that do", "boosted: accuracy", "boosted, embeddings frozen", "free: accuracy",
        "free: pairs known by heads alone, added up", "free: networks whose heads part the pairs",
    )  # fmt: skip
    return Table("enough", "What heads can be made to do, and what they do, by their number.", columns, rows)

"""Tables of heads: alone, and on the simplex of their weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dualform_studies.memorisation.heads.overlap import Alone, Overlaps
from dualform_studies.memorisation.heads.simplex import Simplex, classes_of
from dualform_studies.memorisation.heads.simplex_patterns import PATTERNS, RULES, Triangles
from dualform_studies.memorisation.transformer.facts import Facts
from dualform_studies.memorisation.transformer.network import HEADS
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.words import in_fraction


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
    found, outside = Overlaps.of(networks), Overlaps.of([one.outside for one in networks])
    rows: list[tuple[Cell, ...]] = [
        ("what the heads know alone, added up", f"{found.sizes:.1f}", "-"),
        ("known by any head alone", f"{found.union:.1f}", f"{found.union_by_chance:.1f}"),
        ("known by both of two heads", f"{found.shared:.2f}", f"{found.shared_by_chance:.2f}"),
        ("the same, of the pairs that are not known without heads", f"{outside.shared:.2f}",
         f"{outside.shared_by_chance:.2f}"),
        ("networks whose heads share no pair", f"{found.disjoint} of {found.networks}", "-"),
        ("networks whose heads share no pair and leave none", f"{found.partitions} of {found.networks}", "-"),
    ]  # fmt: skip
    return Table(
        "overlaps",
        f"The same over {found.networks} networks: means, in pairs of 25.",
        ("", "found", "by chance"),
        rows,
    )


def patterns(triangles: Triangles) -> Table:
    by_rule = [triangles.counts(rule) for rule in RULES.values()]
    examples = triangles.examples()
    rows: list[list[Cell]] = []
    for pattern, meaning in PATTERNS.items():
        example = examples.get(pattern)
        shown = "-" if example is None else f"seed {example.seed}, {example.token}"
        rows.append([pattern, meaning, *(counts[pattern] for counts in by_rule), shown])
    rows += [[f"none: {kind}", "", count, "-", "-", "-"] for kind, count in triangles.unpatterned().items()]
    numbers = [f"in {name} {in_fraction(rule.large)} and {in_fraction(rule.greater)}" for name, rule in RULES.items()]
    return Table(
        "patterns",
        f"What the triangles of {len(triangles.classes)} classes show, in {len(triangles.centres)} networks. A corner "
        "is where one head has two thirds of the weight or more; between two heads, both have a third or more and the "
        "other one a sixth at most. The rules differ in from where on an accuracy is large, and from which difference "
        f"on it is greater: {', '.join(numbers)}.",
        ("pattern", "what the text makes of it", *(f"classes by {name}" for name in RULES), "shown"),
        rows,
    )

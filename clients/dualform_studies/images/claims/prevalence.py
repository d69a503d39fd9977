"""How often what the paper observes of one example holds over the whole test set. Shapes: n test images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.query_figure import Query
from dualform_studies.pages.claims import Claim, verdict
from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Table
from dualform_studies.pages.words import in_fraction

HEADING = "How often the observations hold"
EVERY, SOME = "every layer", "some layer"
MOST, MANY = 2 / 3, 1 / 3
"""An observation of single images holds if it does of two thirds of those concerned, in part if of one third."""
OFTEN = 1 / 20
"""What is said to happen, and not to be the rule, happens of this share of the test images at least."""


@dataclass(frozen=True, eq=False)
class Prevalence:
    """One observation over the test images that it is about."""

    observation: str
    """What is seen of an image, as a sentence without its full stop."""
    layer: str
    """The layer at which, or EVERY or SOME."""
    among: str
    """Which test images, in the plural."""
    concerned: NDArray[np.bool_]
    """bool[n]: those test images."""
    seen: NDArray[np.bool_]
    """bool[n]: where it is seen; of images that are not concerned it says nothing."""

    @property
    def count(self) -> int:
        return int((self.concerned & self.seen).sum())

    @property
    def total(self) -> int:
        return int(self.concerned.sum())

    @property
    def share(self) -> float:
        """Of the images concerned, from 0 to 1; there must be one."""
        return self.count / self.total

    def __str__(self) -> str:
        return f"{self.count:,} of {self.total:,} {self.among} ({100 * self.share:.1f} %)"

    def plain(self) -> Report:
        share = self.share if self.total else None
        words = {"observation": self.observation, "layer": self.layer, "among": self.among}
        return words | {"count": self.count, "total": self.total, "share": share}


def over_layers(
    observation: str, among: str, concerned: NDArray[np.bool_], seen: Mapping[str, NDArray[np.bool_]], joined: str = ""
) -> list[Prevalence]:
    """One observation at each layer of `seen`, and last at EVERY layer, or SOME, where `joined` says so."""
    found = [Prevalence(observation, layer, among, concerned, here) for layer, here in seen.items()]
    if joined:
        together = np.logical_and if joined == EVERY else np.logical_or
        found.append(Prevalence(observation, joined, among, concerned, reduce(together, seen.values())))
    return found


def prevalence_claim(
    section: str, claim: str, paper: str, measured: Prevalence, holds: float = MOST, in_part: float = MANY
) -> list[Claim]:
    """The claim that an observation of single images is a common one, or none where no test image is concerned.

    `holds` and `in_part` are the least shares of the images concerned, by which it does.
    """
    if not measured.total:
        return []
    where = measured.layer if measured.layer in (EVERY, SOME) else f"at {measured.layer}"
    criterion = (
        f"{measured.observation} ({where}): holds of at least {in_fraction(holds)} of these test images; in part, of "
        f"at least {in_fraction(in_part)}"
    )
    judged = verdict(measured.share, holds, in_part)
    return [Claim(section, claim, paper, str(measured), judged, criterion, HEADING)]


@dataclass(frozen=True)
class Choice:
    """A test image that is shown because it shows something."""

    query: Query
    how: str
    """How it was chosen, and how many do the same."""


def choose_showing(dataset: Dataset, given: NDArray[np.int64], wanted: Sequence[Prevalence]) -> Choice | None:
    """The first test image of which all of `wanted` hold; if there is none, all but the last, and so on.

    All are about the images of the first. None where the test set has no such image. `given` is int64[n], the class
    that the network gives each test image.
    """
    concerned, among = wanted[0].concerned, wanted[0].among
    if not concerned.any():
        return None
    rows = next(
        rows
        for count in range(len(wanted), -1, -1)
        if len(rows := np.flatnonzero(reduce(np.logical_and, [one.seen for one in wanted[:count]], concerned)))
    )
    row = int(rows[0])
    held, missed = ([one for one in wanted if one.seen[row] == shown] for shown in (True, False))
    count = int(reduce(np.logical_and, [one.seen for one in held], concerned).sum())
    return Choice(Query(dataset, row, int(given[row])), _how(held, missed, count, int(concerned.sum()), among))


def _how(held: Sequence[Prevalence], missed: Sequence[Prevalence], count: int, total: int, among: str) -> str:
    said = f"Shown is the first of {total:,} {among}."
    if held:
        said = f"Shown is the first of {count:,}, among {total:,} {among}, of which this holds: {_listed(held)}."
    if missed:
        said += f" No such image shows all that is looked for; this one lacks: {_listed(missed)}."
    return said


def _listed(observed: Sequence[Prevalence]) -> str:
    return "; ".join(f"{one.observation} ({one.layer})" for one in observed)


def prevalence_table(rows: Sequence[Report]) -> Table:
    """Of `Prevalence.plain` of each observation."""
    cells = [
        (
            row["observation"],
            row["layer"],
            row["among"],
            row["count"],
            row["total"],
            "-" if row["share"] is None else f"{100 * row['share']:.1f}",
        )
        for row in rows
    ]
    caption = "What the paper observes of single examples, counted over all test images."
    columns = ("observation", "layer", "among", "test images", "of", "%")
    return Table("prevalence", caption, columns, cells)

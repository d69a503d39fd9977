"""The paper's observations of single images, counted over the whole test set, and attention across datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dualform_studies.claims import CHANCE, Claim, is_gain, judge, judged, verdict_of
from dualform_studies.images.attention import TOP, Datapoints, LayerAttention
from dualform_studies.images.datasets import Dataset
from dualform_studies.images.query_figure import Query
from dualform_studies.report import Report, Table, in_fraction

HEADING = "How often the observations hold"
EVERY, SOME = "every layer", "some layer"
MOST = 2 / 3
"""The share of images that makes a trend."""
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


_CRITERION = "{observation} ({where}): holds of at least {holds} of these test images; in part, of at least {in_part}"


def prevalence_claim(name: str, measured: Prevalence) -> list[Claim]:
    """The claim that an observation of single images is a common one, or none where no test image is concerned."""
    if not measured.total:
        return []
    where = measured.layer if measured.layer in (EVERY, SOME) else f"at {measured.layer}"
    words = {"observation": measured.observation, "where": where, "top": TOP}
    return [judge(name, measured.share, str(measured), _CRITERION, **words)]


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


@dataclass(frozen=True)
class Findings:
    rows: Sequence[Prevalence]
    claims: Sequence[Claim]
    shown: Mapping[str, Choice]
    """By name of the example: the query that shows the claim."""


_EXAMPLES = {"section 5.3": "one example (Figures 6 and 11)", "section 5.4": "one example (Figures 23 to 25)"}
_NEAR = f"an image of the other dataset is among the {TOP} best images"


def near_others(
    attention: Sequence[LayerAttention], datapoints: Datapoints, dataset: str
) -> dict[str, NDArray[np.bool_]]:
    """By layer, bool[n]: whether an image of another dataset than `dataset` is among the three best."""
    foreign = datapoints.image_datasets != dataset
    return {one.layer: foreign[one.best].any(axis=1) for one in attention}


def crossing(attention: Sequence[LayerAttention], datapoints: Datapoints, dataset: str) -> Report:
    """By layer, of all test images of a dataset: how many attend across, and the share of attention that crosses.

    `near` is the share of test images with an image of another dataset among their three best, `sums` the share of
    all absolute attention weights that goes to other datasets, a mean over the test images.
    """
    near = near_others(attention, datapoints, dataset)
    report: Report = {}
    for one in attention:
        others = [at for at, (name, _) in enumerate(one.groups) if name != dataset]
        share = one.shares[:, others].sum(axis=1)
        report[one.layer] = {
            "queries": len(one.sums),
            "near": float(near[one.layer].mean()),
            "sums": float(share.mean()),
        }
    return report


def crossing_prevalence(attention: Sequence[LayerAttention], datapoints: Datapoints, dataset: str) -> list[Prevalence]:
    """How many of all test images of a dataset have images of the other among their best, layer by layer."""
    seen = near_others(attention, datapoints, dataset)
    everything = np.ones(len(attention[0].sums), dtype=np.bool_)
    return over_layers(_NEAR, f"test images of {dataset}", everything, seen)


def crossing_claim(name: str, near: Sequence[Prevalence]) -> Claim:
    """Whether attention of Fashion-MNIST to MNIST grows from layer to layer; `near` in the order of the layers."""
    often = near[-1].share >= OFTEN
    everywhere, at_all = all(_rises(*pair) for pair in pairwise(near)), _rises(near[0], near[-1])
    return judged(
        name,
        verdict_of(often and everywhere, often and at_all),
        ", ".join(f"{100 * one.share:.1f} % at {one.layer}" for one in near) + f" of {near[0].total:,} {near[0].among}",
        top=TOP,
        often=in_fraction(OFTEN),
        chance=CHANCE,
    )


def _rises(before: Prevalence, after: Prevalence) -> bool:
    """Whether more of the same test images show it, beyond chance."""
    gained, lost = (one.concerned & one.seen & ~other.seen for one, other in ((after, before), (before, after)))
    return is_gain(int(gained.sum()), int(lost.sum()))


def crossing_table(crossings: Mapping[str, Report]) -> Table:
    """`crossings` by dataset of the queries."""
    first = next(iter(next(iter(crossings.values())).values()))
    rows = [
        (dataset, layer, f"{100 * found['near']:.1f}", f"{100 * found['sums']:.1f}")
        for dataset, layers in crossings.items()
        for layer, found in layers.items()
    ]
    caption = (
        f"Attention across datasets, over all {first['queries']:,} test images of each: how many have training images "
        f"of the other dataset among their {TOP} best, and the mean share of all attention weights that goes there."
    )
    columns = ("queries of", "layer", f"with one among the {TOP} best images (%)", "of all weights (%)")
    return Table("crossing", caption, columns, rows)

"""The paper's observations of single images, counted over the whole test set, and the images that show them.

Shapes: n test images, G classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dualform_studies.claims import CHANCE, Claim, is_gain, judge, judged, verdict_of
from dualform_studies.images.attention import TOP, Datapoints, LayerAttention
from dualform_studies.images.datasets import Dataset
from dualform_studies.images.query_figure import Query
from dualform_studies.images.training import Checkpoint
from dualform_studies.report import in_fraction, percent

EVERY, SOME = "every layer", "some layer"
MOST = 2 / 3
"""The share of images that makes a trend."""
OFTEN = 1 / 20
"""What is said to happen, and not to be the rule, happens of this share of the test images at least."""
ByLayer = Mapping[str, NDArray[np.bool_]]


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

    @classmethod
    def over(cls, observation: str, layers: str, among: str, concerned: NDArray[np.bool_], seen: ByLayer) -> Prevalence:
        """What is seen at EVERY layer, or at SOME."""
        together = np.logical_and if layers == EVERY else np.logical_or
        return cls(observation, layers, among, concerned, reduce(together, seen.values()))

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


_CRITERION = "{observation} ({where}): holds of at least {holds} of these test images; in part, of at least {in_part}"


def prevalence_claims(measured: Mapping[str, Prevalence]) -> list[Claim]:
    """By name, the claims that an observation is a common one; none where no test image is concerned."""
    return [
        judge(
            name,
            one.share,
            str(one),
            _CRITERION,
            observation=one.observation,
            where=one.layer if one.layer in (EVERY, SOME) else f"at {one.layer}",
            top=TOP,
        )
        for name, one in measured.items()
        if one.total
    ]


def choose_showing(dataset: Dataset, given: NDArray[np.int64], wanted: Sequence[Prevalence]) -> Query | None:
    """The first test image of which all of `wanted` hold; if there is none, all but the last, and so on.

    All are about the images of the first. None where the test set has no such image. `given` is int64[n], the class
    that the network gives each test image.
    """
    for count in range(len(wanted), -1, -1):
        rows = np.flatnonzero(reduce(np.logical_and, [one.seen for one in wanted[:count]], wanted[0].concerned))
        if len(rows):
            return Query(dataset, int(rows[0]), int(given[rows[0]]))
    return None


@dataclass(frozen=True)
class Findings:
    claims: Sequence[Claim]
    shown: Mapping[str, Query | None]
    """By name of the example: the query that shows the claim, where there is one."""


SIX, ZERO, THREE = 6, 0, 3
_CLOSE = 0.9
"""A weight is comparable to another from this share of it on."""
_LEADS = "the query's own class has the greatest sum"
_NEAR_SIX = f"the best datapoint of class 0 weighs at least {in_fraction(_CLOSE)} of the best of class 6"
_OTHER = "the best image is of another class"


def single_findings(
    attention: Sequence[LayerAttention],
    greatest: Mapping[str, NDArray[np.float64]],
    datapoints: Datapoints,
    checkpoint: Checkpoint,
    given: NDArray[np.int64],
) -> Findings:
    """Whether a recognised digit's class leads, and whether zeros are among a six's best (section 5.2).

    `greatest` is, by layer, float64[n, G], the greatest weight in each class, of sixes; of other images it is not
    asked, and 0. `given` is int64[n], the class that the network gives each test image.
    """
    dataset = checkpoint.dataset
    labels = dataset.test.labels
    right = given == labels
    leads = {one.layer: one.leading() == one.columns(dataset.name, labels) for one in attention}
    near = {layer: best[:, ZERO] >= _CLOSE * best[:, SIX] for layer, best in greatest.items()}
    other = {one.layer: datapoints.image_labels[one.best[:, 0]] != labels for one in attention}

    def of_digit(digit: int) -> tuple[str, NDArray[np.bool_]]:
        return f"recognised {dataset.label_names[digit]}s", right & (labels == digit)

    measured = {
        "single.six-leads": Prevalence.over(_LEADS, EVERY, *of_digit(SIX), leads),
        "single.six-zeros": Prevalence.over(_NEAR_SIX, SOME, *of_digit(SIX), near),
        "single.other-class": Prevalence.over(_OTHER, SOME, "recognised digits", right, other),
        "single.three-leads": Prevalence.over(_LEADS, EVERY, *of_digit(THREE), leads),
    }
    six = [measured["single.six-leads"], measured["single.six-zeros"]]
    return Findings(
        prevalence_claims(measured),
        {
            f"digit-{SIX}": choose_showing(dataset, given, six),
            f"digit-{THREE}": choose_showing(dataset, given, [measured["single.three-leads"]]),
        },
    )


DRESS, COAT, SANDAL, BOOT = 3, 4, 5, 9
_DIGITS = "mnist"
_OWN = f"all {TOP} best images are boots"
_COAT = "coat has the greatest sum"
_GAINS = "the query's own class has a greater share of all attention at the last layer than at the first"
_NEAR = f"MNIST is among the {TOP} best images"
_FAR = f"MNIST is not among the {TOP} best images"
_FIVE = f"an MNIST 5 is among the {TOP} best images"
_DISAGREES = "the class of the greatest sum is not the one recognised"


def joint_findings(
    attention: Sequence[LayerAttention], datapoints: Datapoints, checkpoint: Checkpoint, given: NDArray[np.int64]
) -> Findings:
    """The observations of Fashion-MNIST, whose test images are the checkpoint's (section 5.3).

    `given` is int64[n], the class that the network gives each test image.
    """
    dataset = checkpoint.dataset
    labels = dataset.test.labels
    right = given == labels
    first, last = attention[0], attention[-1]
    own = first.columns(dataset.name, labels)
    before, after = (one.shares[np.arange(len(own)), own] for one in (first, last))
    leader = np.array([label for _, label in last.groups])[last.leading()]
    near = near_others(attention, datapoints, dataset.name)
    five = (datapoints.image_datasets == _DIGITS) & (datapoints.image_labels == SANDAL)
    of_boots = (datapoints.image_datasets == dataset.name) & (datapoints.image_labels == BOOT)
    boot = "recognised boots", right & (labels == BOOT)
    dress = "recognised dresses", right & (labels == DRESS)
    sandal = "recognised sandals", right & (labels == SANDAL)
    boots = {
        "joint.boots": Prevalence(_OWN, first.layer, *boot, of_boots[first.best].all(axis=1)),
        "joint.coat": Prevalence(
            _COAT, first.layer, *boot, first.leading() == first.columns(dataset.name, np.array([COAT]))
        ),
        "joint.gains": Prevalence(_GAINS, last.layer, *boot, after > before),
        "joint.digits": Prevalence(_NEAR, last.layer, *boot, near[last.layer]),
    }
    others = {
        "joint.dress": Prevalence.over(_FAR, EVERY, *dress, {layer: ~seen for layer, seen in near.items()}),
        "joint.five": Prevalence.over(
            _FIVE, SOME, *sandal, {one.layer: five[one.best].any(axis=1) for one in attention}
        ),
        "joint.sandal": Prevalence(_DISAGREES, last.layer, *sandal, leader != given),
    }
    measured = boots | others
    wanted = {
        "ankle-boot": ("joint.coat", "joint.gains", "joint.digits", "joint.boots"),
        "dress": ("joint.dress",),
        "sandal": ("joint.five", "joint.sandal"),
    }
    crossed = crossing_claim("joint.crossing", crossing_prevalence(attention, datapoints, dataset.name))
    return Findings(
        [*prevalence_claims(boots), crossed, *prevalence_claims(others)],
        {
            example: choose_showing(dataset, given, [measured[name] for name in names])
            for example, names in wanted.items()
        },
    )


MISTAKE = (1, 3)
"""The paper's example: a "1" taken for a "3", for the attention that it gives to Fashion-MNIST's dresses."""
_DRESS_LEADS = "class 3 of Fashion-MNIST, dress, has the greatest sum"
_LEADS_SECOND = "of Fashion-MNIST's classes, the one with the label recognised has the greatest sum"


def continual_findings(
    attention: Sequence[LayerAttention],
    crossed: Sequence[Prevalence],
    checkpoint: Checkpoint,
    second: str,
    given: NDArray[np.int64],
    spoilt: NDArray[np.bool_],
) -> Findings:
    """The observations of MNIST after Fashion-MNIST, the dataset `second`; the checkpoint's test images are MNIST's.

    `crossed` is what `crossing_prevalence` says of the second dataset's test images. `given` is int64[n], the class
    that the network gives each test image at the end; `spoilt` is bool[n], those that were recognised before the second
    dataset was learned, are mistaken, and are recognised with it masked. The example of interference is one of them.
    """
    dataset, last = checkpoint.dataset, attention[-1]
    labels = dataset.test.labels
    one, three = MISTAKE
    wrong = given != labels
    dress = last.leading() == last.columns(second, np.array([three], dtype=np.int64))
    columns = [at for at, (name, _) in enumerate(last.groups) if name == second]
    recognised = last.sums[:, columns].argmax(axis=1) == given
    mistaken = wrong & (labels == one) & (given == three)
    measured = {
        "continual.dress": Prevalence(
            _DRESS_LEADS, last.layer, f"{one}s taken for {three} at the end", mistaken, dress
        ),
        "continual.mistakes": Prevalence(
            _LEADS_SECOND, last.layer, "MNIST test images mistaken at the end", wrong, recognised
        ),
    }
    examples = [
        choose_showing(dataset, given, [replace(found, concerned=found.concerned & spoilt)])
        for found in measured.values()
    ]
    return Findings(
        [*prevalence_claims(measured), crossing_claim("continual.crossing", crossed)],
        {"interference": next((query for query in examples if query is not None), None)},
    )


def choose_recognised_as(dataset: Dataset, given: NDArray[np.int64], label: int) -> Query | None:
    """The first recognised test image of a class, or of any where there is none; None where none is recognised.

    `given` is int64[n], the class that the network gives each test image.
    """
    labels = dataset.test.labels
    return choose_showing(dataset, given, [Prevalence("", "", "", given == labels, labels == label)])


_CROSSES = f"an image of the other dataset is among the {TOP} best images"


def near_others(
    attention: Sequence[LayerAttention], datapoints: Datapoints, dataset: str
) -> dict[str, NDArray[np.bool_]]:
    """By layer, bool[n]: whether an image of another dataset than `dataset` is among the three best."""
    foreign = datapoints.image_datasets != dataset
    return {one.layer: foreign[one.best].any(axis=1) for one in attention}


def crossing_prevalence(attention: Sequence[LayerAttention], datapoints: Datapoints, dataset: str) -> list[Prevalence]:
    """How many of all test images of a dataset have images of the other among their best, layer by layer."""
    everything = np.ones(len(attention[0].sums), dtype=np.bool_)
    return [
        Prevalence(_CROSSES, layer, f"test images of {dataset}", everything, seen)
        for layer, seen in near_others(attention, datapoints, dataset).items()
    ]


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


_AFTER, _END = 0.97, 0.45
"""The paper's accuracies on MNIST after the first part and at the end (section 5.4)."""
_SEVERE = (_AFTER - _END) / 2
_POINT = 0.01
"""The paper's accuracies are whole per cents."""
_HALF = 1 / 2


def forgetting_claims(recognised: Mapping[str, NDArray[np.bool_]]) -> list[Claim]:
    """That MNIST is forgotten, and comes back with Fashion-MNIST masked.

    `recognised` is bool[n] by moment, as `Verdict.recognised` gives it.
    """
    after, end, masked = (recognised[moment] for moment in ("after_first", "final", "masked"))
    lost, gained = int((after & ~end).sum()), int((end & ~after).sum())
    fallen, returned = float(after.mean() - end.mean()), float(masked.mean() - end.mean())
    forgotten = is_gain(lost, gained)
    half = forgotten and returned >= _HALF * fallen
    near = masked.mean() >= after.mean() - _POINT
    reached = f"{percent(after.mean())} after MNIST, {percent(end.mean())} at the end"
    test = f"beyond chance (paired sign test, p < {CHANCE:g})"
    return [
        judged(
            "continual.forgetting",
            verdict_of(forgotten and fallen >= _SEVERE, forgotten),
            f"{reached}; of {len(after):,} test images {lost:,} are lost and {gained:,} gained",
            after=percent(_AFTER, ".0f"),
            end=percent(_END, ".0f"),
            test=test,
            severe=100 * _SEVERE,
        ),
        judged(
            "continual.removal",
            verdict_of(half and bool(near), half),
            f"{percent(masked.mean())} with them removed; {reached}",
            after=percent(_AFTER, ".0f"),
            test=test,
            point=100 * _POINT,
        ),
    ]

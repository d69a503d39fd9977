"""The paper's observations of single images, counted over the whole test set, and the images that show them.

Shapes: n test images, G classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dualform_studies.claims import CHANCE, Claim, is_gain, judge, judged, verdict_of
from dualform_studies.images.attention import OFTEN, TOP, Seen
from dualform_studies.images.prediction import Query
from dualform_studies.report import in_fraction, percent

Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Prevalence:
    """One observation over the test images that it is about."""

    among: str
    """Which test images, in the plural."""
    concerned: Flags
    """bool[n]: those test images."""
    seen: Flags
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
        return f"{self.count:,} of {self.total:,} {self.among} ({percent(self.share)})"


def every(flags: Iterable[Flags]) -> Flags:
    """bool[n]: what is seen at every layer."""
    return reduce(np.logical_and, flags)


def some(flags: Iterable[Flags]) -> Flags:
    """bool[n]: what is seen at some layer."""
    return reduce(np.logical_or, flags)


def prevalence_claims(measured: Mapping[str, Prevalence], **words: object) -> list[Claim]:
    """By name, the claims that an observation is a common one; none where no test image is concerned."""
    return [judge(name, one.share, str(one), top=TOP, **words) for name, one in measured.items() if one.total]


def choose_showing(seen: Seen, *wanted: Prevalence) -> Query | None:
    """The first test image of which all of `wanted` hold; if there is none, all but the last, and so on.

    All are about the images of the first. None if the test set has no such image.
    """
    for count in range(len(wanted), -1, -1):
        rows = np.flatnonzero(reduce(np.logical_and, [one.seen for one in wanted[:count]], wanted[0].concerned))
        if len(rows):
            return Query(seen.dataset, int(rows[0]), int(seen.given[rows[0]]))
    return None


@dataclass(frozen=True)
class Findings:
    claims: Sequence[Claim]
    shown: Mapping[str, Query | None]
    """By name of the example: the query that shows the claim, if there is one."""


SIX, ZERO, THREE = 6, 0, 3
_CLOSE = 0.9
"""A weight is comparable to another from this share of it on."""


def single_findings(seen: Seen, greatest: Sequence[NDArray[np.float64]]) -> Findings:
    """Whether a recognised digit's class leads, and whether zeros are among a six's best (section 5.2).

    `greatest` is, for each layer, float64[s, G]: the greatest weight in each class, of the s sixes.
    """
    labels, right = seen.labels, seen.right
    near = np.zeros(len(labels), dtype=np.bool_)
    near[labels == SIX] = some(best[:, ZERO] >= _CLOSE * best[:, SIX] for best in greatest)
    leads = every(one.leading() == one.columns(seen.dataset.name, labels) for one in seen.layers)
    other = some(seen.points.image_labels[one.best[:, 0]] != labels for one in seen.layers)
    six, three = (
        (f"recognised {seen.dataset.label_names[digit]}s", right & (labels == digit)) for digit in (SIX, THREE)
    )
    measured = {
        "single.six-leads": Prevalence(*six, leads),
        "single.six-zeros": Prevalence(*six, near),
        "single.other-class": Prevalence("recognised digits", right, other),
        "single.three-leads": Prevalence(*three, leads),
    }
    return Findings(
        prevalence_claims(measured, close=in_fraction(_CLOSE)),
        {
            f"digit-{SIX}": choose_showing(seen, measured["single.six-leads"], measured["single.six-zeros"]),
            f"digit-{THREE}": choose_showing(seen, measured["single.three-leads"]),
        },
    )


DRESS, COAT, SANDAL, BOOT = 3, 4, 5, 9
_DIGITS = "mnist"
_JOINT = {
    "ankle-boot": ("joint.coat", "joint.gains", "joint.digits", "joint.boots"),
    "dress": ("joint.dress",),
    "sandal": ("joint.five", "joint.sandal"),
}
"""The examples of joint training, and the observations that each should show."""


def joint_findings(seen: Seen) -> Findings:
    """The observations of Fashion-MNIST (section 5.3)."""
    name, points, first, last = seen.dataset.name, seen.points, seen.layers[0], seen.layers[-1]
    own = first.columns(name, seen.labels)
    before, after = (one.shares[np.arange(len(own)), own] for one in (first, last))
    leader = np.array([label for _, label in last.groups])[last.leading()]
    near = near_others(seen)
    five = (points.image_datasets == _DIGITS) & (points.image_labels == SANDAL)
    of_boots = (points.image_datasets == name) & (points.image_labels == BOOT)
    boot, dress, sandal = (
        (f"recognised {words}", seen.right & (seen.labels == label))
        for words, label in (("boots", BOOT), ("dresses", DRESS), ("sandals", SANDAL))
    )
    boots = {
        "joint.boots": Prevalence(*boot, of_boots[first.best].all(axis=1)),
        "joint.coat": Prevalence(*boot, first.leading() == first.columns(name, np.array([COAT]))),
        "joint.gains": Prevalence(*boot, after > before),
        "joint.digits": Prevalence(*boot, near[last.layer]),
    }
    others = {
        "joint.dress": Prevalence(*dress, ~some(near.values())),
        "joint.five": Prevalence(*sandal, some(five[one.best].any(axis=1) for one in seen.layers)),
        "joint.sandal": Prevalence(*sandal, leader != seen.given),
    }
    measured, layers = boots | others, {"first": first.layer, "last": last.layer}
    crossed = crossing_claim("joint.crossing", crossing_prevalence(seen))
    return Findings(
        [*prevalence_claims(boots, **layers), crossed, *prevalence_claims(others, **layers)],
        {example: choose_showing(seen, *(measured[name] for name in names)) for example, names in _JOINT.items()},
    )


MISTAKE = (1, 3)
"""The paper's example: a "1" taken for a "3", for the attention that it gives to Fashion-MNIST's dresses."""
RECOGNISED = (7, 3)
"""The paper's two other examples: an MNIST "7" and a Fashion-MNIST dress."""


def continual_findings(first: Seen, second: Seen, spoilt: Flags) -> Findings:
    """The observations of MNIST after Fashion-MNIST (section 5.4).

    `spoilt` is bool[n], MNIST's test images that were recognised before the second dataset was learned, are mistaken,
    and are recognised with it masked. The example of interference is one of them.
    """
    last, wrong, (one, three) = first.layers[-1], ~first.right, MISTAKE
    dress = last.leading() == last.columns(second.dataset.name, np.array([three]))
    columns = [at for at, (name, _) in enumerate(last.groups) if name == second.dataset.name]
    recognised = last.sums[:, columns].argmax(axis=1) == first.given
    mistaken = wrong & (first.labels == one) & (first.given == three)
    measured = {
        "continual.dress": Prevalence(f"{one}s taken for {three} at the end", mistaken, dress),
        "continual.mistakes": Prevalence("MNIST test images mistaken at the end", wrong, recognised),
    }
    examples = (choose_showing(first, replace(one, concerned=one.concerned & spoilt)) for one in measured.values())
    crossed = crossing_claim("continual.crossing", crossing_prevalence(second))
    return Findings(
        [*prevalence_claims(measured, last=last.layer), crossed],
        {
            "interference": next((query for query in examples if query is not None), None),
            **{
                f"recognised-{seen.dataset.name}": choose_recognised_as(seen, label)
                for seen, label in zip((first, second), RECOGNISED, strict=True)
            },
        },
    )


def choose_recognised_as(seen: Seen, label: int) -> Query | None:
    """The first recognised test image of a class, or of any if there is none; None if none is recognised."""
    return choose_showing(seen, Prevalence("", seen.right, seen.labels == label))


def near_others(seen: Seen) -> dict[str, Flags]:
    """By layer, bool[n]: whether an image of another dataset is among the three best."""
    foreign = seen.points.image_datasets != seen.dataset.name
    return {one.layer: foreign[one.best].any(axis=1) for one in seen.layers}


def crossing_prevalence(seen: Seen) -> dict[str, Prevalence]:
    """How many of all test images of a dataset have images of the other among their best, layer by layer."""
    among, everything = f"test images of {seen.dataset.name}", np.ones(len(seen.labels), dtype=np.bool_)
    return {layer: Prevalence(among, everything, near) for layer, near in near_others(seen).items()}


def crossing_claim(name: str, near: Mapping[str, Prevalence]) -> Claim:
    """Whether attention of Fashion-MNIST to MNIST grows from layer to layer; `near` in the order of the layers."""
    first, *_, last = near.values()
    often = last.share >= OFTEN
    everywhere, at_all = all(_rises(*pair) for pair in pairwise(near.values())), _rises(first, last)
    shares = ", ".join(f"{percent(one.share)} at {layer}" for layer, one in near.items())
    return judged(
        name,
        verdict_of(often and everywhere, often and at_all),
        f"{shares} of {first.total:,} {first.among}",
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

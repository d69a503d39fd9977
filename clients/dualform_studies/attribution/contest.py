"""Every way to attribute that is at hand, and what each says of one training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from types import ModuleType

import numpy as np

from dualform_studies.attribution import captum_ways, dattri_ways, ours
from dualform_studies.attribution.ours import Scores, Way
from dualform_studies.attribution.recorded import Recorded
from dualform_studies.progress import Progress, or_silent

OURS, FLOOR = "dualform", "none"
"""Packages of the ways that are no other package's."""

_PEERS: tuple[ModuleType, ...] = (captum_ways, dattri_ways)


@dataclass(frozen=True, eq=False)
class Entry:
    """One way to attribute."""

    name: str
    package: str
    way: Way


@dataclass(frozen=True, eq=False)
class Attributed:
    """What one way said of one training."""

    name: str
    package: str
    scores: Scores
    """float64[tests, samples]; a way that is too dear has the first tests alone."""
    seconds: float


def entries(heavy: bool = True) -> tuple[list[Entry], list[str]]:
    """The ways at hand, and the packages that are not; `heavy`: also those of other packages that take minutes."""
    found = [Entry(name, FLOOR, way) for name, way in (("random", random), ("same label", same_label))]
    found += [Entry(name, OURS, way) for name, way in ours.ways().items()]
    missing = []
    for peer in _PEERS:
        try:
            own = peer.ways(heavy)
        except ImportError:
            missing.append(peer.PACKAGE)
            continue
        found += [Entry(name, peer.PACKAGE, way) for name, way in own.items()]
    return found, missing


def attribute(
    recorded: Recorded, chosen: list[Entry], raised: dict[str, str], progress: Progress | None = None
) -> Iterator[Attributed]:
    """What each of them says, with the seconds that it took; a way's own training of further networks counts.

    A way of another package that ends with an error enters it into `raised` and says nothing.
    """
    for done, entry in enumerate(chosen):
        or_silent(progress)(f"attributing: {entry.name}", done, len(chosen))
        start = perf_counter()
        try:
            scores = entry.way(recorded)
            if not np.isfinite(scores).all():
                raise ValueError("not all scores are finite")
        except Exception as error:
            if entry.package in (OURS, FLOOR):
                raise
            raised[entry.name] = f"{type(error).__name__}: {error}"
            continue
        yield Attributed(entry.name, entry.package, scores, perf_counter() - start)
    or_silent(progress)("attributing", len(chosen), len(chosen))


def random(recorded: Recorded) -> Scores:
    """The floor: scores by chance."""
    return np.random.default_rng(recorded.seed).normal(size=(len(recorded.attributed), len(recorded.trained)))


def same_label(recorded: Recorded) -> Scores:
    """What the labels alone say: 1 where sample and test share theirs, else 0."""
    labels = recorded.attributed.labels[:, None] == recorded.trained.labels
    return labels.numpy().astype(np.float64)

"""What appendix A says of one hub "in different settings", over the reports of all studies: they are its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dualform_studies.images.claims.attention import TOP
from dualform_studies.images.claims.hubs import HEADING
from dualform_studies.images.claims.prevalence import OFTEN
from dualform_studies.pages.claims import Claim, verdict, verdict_of
from dualform_studies.pages.study_report import OftenFound
from dualform_studies.pages.words import in_fraction, percent

_DIGITS, _ZERO = "mnist", 0
_PAPER = 'a "0" (Figure 10a)'
_SHARE = f"{in_fraction(OFTEN)} of a study's test images"
SAME = (
    f"the same image is among the {TOP} best of at least {_SHARE}, at some layer, in at least two studies; in part, in "
    "one"
)
ZERO = (
    f"the image found so in most studies is of class {_ZERO} of {_DIGITS}; in part, another that is found so in some "
    "study is"
)
"""The criteria of the two claims, which are judged over the studies and not by any of them."""

Settings: TypeAlias = Mapping[str, Mapping[str, Sequence[OftenFound]]]
"""By study and layer: the training images that are often found among the best."""


@dataclass(frozen=True)
class Hub:
    """A training image that is often found among the best in some study."""

    dataset: str
    sample: int
    """Its row in the file of its dataset."""
    label: int
    shares: Mapping[str, tuple[float, str]]
    """By study: the greatest share of the test images over the layers, from 0 to 1, and that layer."""

    @property
    def is_zero(self) -> bool:
        return (self.dataset, self.label) == (_DIGITS, _ZERO)

    def __str__(self) -> str:
        shares = ", ".join(f"{percent(share)} in {study} ({layer})" for study, (share, layer) in self.shares.items())
        return f"{self.dataset} image {self.sample:,}, class {self.label}: {shares}"


def hubs_by_setting(settings: Settings) -> list[Hub]:
    """Those of most studies first, then those of the greatest shares."""
    hubs: dict[tuple[str, int, int], dict[str, tuple[float, str]]] = {}
    for study, layers in settings.items():
        for layer, images in layers.items():
            for dataset, sample, label, share in images:
                shares = hubs.setdefault((dataset, sample, label), {})
                shares[study] = max(shares.get(study, (0.0, "")), (share, layer))
    return sorted(
        (Hub(*image, shares) for image, shares in hubs.items()),
        key=lambda hub: (-len(hub.shares), -sum(share for share, _ in hub.shares.values())),
    )


def hub_claims(settings: Settings) -> list[Claim]:
    """That one image is a hub in different settings, and that it is a "0"; no claim of fewer than two studies."""
    if len(settings) < 2:
        return []
    hubs = hubs_by_setting(settings)
    hub = hubs[0] if hubs else None
    ours = f"no image is among the {TOP} best of {_SHARE}" if hub is None else str(hub)
    return [
        Claim(
            "appendix A",
            f"One training image is often found among the top-{TOP} matches in different settings.",
            _PAPER,
            f"{ours}; studies: {', '.join(settings)}",
            verdict(len(hub.shares) if hub else 0, 2, 1),
            SAME,
            HEADING,
        ),
        Claim(
            "appendix A",
            f'The training image that is often found is a "{_ZERO}".',
            _PAPER,
            ours,
            verdict_of(hub is not None and hub.is_zero, any(one.is_zero for one in hubs)),
            ZERO,
            HEADING,
        ),
    ]

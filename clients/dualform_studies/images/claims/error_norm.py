"""Whether sums weighted by the error's norm show a trend (the side note of section 5.2).

Shapes: n test images, G classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dualform_studies.images.claims.prevalence import MOST
from dualform_studies.pages.claims import Claim, verdict
from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Table
from dualform_studies.pages.words import in_fraction, percent

HEADING = "Weighted by the error's norm"
TRENDS = {
    "greatest": "its own class has the greatest sum",
    "least": "its own class has the least sum",
    "same": "one class, the same for all, has the greatest sum",
}
"""What a recognised test image might show, and with it most of the others."""


def trends(
    sums: NDArray[np.float64], classes: NDArray[np.int64], labels: NDArray[np.int64], right: NDArray[np.bool_]
) -> dict[str, float | None]:
    """Each of TRENDS as a share of the recognised test images, from 0 to 1; None without any.

    `sums` is float64[n, G] with the classes int64[G]; `labels` is int64[n], and bool[n] `right` where they are given.
    """
    if not right.any():
        return dict.fromkeys(TRENDS)
    greatest, least = classes[sums[right].argmax(axis=1)], classes[sums[right].argmin(axis=1)]
    return {
        "greatest": float((greatest == labels[right]).mean()),
        "least": float((least == labels[right]).mean()),
        "same": float(np.unique(greatest, return_counts=True)[1].max() / len(greatest)),
    }


def trend_claims(layers: Mapping[str, Report]) -> list[Claim]:
    """That there is no consistent trend; `layers` holds `trends` by layer. No claim where no image is recognised."""
    if any(share is None for shares in layers.values() for share in shares.values()):
        return []
    without = sum(max(shares.values()) < MOST for shares in layers.values())
    told = (f"{words}: {', '.join(percent(one[kind]) for one in layers.values())}" for kind, words in TRENDS.items())
    return [
        Claim(
            "section 5.2",
            "Attention weights times the norm of the error show no consistent trend.",
            "no figure",
            f"{'; '.join(told)} ({', '.join(layers)})",
            verdict(without, len(layers), 1),
            f"a trend is consistent where one of these holds of at least {in_fraction(MOST)} of the recognised test "
            f"images: {'; '.join(TRENDS.values())}. Holds where no layer has one; in part, where not all have",
            HEADING,
        )
    ]


def trend_table(layers: Mapping[str, Report]) -> Table:
    """`trends` by layer."""
    rows = [
        (layer, *("-" if one[kind] is None else f"{100 * one[kind]:.1f}" for kind in TRENDS))
        for layer, one in layers.items()
    ]
    caption = "Of how many recognised test images each holds of the weighted sums, in per cent."
    return Table("error-norm-trends", caption, ("layer", *TRENDS.values()), rows)

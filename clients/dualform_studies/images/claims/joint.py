"""What the paper observes of a boot, a dress and a sandal (section 5.3, appendix B.2), over the whole test set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dualform_studies.images.claims.attention import TOP, LayerAttention
from dualform_studies.images.claims.crossing import crossing_claim, crossing_prevalence, near_others
from dualform_studies.images.claims.datapoints import Datapoints
from dualform_studies.images.claims.findings import Findings
from dualform_studies.images.claims.prevalence import (
    EVERY,
    SOME,
    Prevalence,
    choose_showing,
    over_layers,
    prevalence_claim,
)
from dualform_studies.images.training.recorded import Checkpoint

DRESS, COAT, SANDAL, BOOT = 3, 4, 5, 9
_DIGITS = "mnist"
_OWN = f"all {TOP} best images are boots"
_COAT = "coat has the greatest sum"
_GAINS = "the query's own class has a greater share of all attention at the last layer than at the first"
_CLIMBS = "the rank of the query's own class among the sums is better at the last layer than at the first"
_NEAR = f"MNIST is among the {TOP} best images"
_FAR = f"MNIST is not among the {TOP} best images"
_FIVE = f"an MNIST 5 is among the {TOP} best images"
_DISAGREES = "the class of the greatest sum is not the one recognised"


def joint_findings(
    attention: Sequence[LayerAttention], datapoints: Datapoints, checkpoint: Checkpoint, given: NDArray[np.int64]
) -> Findings:
    """The observations of Fashion-MNIST, whose test images are the checkpoint's.

    `given` is int64[n], the class that the network gives each test image.
    """
    dataset = checkpoint.dataset
    labels = dataset.test.labels
    right = given == labels
    first, last = attention[0], attention[-1]
    own = first.columns(dataset.name, labels)
    before, after = (one.shares[np.arange(len(own)), own] for one in (first, last))
    gains = after > before
    climbs = last.ranks(own) < first.ranks(own)
    leader = {one.layer: np.array([label for _, label in one.groups])[one.leading()] for one in attention}
    coat = first.leading() == first.columns(dataset.name, np.array([COAT]))
    near = near_others(attention, datapoints, dataset.name)
    five = (datapoints.image_datasets == _DIGITS) & (datapoints.image_labels == SANDAL)
    boots_alone = (datapoints.image_datasets == dataset.name) & (datapoints.image_labels == BOOT)
    fives = {one.layer: five[one.best].any(axis=1) for one in attention}
    all_own = {first.layer: boots_alone[first.best].all(axis=1)}

    everything = "recognised Fashion-MNIST test images"
    boot = "recognised boots", right & (labels == BOOT)
    dress = "recognised dresses", right & (labels == DRESS)
    sandal = "recognised sandals", right & (labels == SANDAL)
    boot_own = over_layers(_OWN, *boot, all_own)[0]
    boot_coat = over_layers(_COAT, *boot, {first.layer: coat})[0]
    boot_gains = Prevalence(_GAINS, last.layer, *boot, gains)
    boot_near = over_layers(_NEAR, *boot, near)
    dress_far = over_layers(_FAR, *dress, {layer: ~seen for layer, seen in near.items()}, EVERY)
    sandal_five = over_layers(_FIVE, *sandal, fives, SOME)
    sandal_differs = over_layers(_DISAGREES, *sandal, {layer: label != given for layer, label in leader.items()})
    crossed = crossing_prevalence(attention, datapoints, dataset.name)
    behind = right & (first.ranks(own) > 1)
    rows = [
        boot_own,
        boot_coat,
        boot_gains,
        Prevalence(_CLIMBS, last.layer, *boot, climbs),
        Prevalence(_GAINS, last.layer, everything, right, gains),
        Prevalence(_CLIMBS, last.layer, everything, right, climbs),
        Prevalence(_CLIMBS, last.layer, f"{everything}, not first at {first.layer}", behind, climbs),
        *boot_near,
        *dress_far,
        *sandal_five,
        *sandal_differs,
        *over_layers(_DISAGREES, everything, right, {layer: label != given for layer, label in leader.items()}),
        *crossed,
    ]
    claims = [
        *prevalence_claim(
            "section 5.3",
            f"At layer 0 the {TOP} best images of a recognised boot are boots.",
            "one example (Figures 6 and 11)",
            boot_own,
        ),
        *prevalence_claim(
            "section 5.3",
            "At layer 0 the class of greatest sum of a recognised boot is coat.",
            "one example (Figure 7)",
            boot_coat,
        ),
        *prevalence_claim(
            "section 5.3",
            "In later layers the sum of a boot's own class gains on the others.",
            "one example (Figure 7)",
            boot_gains,
        ),
        *prevalence_claim(
            "section 5.3",
            f"At layer 2 the {TOP} best images of a recognised boot contain some of MNIST.",
            "one example (Figures 6 and 11)",
            boot_near[-1],
        ),
        crossing_claim("section 5.3", crossed),
        *prevalence_claim(
            "appendix B.2",
            "A recognised dress has no MNIST example among its best at any layer.",
            "one example (Figure 16)",
            dress_far[-1],
        ),
        *prevalence_claim(
            "appendix B.2",
            'A recognised sandal, class 5, has a "5" of MNIST among its best.',
            "one example (Figure 19)",
            sandal_five[-1],
        ),
        *prevalence_claim(
            "appendix B.2",
            "A recognised sandal's class of greatest sum is not the one that the network decides for.",
            "one example (Figure 21)",
            sandal_differs[-1],
        ),
    ]
    chosen = {
        "ankle-boot": choose_showing(dataset, given, [boot_coat, boot_gains, boot_near[-1], boot_own]),
        "dress": choose_showing(dataset, given, [dress_far[-1]]),
        "sandal": choose_showing(dataset, given, [sandal_five[-1], sandal_differs[-1]]),
    }
    return Findings(rows, claims, {name: choice for name, choice in chosen.items() if choice is not None})

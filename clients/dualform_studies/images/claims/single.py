"""What the paper observes of a digit 6 (section 5.2), over the whole test set. Shapes: n test images, G classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dualform.methods import Answers
from dualform_studies.images.claims.attention import LayerAttention, ask_greatest
from dualform_studies.images.claims.datapoints import Datapoints
from dualform_studies.images.claims.findings import Findings
from dualform_studies.images.claims.prevalence import (
    EVERY,
    MANY,
    OFTEN,
    SOME,
    choose_showing,
    over_layers,
    prevalence_claim,
)
from dualform_studies.images.training.recorded import Checkpoint
from dualform_studies.pages.words import in_fraction

SIX, ZERO, THREE = 6, 0, 3
_CLOSE = 0.9
"""A weight is comparable to another from this share of it on."""
_SECTION = "section 5.2"
_LEADS = "the query's own class has the greatest sum"
_ZERO = "the best datapoint of class 0 weighs at least as much as the best of class 6"
_NEAR = f"the best datapoint of class 0 weighs at least {in_fraction(_CLOSE)} of the best of class 6"
_OTHER = "the best image is of another class"

Greatest = Mapping[str, NDArray[np.float64]]
"""By layer, float64[n, G]: the greatest weight in each class, of sixes; of other images it is not asked, and 0."""


def ask_sixes(memory: Answers, layers: Sequence[str], checkpoint: Checkpoint) -> Greatest:
    """The greatest weight in each class, of all test images of a six."""
    dataset = checkpoint.dataset
    sixes = np.flatnonzero(dataset.test.labels == SIX)
    found = {}
    for layer in layers:
        found[layer] = np.zeros((len(dataset.test), len(dataset.label_names)))
        found[layer][sixes] = ask_greatest(memory, layer, checkpoint, sixes, [dataset])
    return found


def single_findings(
    attention: Sequence[LayerAttention],
    greatest: Greatest,
    datapoints: Datapoints,
    checkpoint: Checkpoint,
    given: NDArray[np.int64],
) -> Findings:
    """Whether a recognised digit's class leads, and whether zeros are among a six's best.

    `given` is int64[n], the class that the network gives each test image.
    """
    dataset = checkpoint.dataset
    labels = dataset.test.labels
    right = given == labels
    leads = {one.layer: one.leading() == one.columns(dataset.name, labels) for one in attention}
    zeros = {layer: best[:, ZERO] >= best[:, SIX] for layer, best in greatest.items()}
    near = {layer: best[:, ZERO] >= _CLOSE * best[:, SIX] for layer, best in greatest.items()}
    other = {one.layer: datapoints.image_labels[one.best[:, 0]] != labels for one in attention}

    def of_digit(digit: int) -> tuple[str, NDArray[np.bool_]]:
        return f"recognised {dataset.label_names[digit]}s", right & (labels == digit)

    six_leads = over_layers(_LEADS, *of_digit(SIX), leads, EVERY)
    three_leads = over_layers(_LEADS, *of_digit(THREE), leads, EVERY)
    six_zero = over_layers(_ZERO, *of_digit(SIX), zeros, SOME)
    six_near = over_layers(_NEAR, *of_digit(SIX), near, SOME)
    any_leads = over_layers(_LEADS, "recognised digits", right, leads, EVERY)
    any_other = over_layers(_OTHER, "recognised digits", right, other, SOME)
    others = [digit for digit in range(len(dataset.label_names)) if digit != SIX]
    by_digit = [over_layers(_LEADS, *of_digit(digit), leads, EVERY)[-1] for digit in others]
    claims = [
        *prevalence_claim(
            _SECTION,
            "For a recognised 6, the training datapoints of class 6 draw the most attention in all, at every layer.",
            "one example (Figure 5)",
            six_leads[-1],
        ),
        *prevalence_claim(
            _SECTION,
            "Some datapoints of class 0 achieve scores comparable to, or higher than, those of the correct class 6.",
            "one example (Figure 4)",
            six_near[-1],
        ),
        *prevalence_claim(
            _SECTION,
            "In many cases the training datapoints of the highest scores are not from the correct class, while the "
            "output is correct.",
            "many cases; one example (Figure 4)",
            any_other[-1],
            MANY,
            OFTEN,
        ),
        *prevalence_claim(
            "appendix B.1",
            "A recognised 3 shows what the 6 does: its class draws the most attention at every layer.",
            "one example (Figure 15)",
            three_leads[-1],
        ),
    ]
    chosen = {
        f"digit-{SIX}": choose_showing(dataset, given, [six_leads[-1], six_near[-1]]),
        f"digit-{THREE}": choose_showing(dataset, given, [three_leads[-1]]),
    }
    return Findings(
        [*six_leads, *six_zero, *six_near, *by_digit, *any_leads, *any_other],
        claims,
        {name: choice for name, choice in chosen.items() if choice is not None},
    )

"""What the paper observes of a "1" that is taken for a "3" (section 5.4), over the whole test set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dualform_studies.images.claims.attention import LayerAttention
from dualform_studies.images.claims.crossing import crossing_claim
from dualform_studies.images.claims.findings import Findings
from dualform_studies.images.claims.prevalence import (
    Choice,
    Prevalence,
    choose_showing,
    over_layers,
    prevalence_claim,
)
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.training.recorded import Checkpoint

MISTAKE = (1, 3)
"""The paper's example: a "1" taken for a "3", for the attention that it gives to Fashion-MNIST's dresses."""
_OWN_LEADS = "the query's own class of its own dataset has the greatest sum"
_LEADS = "class 3 of Fashion-MNIST, dress, has the greatest sum"
_LEADS_SECOND = "of Fashion-MNIST's classes, the one with the label recognised has the greatest sum"
_OUTPUT = "the output"
_SPOILT = "it was recognised before Fashion-MNIST was learned, and is with Fashion-MNIST masked"


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
    mistaken = wrong & (labels == one) & (given == three)
    among, wrongs = f"{one}s taken for {three} at the end", "MNIST test images mistaken at the end"
    own = {layer.layer: layer.leading() == layer.columns(dataset.name, labels) for layer in attention}
    dress = {
        layer.layer: layer.leading() == layer.columns(second, np.array([three], dtype=np.int64)) for layer in attention
    }
    columns = [at for at, (name, _) in enumerate(last.groups) if name == second]
    recognised = {layer.layer: layer.sums[:, columns].argmax(axis=1) == given for layer in attention}
    dresses = over_layers(_LEADS, among, mistaken, dress)
    of_label = over_layers(_LEADS_SECOND, wrongs, wrong, recognised)
    spoilt_ones = Prevalence(_SPOILT, _OUTPUT, among, mistaken, spoilt)
    spoilt_all = Prevalence(_SPOILT, _OUTPUT, wrongs, wrong, spoilt)
    claims = [
        *prevalence_claim(
            "section 5.4",
            'At layer 2 the class of greatest sum of a "1" taken for a "3" is Fashion-MNIST\'s class 3, dress.',
            "one example (Figures 8 and 9)",
            dresses[-1],
        ),
        *prevalence_claim(
            "section 5.4",
            "Attention to Fashion-MNIST explains mistakes: of its classes, the one with the label that an MNIST image "
            "is taken for draws the most at layer 2.",
            "one example (Figures 8 and 9)",
            of_label[-1],
        ),
        crossing_claim("section 5.4", crossed),
    ]
    choice = choose_showing(dataset, given, [_of_spoilt(dresses[-1], spoilt)]) or choose_showing(
        dataset, given, [_of_spoilt(of_label[-1], spoilt)]
    )
    rows = [*over_layers(_OWN_LEADS, among, mistaken, own), *dresses, *of_label, spoilt_ones, spoilt_all, *crossed]
    return Findings(rows, claims, {} if choice is None else {"interference": choice})


def _of_spoilt(observed: Prevalence, spoilt: NDArray[np.bool_]) -> Prevalence:
    """The same of those alone that the second dataset spoils: no other is an example of interference."""
    return replace(observed, among=f"{observed.among}, spoilt by Fashion-MNIST", concerned=observed.concerned & spoilt)


def choose_recognised_as(dataset: Dataset, given: NDArray[np.int64], label: int) -> Choice | None:
    """The first recognised test image of a class, or of any where there is none; None where none is recognised.

    `given` is int64[n], the class that the network gives each test image.
    """
    labels = dataset.test.labels
    of_class = f"it is of class {dataset.label_names[label]}"
    among = f"{dataset.name} test images recognised at the end"
    return choose_showing(dataset, given, [Prevalence(of_class, "its label", among, given == labels, labels == label)])

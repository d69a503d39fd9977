"""What section 5.4 says of forgetting, and of the mask that would undo it. Shapes: n test images of MNIST."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dualform_studies.exact_tests import CHANCE, is_gain
from dualform_studies.pages.claims import Claim, verdict_of
from dualform_studies.pages.words import percent

HEADING = "Forgetting"
_AFTER, _END = 0.97, 0.45
"""The paper's accuracies on MNIST after the first part and at the end."""
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
        Claim(
            "section 5.4",
            "MNIST is forgotten when Fashion-MNIST is learned after it: the interference is severe.",
            f"{percent(_AFTER, '.0f')} after MNIST, {percent(_END, '.0f')} at the end",
            f"{reached}; of {len(after):,} test images {lost:,} are lost and {gained:,} gained",
            verdict_of(forgotten and fallen >= _SEVERE, forgotten),
            f"the accuracy on MNIST falls {test} and by at least {100 * _SEVERE:.0f} points, half of what the paper's "
            "falls by; in part, falls beyond chance",
            HEADING,
        ),
        Claim(
            "section 5.4",
            "With the terms of Fashion-MNIST removed, the network is as good on MNIST as after the first part.",
            f"{percent(_AFTER, '.0f')} after MNIST; removal is not tried",
            f"{percent(masked.mean())} with them removed; {reached}",
            verdict_of(half and bool(near), half),
            f"the accuracy falls {test}, at least half of the loss comes back, and what is reached is within "
            f"{100 * _POINT:.0f} point of the accuracy after MNIST, as the paper's are whole per cents; in part, at "
            "least half of the loss comes back",
            HEADING,
        ),
    ]

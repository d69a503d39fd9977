"""How few training images, taken away and trained without, turn a prediction. Shapes: t tests, n samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dualform_studies.attribution.ours import Scores
from dualform_studies.attribution.recorded import Recorded
from dualform_studies.attribution.removal import highest, smallest_turning
from dualform_studies.attribution.trials import Trials


@torch.no_grad()
def least_sure(recorded: Recorded, among: int, count: int) -> NDArray[np.int64]:
    """int64[count] at most: of the first tests those that are recognised by the least margin, the least sure first."""
    tested = recorded.attributed.of(slice(among))
    shares = recorded.network(tested.inputs).softmax(1)
    right = np.flatnonzero((shares.argmax(1) == tested.labels).numpy())
    own = shares[torch.arange(len(shares)), tested.labels].numpy()[right]
    return right[np.argsort(own, kind="stable")[:count]]


def turning_sizes(
    trials: Trials, scores: Mapping[str, Scores], tests: NDArray[np.int64], counts: Sequence[int]
) -> dict[str, list[int | None]]:
    """Of each way, for each test, the least of the counts of samples, highest scores first, without which the network
    gives the test another class; None where none of them does.

    A test that a smaller count turned is not tried with a greater one.
    """
    labels = trials.tested.labels.numpy()
    turned = {name: np.zeros((len(tests), len(counts)), dtype=bool) for name in scores}
    for place, count in enumerate(counts):
        open_ = [(name, at) for name, own in turned.items() for at in range(len(tests)) if not own[at].any()]
        if not open_:
            break
        _, classes = trials.without([highest(scores[name], int(tests[at]), count) for name, at in open_])
        for (name, at), given in zip(open_, classes, strict=True):
            turned[name][at, place] = given[tests[at]] != labels[tests[at]]
    return {name: smallest_turning(own, counts) for name, own in turned.items()}

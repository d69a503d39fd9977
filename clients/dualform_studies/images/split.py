"""Which of the training images a study trains on. Shapes: n images."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def training_rows(images: int, split: int = 0) -> NDArray[np.int64]:
    """int64[n], ascending: the training set of the paper's code, 40,000 of 60,000 images.

    A sixth is held out for validation, then a fifth of the rest; nothing here looks at what is held out. The draw
    depends on `split` alone, not on a training's seed: the paper's layer 0 has a deviation of 0.0 over five runs, which
    takes the same images in every run.
    """
    order = np.random.default_rng(split).permutation(images)
    rest = images - images // 6
    return np.sort(order[: rest - rest // 5])

"""What leaving training images out does, found by training without them. Shapes: m trainings, t tests, n samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform_studies.attribution.examples import Examples
from dualform_studies.attribution.ranks import Doubles
from dualform_studies.attribution.recipe import Recipe
from dualform_studies.attribution.schedule import Rows, Step, left_out, subsets
from dualform_studies.attribution.stacked import train_in_parts
from dualform_studies.progress import Progress, or_silent


@dataclass(frozen=True, eq=False)
class Trials:
    """Retrains the network of one recorded training: same initial weights, same order of images, same dropout."""

    trained: Examples
    tested: Examples
    recipe: Recipe
    seed: int
    order: Rows
    """int64[epochs, n]: that of the recorded training."""
    at_once: int
    progress: Progress | None = None

    def of_subsets(self, kept: Sequence[Rows]) -> Doubles:
        """float64[m, t]: losses of networks that were trained on subsets, in batches of their own."""
        return self._run(kept, subsets, "training on subsets")[0]

    def without(self, absent: Sequence[Rows]) -> tuple[Doubles, NDArray[np.int64]]:
        """float64[m, t] and int64[m, t]: losses and classes of networks from whose batches some images were removed."""
        return self._run(absent, left_out, "training without some images")

    def _run(
        self, rows: Sequence[Rows], plan: Callable[[Rows, int, Sequence[Rows]], list[Step]], label: str
    ) -> tuple[Doubles, NDArray[np.int64]]:
        parts = [rows[start : start + self.at_once] for start in range(0, len(rows), self.at_once)]

        def steps_of(part: Sequence[Rows]) -> tuple[int, Callable[[], Sequence[Step]]]:
            return len(part), lambda: plan(self.order, self.recipe.batch, part)

        found, say, done = [], or_silent(self.progress), 0
        say(label, 0, len(rows))
        for one in train_in_parts(self.trained, self.recipe, self.seed, self.tested, map(steps_of, parts)):
            found.append(one)
            done += len(one[0])
            say(label, done, len(rows))
        losses, classes = zip(*found, strict=True)
        return np.concatenate(losses), np.concatenate(classes)


def draw_subsets(samples: int, share: float, count: int, seed: int) -> list[Rows]:
    """Subsets of so large a share, each drawn by chance."""
    draw = np.random.default_rng((seed, round(1000 * share)))
    size = round(share * samples)
    return [np.sort(draw.choice(samples, size, replace=False)) for _ in range(count)]

"""What makes head 1 forget, when it learns alone: the same trainings with other steps. Shapes: M networks, K moments.

A fall is a loss of 5 pairs or more between two moments at most a twentieth of the training apart, the first twentieth
left out, in which nothing is learned yet. Were falls a matter of what one head can hold, they would cost as much where
steps are small; were they a matter of steps that overshoot, the loss would have been more curved before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from dualform_studies.memorisation.boosting.sharpness import bound, sharpness
from dualform_studies.memorisation.boosting.ways import learning, train_head
from dualform_studies.memorisation.transformer.ensemble import Curve, Optimize, ensemble_of
from dualform_studies.memorisation.transformer.network import HEADS, build_network
from dualform_studies.memorisation.transformer.training import Recipe
from dualform_studies.progress import Progress

FALL = 0.2
"""Of the pairs: 5 of 25."""
NEAR = 0.9
"""Of the optimizer's bound: the loss is looked at too seldom to catch it at its most curved."""
WINDOW = 1 / 20
"""Of the training: within so much of it a fall happens."""
_LOOKED_AT = 5
"""Of so many moments one is looked at for its curvature."""


@dataclass(frozen=True, eq=False)
class HeadOne:
    """Head 1 learning alone, one way."""

    words: str
    steps: int
    curve: Curve
    bound: float | None
    """The greatest curvature that the optimizer follows; None for Adam, whose steps are no multiple of the gradient."""
    looked_at: list[int]
    """Steps."""
    curvature: NDArray[np.float64]
    """float64[K, M], at these steps."""

    @property
    def fell(self) -> NDArray[np.bool_]:
        """bool[M]."""
        return np.array([fall is not None for fall in self.falls()])

    def falls(self) -> list[int | None]:
        """By network, when its first fall begins: the step of the last moment at which it still knew most."""
        return [self._fall(own) for own in np.stack(self.curve.accuracy).T]

    def _fall(self, accuracy: NDArray[np.float64]) -> int | None:
        moments = max(1, round(WINDOW * (len(accuracy) - 1)))
        for at in range(moments, len(accuracy)):
            window = accuracy[at : at + moments + 1]
            if window[0] - window.min() >= FALL - 1e-9:
                before = window[: int(window.argmin())]
                return self.curve.steps[at + int(np.flatnonzero(before == before.max())[-1])]
        return None

    @property
    def end(self) -> NDArray[np.float64]:
        """float64[M]: accuracy at the end."""
        return self.curve.accuracy[-1]

    @property
    def best(self) -> NDArray[np.float64]:
        """float64[M]: the greatest accuracy on the way."""
        return np.asarray(np.stack(self.curve.accuracy).max(axis=0))

    @property
    def lost(self) -> NDArray[np.float64]:
        """float64[M]: accuracy that a network had on the way and lost."""
        return self.best - self.end

    def before_fall(self) -> NDArray[np.float64]:
        """float64[M]: the greatest curvature up to the first fall, or to the end where there is none."""
        last = [self.steps if fall is None else fall for fall in self.falls()]
        before = np.array(self.looked_at)[:, None] <= np.array(last)
        return np.asarray(np.where(before, self.curvature, -np.inf).max(axis=0))

    def at_bound(self) -> NDArray[np.bool_]:
        """bool[M]: whether the curvature came near the optimizer's bound before the first fall, or at all."""
        assert self.bound is not None, "only gradient descent has a bound"
        return np.asarray(self.before_fall() >= NEAR * self.bound)


def train_head_one(recipe: Recipe, seeds: Sequence[int], progress: Progress | None = None) -> dict[str, HeadOne]:
    """The trainings of head 1, of the same networks and facts."""
    slow = replace(recipe, lr=recipe.lr / 4, adam_lr=recipe.adam_lr / 4)
    # The second moment is small where gradients are; a larger ε keeps it from making steps large there.
    damped = partial(torch.optim.Adam, lr=recipe.adam_lr, eps=1e-3)
    ways: dict[str, tuple[str, int, Optimize, float | None]] = {
        "SGD": (f"SGD, learning rate {recipe.lr:g}", recipe.steps, recipe.sgd, bound(recipe.lr, recipe.momentum)),
        "SGD, small": (
            f"SGD, {slow.lr:g}, four times the updates", 4 * recipe.steps, slow.sgd, bound(slow.lr, recipe.momentum),
        ),
        "Adam": (f"Adam, {recipe.adam_lr:g}, ε 1e-8", recipe.steps, recipe.adam, None),
        "Adam, ε": (f"Adam, {recipe.adam_lr:g}, ε 1e-3", recipe.steps, damped, None),
        "Adam, small": (f"Adam, {slow.adam_lr:g}, four times the updates", 4 * recipe.steps, slow.adam, None),
    }  # fmt: skip
    return {
        name: _train(seeds, words, steps, optimize, bound_of, progress)
        for name, (words, steps, optimize, bound_of) in ways.items()
    }


def _train(
    seeds: Sequence[int], words: str, steps: int, optimize: Optimize, bound_of: float | None, progress: Progress | None
) -> HeadOne:
    ensemble, base = ensemble_of(seeds), build_network(0).double()
    heads, learns = torch.eye(HEADS)[:1], learning(0, embeddings=True)
    looked_at: list[int] = []
    curvature: list[NDArray[np.float64]] = []
    noted = 0

    def look(step: int, parameters: dict[str, torch.Tensor]) -> None:
        nonlocal noted
        if noted % _LOOKED_AT == 0:
            looked_at.append(step)
            found = sharpness(base, parameters, ensemble.pairs, ensemble.next_tokens, heads, learns)
            curvature.append(found.numpy())
        noted += 1

    train_head(ensemble, 0, steps, optimize, True, look=look, progress=progress, words=f"head 1 alone, {words}")
    return HeadOne(words, steps, ensemble.curve, bound_of, looked_at, np.stack(curvature))

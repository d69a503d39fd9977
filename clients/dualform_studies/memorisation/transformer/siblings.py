"""Networks trained as the study's own is, with facts and starts of their own: does what one shows hold of others?"""

from __future__ import annotations

from collections.abc import Sequence

from dualform_studies.memorisation.transformer.ensemble import Ensemble, ensemble_of
from dualform_studies.memorisation.transformer.network import HEADS
from dualform_studies.memorisation.transformer.training import Recipe
from dualform_studies.progress import Progress, counting


def train_siblings(
    recipe: Recipe, seeds: Sequence[int], heads: int = HEADS, progress: Progress | None = None
) -> Ensemble:
    """A network of each seed, all heads at once, by the recipe of the recorded training; nothing is recorded."""
    ensemble = ensemble_of(seeds, heads)
    ensemble.train(recipe.steps, recipe.sgd, say=counting(progress, f"{heads} heads at once", recipe.steps))
    return ensemble

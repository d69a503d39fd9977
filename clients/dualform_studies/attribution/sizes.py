"""How much of everything the study takes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dualform_studies.attribution.recipe import Recipe


@dataclass(frozen=True)
class Sizes:
    recipe: Recipe = field(default_factory=Recipe)
    shares: tuple[float, ...] = (0.5, 0.9)
    """Of the training images that a subset keeps."""
    subsets: int = 100
    """Of each share."""
    removed: int = 100
    """Training images that are left out one by one."""
    turned: int = 8
    """Test images whose predictions are to be turned."""
    turned_among: int = 50
    """The first test images, of which those that are recognised by the least margin are taken."""
    counts: tuple[int, ...] = (8, 32, 128)
    """Training images that are taken away to turn a prediction."""
    flipped: int = 1000
    """Training images of the training with wrong labels."""
    wrong: float = 0.1
    """The share of them with another label than their own."""
    flipped_epochs: int = 30
    """Of that training."""
    clean: int = 200
    """Test images with right labels beside it."""
    at_once: int = 25
    """Networks that are trained together."""
    heavy: bool = True
    """Whether the ways of other packages are run that take minutes."""


QUICK = Sizes(
    Recipe(epochs=5, trained=2000, tested=100),
    subsets=25,
    removed=25,
    turned=2,
    counts=(8, 32, 128),
    flipped=500,
    flipped_epochs=10,
    clean=50,
    heavy=False,
)
"""The same with less of everything, for a look in minutes."""


def with_epochs(sizes: Sizes, epochs: int) -> Sizes:
    return replace(sizes, recipe=replace(sizes.recipe, epochs=epochs))

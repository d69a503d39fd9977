"""How a language model is sized and trained. What each study's own numbers are stands with the study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dualform.errors import NotFound


@dataclass(frozen=True)
class Recipe:
    embedding: int
    """Width of a token's embedding."""
    projection: int
    """Width of a linear layer between embedding and LSTM; 0 for none."""
    hidden: int
    """Units of the LSTM."""
    lr: float
    clip: float
    """Greatest norm of the gradient of all parameters together."""
    batch: int
    """Streams of text read side by side."""
    steps: int
    """Updates."""
    unroll: int = 100
    """Tokens of each stream a step: gradients go back no further."""
    dropout: float = 0.0
    """Of the embedding."""
    weight_decay: float = 1e-7
    reset: float = 0.01
    """Chance, at each step, that the state is not carried over from the step before."""

    def with_steps(self, steps: int | None) -> Recipe:
        """The same recipe with so many updates, unchanged for None."""
        return self if steps is None else replace(self, steps=steps)

    @property
    def slots(self) -> int:
        """Training datapoints of the LSTM: one per token and step."""
        return self.batch * self.unroll * self.steps

    @property
    def d_in(self) -> int:
        """Width of the LSTM's key [h_(t-1); x_t]."""
        return self.hidden + (self.projection or self.embedding)


def choose_preset(presets: Mapping[str, Recipe], name: str | None) -> Recipe:
    """The preset of that name, the first for None. Raises NotFound, listing those there are, for another name."""
    if name is None:
        return next(iter(presets.values()))
    if name not in presets:
        raise NotFound(f"there is no preset {name!r}.", hint=f"Presets: {', '.join(presets)}.", field="preset")
    return presets[name]

"""One snapshot of a memory, what scores its keys, and what is derived from it and kept between questions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Scan
from dualform.query.bounds import UNBOUNDED, QuestionBounds
from dualform.query.cache import Cache
from dualform.query.score.backends import Backend
from dualform.query.search.tally import Tally
from dualform.store.layer import Layer
from dualform.store.products import Products
from dualform.store.ram_budget import RamBudget
from dualform.store.snapshot import Snapshot

if TYPE_CHECKING:
    from dualform.query.shards.shards import Shards
    from dualform.rules import Coefficients

Check: TypeAlias = Callable[[], None]
"""Called between blocks of work; raises Cancelled where nobody waits for the answer any more, and TimedOut where it has
taken too long."""


def never() -> None:
    """A Check of work that nobody can give up."""


class View:
    """What one question is asked of; a question sees one snapshot from its start to its end."""

    def __init__(
        self, snapshot: Snapshot, backend: Backend, cache_bytes: int | RamBudget, tally: Tally | None = None
    ) -> None:
        """`cache_bytes`: of masks, groups, norms, sums of keys and rebuilt weights; or the budget that they share with
        all else that is kept.
        """
        self.shards: Shards | None = None
        """Who answers for the memory's shards, where that is not this process."""
        self.snapshot = snapshot
        self.backend = backend
        self.tally = tally or Tally()
        self.cache = Cache(cache_bytes, self.tally)
        self.bounds = UNBOUNDED
        """Of the question that is asked."""

    def within(self, bounds: QuestionBounds) -> View:
        """This view for a question that is bounded."""
        own = copy(self)
        own.bounds = bounds
        return own

    def scan(
        self,
        began: float,
        slots: int = 0,
        matching: int = 0,
        backend: str = "",
        space: str | None = None,
        at_step: int | None = None,
    ) -> Scan:
        """What answering has taken since `began`, in seconds of time.perf_counter(); `space`: the one that was asked,
        None for all; `at_step`: as of which step, None for the end.
        """
        share = self.snapshot.share(self.snapshot.spaces_of_layers if space is None else [space], at_step)
        return Scan(self.snapshot.commits, slots, matching, backend, time.perf_counter() - began, share=share)

    def datasets(self) -> dict[str, int]:
        """As Snapshot.datasets."""
        return self.cache.get("datasets", self.snapshot.datasets)

    def coefficients(self, layer: Layer, parameter: str, at_step: int | None, *, factors: bool = True) -> Coefficients:
        """As dualform.query.weights.coefficients; `per_step` is float64[recorded steps], 0.0 from `at_step` on."""
        from dualform.query.weights.coefficients import coefficients  # not needed by scores

        def made() -> Coefficients:
            found = coefficients(self.snapshot, layer.log_name(parameter), at_step, factors=factors)
            later = self.snapshot.steps - len(found.per_step)
            return replace(found, per_step=np.pad(found.per_step, (0, later)))

        return self.cache.get(("coefficients", layer.name, parameter, at_step, factors), made)

    def stored_weights(self, which: Literal["initial", "final"]) -> Mapping[str, NDArray[Any]]:
        """The model's state dict as it was stored; the initial one where the training was cut off before its end."""
        held: Mapping[str, NDArray[Any]] | None = self.cache.get(("stored", which), getattr(self.snapshot, which))
        return self.stored_weights("initial") if held is None else held

    def products(self, layer: Layer) -> Products:
        """As Snapshot.products."""
        return self.cache.get(("products", layer.name), lambda: self.snapshot.products(layer.name))

    def slot_steps(self, layer: Layer) -> NDArray[np.int64]:
        """int64[entries]: the recorded step of each entry of a layer."""
        entries = self.snapshot.entries(layer.name)
        whose = ("space", layer.space) if entries.all else ("layer", layer.name)

        def made() -> NDArray[np.int64]:
            steps = self.snapshot.space(layer.space).extents.every_step()
            return steps if entries.slots is None else steps[entries.slots]

        return self.cache.get(("steps", *whose), made)

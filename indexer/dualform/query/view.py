"""One snapshot of a memory with its backend, its cache and its counters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Scan
from dualform.query.bounds import UNBOUNDED, QuestionBounds
from dualform.query.score import backends
from dualform.query.score.backends import Backend
from dualform.store.files.durable_files import READ
from dualform.store.files.ram_budget import RamBudget
from dualform.store.files.segment import SegmentCache
from dualform.store.layer import Layer, Parameter
from dualform.store.reading.merged_tables import Products
from dualform.store.reading.snapshot import Snapshot

if TYPE_CHECKING:
    from dualform.query.shards.shards import Shards
    from dualform.rules import Coefficients


@dataclass
class Tally:
    """Safe to add to from several threads."""

    queries: int = 0
    """Queries whose best slots were asked for."""
    fallbacks: int = 0
    """Those that the screen was asked about and could not decide, answered from float32 scores of every row."""
    candidates: int = 0
    """Rows that the screen left for canonical scoring."""
    rescoring_seconds: float = 0.0
    """Time of canonical scoring."""
    found: int = 0
    made: int = 0
    """Values derived from the memory that a cache had, and that were made for a question."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def add(self, **more: float) -> None:
        """To the attributes of these names."""
        with self._lock:
            for name, number in more.items():
                setattr(self, name, getattr(self, name) + number)


Value = TypeVar("Value")
_LOOK = 0.05
"""Seconds between looks whether whoever waits for a value still has to."""
_SMALL = 100
"""Bytes of a value that does not say its size: a number, a text, None."""


class _Held(NamedTuple):
    """So that None is a value."""

    value: Any


class Cache:
    """The values used last, up to a number of bytes: arrays, mappings and lists of them, and what says its `nbytes`."""

    def __init__(self, limit: int | RamBudget, tally: Tally | None = None) -> None:
        """`limit`: bytes, or the budget that it shares with other caches. `tally` counts what was found and made."""
        self._tally = tally or Tally()
        self._budget = RamBudget(limit, limit // 2) if isinstance(limit, int) else limit
        self._owner = object()
        self._making: dict[Hashable, threading.Event] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value], check: Callable[[], None] | None = None) -> Value:
        """The value of `key`, made by `make` where it is not there; other threads asking for it meanwhile wait,
        each until its own `check` raises something.

        Where `make` raises, its own caller gets the error and one of the waiting threads tries again: the asker that
        went away must not cancel the others.
        """
        while True:
            with self._lock:
                held: _Held | None = self._budget.find(self._owner, key)
                if held is not None:
                    self._tally.add(found=1)
                    found: Value = held.value
                    return found
                made = self._making.get(key)
                if made is None:
                    self._making[key] = made = threading.Event()
                    break
            while not made.wait(None if check is None else _LOOK):
                assert check is not None
                check()
        self._tally.add(made=1)
        try:
            value = make()
            self._budget.keep(self._owner, key, _Held(value), _size(value))
            return value
        finally:
            with self._lock:
                del self._making[key]
            made.set()

    def holds(self, key: Hashable) -> bool:
        """Whether a value is there, or being made."""
        with self._lock:
            return key in self._making or self._budget.find(self._owner, key) is not None

    def clear(self) -> None:
        """Let go of all values; what is being made meanwhile is kept."""
        self._budget.forget(self._owner)

    @property
    def nbytes(self) -> int:
        """Of what is kept."""
        return self._budget.bytes_of(self._owner)


def _size(value: Any) -> int:
    """Bytes."""
    if isinstance(value, Mapping | list | tuple):
        return sum(map(_size, value.values() if isinstance(value, Mapping) else value))
    return int(getattr(value, "nbytes", _SMALL))


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

    def holders(self, blocks: Iterable[Parameter]) -> list[Layer]:
        """The layers that hold one of some parameter blocks."""
        names = {block.block_name for block in blocks}
        layers = self.snapshot.layers.values()
        return [layer for layer in layers if not names.isdisjoint(own.block_name for own in layer.parameters)]

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


@dataclass(frozen=True)
class Counts:
    queries: int
    """Whose best slots were asked for."""
    fallbacks: int
    """Of these, those that the screen could not decide, answered from float32 scores of every row."""
    candidates: int
    """Rows that the screen left for canonical scoring."""
    rescoring_seconds: float
    """Of canonical scoring, on the clock."""
    derived_found: int
    derived_made: int
    """Masks, groups, sums and rebuilt weights that were kept from an earlier question, and that were not."""
    codes_found: int
    codes_made: int
    """Eight-bit codes of keys that a scan found kept, and that were read or made."""
    read_bytes: int
    """Of keys, values and what derives from them, by the whole process."""
    kept_bytes: int
    """Between questions: keys, values, codes and what derives from them."""
    most_bytes: int | None
    """Of all that the memory may take (`memory` of dualform.open); None where nothing was said."""
    commits: int
    """Of the snapshot that questions see."""
    recording: bool
    """Whether the memory is still being recorded, or was cut off."""


def counted(view: View, segments: SegmentCache | None, budget: RamBudget | None) -> Counts:
    """Of the engine that answers from `view`, with what it keeps: under a budget, that of all who share it."""
    tally, backend = view.tally, view.backend
    codes = backend.screen.codes if isinstance(backend, backends.ScreenBackend) else None
    kept = sum(cache.nbytes for cache in (view.cache, segments, codes) if cache is not None)
    return Counts(
        queries=tally.queries,
        fallbacks=tally.fallbacks,
        candidates=tally.candidates,
        rescoring_seconds=tally.rescoring_seconds,
        derived_found=tally.found,
        derived_made=tally.made,
        codes_found=0 if codes is None else codes.found,
        codes_made=0 if codes is None else codes.made,
        read_bytes=READ.total,
        kept_bytes=kept if budget is None else budget.kept_bytes,
        most_bytes=None if budget is None else budget.given,
        commits=view.snapshot.commits,
        recording=view.snapshot.recording,
    )

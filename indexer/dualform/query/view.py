"""One snapshot of a memory, and what is derived from it and kept: masks, groups, norms, key sums, rebuilt weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.errors import NotFound
from dualform.query import groups
from dualform.query.cache import Cache
from dualform.query.groups import Groups
from dualform.query.score.backends import Backend
from dualform.query.score.bound import norms
from dualform.query.search.tally import Tally
from dualform.query.weights.coefficients import coefficients
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.rules import Coefficients
from dualform.store.layer import Layer
from dualform.store.snapshot import Snapshot
from dualform.store.space import Space

Check: TypeAlias = Callable[[], None]
"""Called between blocks of work; raises Cancelled where nobody waits for the answer any more."""

NORM_ROWS = 1 << 14


class View:
    """What one question is asked of; a question sees one snapshot from its start to its end."""

    def __init__(self, snapshot: Snapshot, backend: Backend, cache_bytes: int, tally: Tally | None = None) -> None:
        self.snapshot = snapshot
        self.backend = backend
        self.cache = Cache(cache_bytes)
        self.tally = tally or Tally()

    @property
    def path(self) -> Path:
        return self.snapshot.path

    def layer(self, name: str) -> Layer:
        return self.snapshot.layer(name)

    @property
    def spaces(self) -> list[str]:
        """In the order of the layers that use them."""
        return list(dict.fromkeys(layer.space for layer in self.snapshot.layers.values()))

    def count(self, space: str) -> int:
        return self.snapshot.count(space)

    def columns(self, space: str) -> dict[str, str]:
        return self.snapshot.columns(space)

    def slots_of(self, layer: Layer, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n]: the slot, in the layer's space, of each of n entries of the layer."""
        return self.snapshot.entries(layer.name).slots_of(entries)

    def entries_of(self, layer: Layer, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n]: the layer's entry of each of n slots of its space. Raises NotFound for one that it lacks."""
        entries = self.snapshot.entries(layer.name).of(slots)
        if (entries < 0).any():
            raise NotFound(
                f"layer {layer.name!r} has nothing at slot {int(slots[entries < 0][0])}: it was not called there.",
                hint=f"Ask for slots of space {layer.space!r} that it has.",
                field="queries",
            )
        return entries

    def datasets(self) -> dict[str, int]:
        """Slots by dataset over all spaces; slots without one are left out."""
        return self.cache.get("datasets", self._count_datasets).counts

    def _count_datasets(self) -> _Datasets:
        counts: dict[str, int] = {}
        for name in self.spaces:
            for dataset, slots in _slots_by_dataset(self.snapshot.space(name)).items():
                counts[dataset] = counts.get(dataset, 0) + slots
        return _Datasets(dict(sorted(counts.items())))

    def select(self, layer: Layer, where: str | None) -> Selection:
        """The entries of a layer that a mask leaves, which may be none.

        Raises BadMask or NotFound as `mask.check`, `mask.require_values` and `mask.select` say.
        """
        entries, space = self.snapshot.entries(layer.name), self.snapshot.space(layer.space)
        # Layers that have every slot of their space share what was made for one of them.
        whose = ("space", layer.space) if entries.all else ("layer", layer.name)
        within = "" if entries.all else f"entries of {layer.name!r}: "
        if where is None:
            return self.cache.get(
                ("selection", *whose, ""), lambda: Selection(within, np.ones(entries.count, dtype=bool))
            )
        spaces = [self.snapshot.space(name) for name in self.snapshot.spaces]
        expression = mask.check(space, spaces, where, self.datasets)

        def made() -> Selection:
            mask.require_values(layer.name, space, spaces, entries.slots, expression.valued)
            key = ("mask", layer.space, expression.identity)
            stays = self.cache.get(key, lambda: _Mask(mask.select(space, expression))).slots
            own = stays if entries.slots is None else stays[entries.slots]
            selection = Selection(within + expression.identity, own)
            if not selection.count:  # NOT (x IS NULL), and whatever else comes to the same
                mask.require_values(layer.name, space, spaces, entries.slots, expression.columns)
            return selection

        return self.cache.get(("selection", *whose, expression.identity), made)

    def selection(self, layer: Layer, where: str | None) -> Selection:
        """As `select`; raises EmptyMask where the mask leaves nothing."""
        return mask.require_entries(self.select(layer, where), where, self.datasets)

    def groups(self, layer: Layer, selection: Selection, by: tuple[str, ...]) -> Groups:
        """The selected entries of a layer by columns of their slots. Raises NotFound for an unknown column."""
        key = ("groups", layer.space, selection.identity, by)
        space, slots = self.snapshot.space(layer.space), self.snapshot.entries(layer.name).slots
        return self.cache.get(key, lambda: groups.group(space, slots, selection, by))

    def key_norms(self, layer: str, check: Check, start: int = 0, stop: int | None = None) -> NDArray[np.float64]:
        """float64[rows]: the norm of each stored key of a layer, or of some columns of it."""
        last = self.layer(layer).d_in if stop is None else stop

        def measure() -> NDArray[np.float64]:
            keys = self.snapshot.keys(layer)
            found = np.empty(keys.rows)
            for first, block in keys.blocks(NORM_ROWS):
                check()
                found[first : first + len(block)] = norms(block[:, start:last])
            return found

        return self.cache.get(("norms", layer, start, last), measure)

    def coefficients(self, layer: Layer, parameter: str, at_step: int | None) -> Coefficients:
        """As dualform.query.weights.coefficients; `per_step` is float64[recorded steps], 0.0 from `at_step` on."""
        found = coefficients(self.snapshot, parameter, at_step)
        later = self.snapshot.steps - len(found.per_step)
        return replace(found, per_step=np.pad(found.per_step, (0, later)))

    def stored_weights(self, which: Literal["initial", "final"]) -> Mapping[str, NDArray[Any]]:
        """The model's state dict as it was stored; the initial one where the training was cut off before its end."""
        held = self.cache.get(("stored", which), lambda: _Arrays(getattr(self.snapshot, which)()))
        return self.stored_weights("initial") if held.arrays is None else held.arrays

    def slot_steps(self, layer: Layer) -> NDArray[np.int64]:
        """int64[entries]: the recorded step of each entry of a layer."""
        entries = self.snapshot.entries(layer.name)
        whose = ("space", layer.space) if entries.all else ("layer", layer.name)

        def made() -> NDArray[np.int64]:
            steps = self.snapshot.space(layer.space).extents.every_step()
            return steps if entries.slots is None else steps[entries.slots]

        return self.cache.get(("steps", *whose), made)


def _slots_by_dataset(space: Space) -> dict[str, int]:
    if "dataset" in space.sample_columns:
        encoded = space.samples.column("dataset").combine_chunks().dictionary_encode()
        slots = space.slots_of_datapoints()
    else:
        encoded = pa.array(space.column("dataset"), type=pa.string()).dictionary_encode()
        slots = np.ones(space.count, dtype=np.int64)
    there = np.asarray(encoded.is_valid())
    counts = np.bincount(np.asarray(encoded.indices.fill_null(0))[there], slots[there], len(encoded.dictionary))
    return {name: int(n) for name, n in zip(encoded.dictionary.to_pylist(), counts, strict=True) if n}


class _Mask:
    def __init__(self, slots: NDArray[np.bool_]) -> None:
        self.slots = slots
        self.nbytes = slots.nbytes


class _Arrays:
    def __init__(self, arrays: Mapping[str, NDArray[Any]] | None) -> None:
        self.arrays = arrays
        self.nbytes = 0 if arrays is None else sum(array.nbytes for array in arrays.values())


class _Datasets:
    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.nbytes = 100 * len(counts)

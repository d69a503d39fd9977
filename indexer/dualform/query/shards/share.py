"""What one shard is asked for, and what it has to answer it with.

Shapes: H entries of a layer in the whole memory, m of them that a mask leaves in the shard, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from dualform.query.groups import Groups, Members, group_entries
from dualform.query.view import Check, View
from dualform.query.where import mask
from dualform.query.where.mask import Selection, Source
from dualform.store.entries import Integers
from dualform.store.layer import Layer
from dualform.store.part import Part, shard_of_entries

A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True, eq=False)
class OneShard:
    """The whole memory, of which no rows are read, and the rows of one shard. Both see one moment."""

    whole: View
    part: View
    rows: Part
    """The snapshot of `part`."""

    def layer(self, name: str) -> Layer:
        return self.whole.snapshot.layer(name)

    def selected(self, layer: Layer, source: Source, check: Check) -> Selection:
        """The shard's entries that a selection of the whole leaves, numbered within the shard."""
        whole = selection(self.whole, layer, source, check)
        return self.part.cache.get(
            ("selection", layer.name, whole.identity),
            lambda: Selection(whole.identity, whole.stays[self.rows.places(layer.name)]),
        )

    def grouped(self, layer: Layer, source: Source, by: tuple[str, ...], check: Check) -> Groups | None:
        """The same by group. Groups are those of the whole, and may have no entry here; None for no columns."""
        if not by:
            return None
        chosen = selection(self.whole, layer, source, check)
        whole = group_entries(self.whole, layer, chosen, by, check)

        def made() -> Groups:
            entries, there = self.rows.own(layer.name, whole.entries)
            numbers = whole.numbers[there]
            counts = np.bincount(numbers, minlength=len(whole.keys)).astype(np.int64)
            return Groups.of(by, whole.keys, Members(entries, numbers), counts)

        return self.part.cache.get(("groups", layer.name, chosen.identity, by), made)


class Share(Protocol, Generic[A_co]):
    """A shard's part of a question, as a value that travels between processes."""

    def answer(self, shard: OneShard, check: Check) -> A_co:
        """Raises what the question raises of the shard's own rows."""
        ...


def selection(view: View, layer: Layer, source: Source, check: Check) -> Selection:
    """What a source says, of the whole memory."""
    found = mask.selection(view, layer, source.where, check)
    return without(view, layer, found, source.without) if source.without else found


def without(view: View, layer: Layer, whole: Selection, shards: tuple[int, ...]) -> Selection:
    """A selection less the entries of some shards."""
    assert whole.source is not None, "only what was asked for is asked for again"
    source = Source(whole.source.where, shards)
    identity = f"{whole.identity} without shards {', '.join(map(str, shards))}"
    return view.cache.get(
        ("selection", layer.name, identity),
        lambda: Selection(identity, whole.stays & ~np.isin(shard_of(view, layer), shards), source),
    )


def shard_of(view: View, layer: Layer) -> Integers:
    """int64[H]: the shard of each entry."""
    name = layer.stored.name
    return view.cache.get(("shard of", name), lambda: shard_of_entries(view.snapshot, name))

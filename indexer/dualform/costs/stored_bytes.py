"""What a memory of some steps says of one of more: bytes by what they are of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dualform.costs.repeated_inputs import share_of_others
from dualform.costs.tables import Repeats, grown_bytes
from dualform.store.layer import Layer
from dualform.store.shard_sources import form_of_file
from dualform.store.snapshot import Snapshot
from dualform.store.sources import FORMATS


@dataclass(frozen=True)
class LayerBytes:
    """One layer."""

    keys: int
    values: int
    numbers: int
    """Of keys that a question reads."""
    entries: int
    """Slots."""
    d_in: int
    number_bytes: int | None
    """Of one number of its keys, where it is as long as those that the training computes with; else None."""
    value_number_bytes: int | None
    """The same of its values: an error signal has the type of what the layer gives."""

    def bytes_in(self, number_bytes: int) -> int:
        """Of keys and values, where the training computes in a type of so many bytes."""
        sizes = (self.keys, self.number_bytes), (self.values, self.value_number_bytes)
        return sum(size if own is None else size * number_bytes // own for size, own in sizes)


@dataclass(frozen=True)
class Stored:
    """A memory, by what takes its bytes."""

    layers: Mapping[str, LayerBytes]
    tables: int
    others: int
    """Of parameters and buffers that no slot explains."""
    weights: int
    """Initial and final ones, what the optimizer kept before, and query sets that were taken."""
    slots: Mapping[str, int]
    """By space."""
    told_once: tuple[str, ...]
    """Layers whose raw inputs are stored once each, and were not said to repeat."""
    altered: Mapping[str, float]
    """Layers whose samples came again with other inputs, and in what share of the times they came again."""
    unproven: tuple[str, ...]
    """Layers whose inputs are told to come again, as none of those that were tried did."""

    @property
    def total(self) -> int:
        own = sum(layer.keys + layer.values for layer in self.layers.values())
        return own + self.tables + self.others + self.weights


def stored_after(folder: Path, scratch: Path, steps: int, samples: int | None) -> Stored:
    """The memory in `folder` if it had `steps` steps, of as many distinct `samples`, where that is known. `scratch`: a
    folder to write to.
    """
    memory = Snapshot.open(folder)
    times = steps / memory.steps
    segments = memory.table("segments")
    rows_a_sample = _rows_a_sample(memory)
    layers, repeats, once = dict[str, LayerBytes](), dict[str, Repeats](), list[str]()
    altered, unproven = dict[str, float](), list[str]()
    for layer in memory.layers.values():
        own = segments.filter(pc.equal(segments["layer"], layer.name))
        sizes = {kind: _size(layer, kind, own) for kind in ("keys", "values")}
        entries = round(memory.entries(layer.name).count * times)
        rows, size = sizes["keys"]
        stored = rows * times
        if layer.repeats:
            drawn = entries / layer.key_format.per_row
            most = _most_rows(layer, samples, rows_a_sample.get(layer.name, 0.0))
            if most is not None and drawn > most and layer.key_format.most_rows is None:
                others = share_of_others(memory, layer)
                unproven += [layer.name] * (others is None)
                altered |= {layer.name: others} if others else {}
                most += (others or 0.0) * (drawn - most)
            stored = min(drawn, most) if most is not None else stored
            repeats[layer.name] = Repeats(round(stored), drawn > stored, layer.key_format.per_row)
            once += [layer.name] * (most is None)
        keys = round(size / rows * stored) if rows else 0
        values = round(sizes["values"][1] * times)
        numbers = round(stored * layer.key_format.numbers_a_row)
        of_values = FORMATS[layer.value_source].number_bytes if layer.key_format.multiplied else None
        layers[layer.name] = LayerBytes(
            keys, values, numbers, entries, layer.d_in, layer.key_format.number_bytes, of_values
        )
    kept = memory.manifest.others
    return Stored(
        layers=layers,
        tables=grown_bytes(memory, scratch, times, repeats, samples),
        others=0 if kept is None else kept.form.width * (steps // kept.every + 1),
        weights=sum(mark.bytes for mark in memory.manifest.files.values()),
        slots={space: round(memory.count(space) * times) for space in memory.spaces},
        told_once=tuple(once),
        altered=altered,
        unproven=tuple(unproven),
    )


def _size(layer: Layer, kind: str, segments: pa.Table) -> tuple[int, int]:
    """Rows of a kind and their bytes, without those of the files' headers."""
    rows, size = 0, 0
    for own in segments.filter(pc.equal(segments["kind"], kind)).select(["file", "rows"]).to_pylist():
        rows += own["rows"]
        size += own["rows"] * form_of_file(layer, kind, Path(own["file"])).row_bytes
    return rows, size


def _rows_a_sample(memory: Snapshot) -> dict[str, float]:
    """By layer, stored rows that one row of a batch brings, before any is left out because it came before."""
    samples = memory.table("samples")
    count = samples.num_rows - samples["row"].null_count
    return {
        layer.name: memory.entries(layer.name).count / layer.key_format.per_row / max(count, 1)
        for layer in memory.layers.values()
    }


def _most_rows(layer: Layer, samples: int | None, rows_a_sample: float) -> float | None:
    """How many distinct inputs a layer may have; None where nobody knows."""
    most = layer.key_format.most_rows
    known = [] if most is None else [float(most)]
    known += [] if samples is None else [samples * rows_a_sample]
    return min(known, default=None)

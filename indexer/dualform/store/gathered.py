"""What a writer holds between two increments, and where each part of a batch goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dualform.errors import BadInput
from dualform.store.batch import Batch
from dualform.store.digests import digests
from dualform.store.direct_file import Blocks
from dualform.store.durable import sync_folder
from dualform.store.extents_writer import ExtentsWriter
from dualform.store.increment import Increment
from dualform.store.layer import Layer
from dualform.store.layer_writer import LayerWriter
from dualform.store.samples_writer import SamplesWriter
from dualform.store.step_rows import StepRows
from dualform.store.tables import TABLES, ColumnTypes, extents_table, rows_table

_PLAIN = ("defects", "watch", "labels", "digests")


class Gathered:
    """Rows of a shard on their way to its journal and its segments."""

    def __init__(
        self,
        folder: Path,
        blocks: Blocks,
        layers: Sequence[Layer],
        label_names: Mapping[str, Sequence[str]],
        settings: ColumnTypes,
    ) -> None:
        self._folder, self._blocks = folder, blocks
        self.spaces: dict[str, ExtentsWriter] = {}
        """By name, in the order in which they came."""
        self.bytes = 0
        """About what is held since the last commit."""
        self.changed = False
        """Whether a space, a column or a setting came that the tables do not have yet; set back by the writer."""
        self._layers: dict[str, LayerWriter] = {}
        self._digested: dict[str, str] = {}
        self._samples = SamplesWriter()
        self._steps = StepRows(settings)
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _PLAIN}
        for dataset, names in label_names.items():
            self._rows["labels"] += [(dataset, label, name) for label, name in enumerate(names)]
        for layer in layers:
            self._join(layer)
        self._width = self._columns_known()

    def _join(self, layer: Layer) -> None:
        writer = LayerWriter(layer, self._folder, self._blocks)
        writer.folder.mkdir()
        self._layers[layer.name] = writer
        if not layer.keys:
            self._digested[layer.name] = layer.space
        self._space(layer.space)

    def _space(self, name: str) -> ExtentsWriter:
        if name not in self.spaces:
            self.spaces[name] = ExtentsWriter(name)
        return self.spaces[name]

    def append(self, batch: Batch) -> None:
        """Take one step's slots and logs. Raises BadInput, naming what does not fit what came before."""
        for layer in batch.joined:
            self._join(layer)
        if batch.joined:
            sync_folder(self._folder / "layers")
        first_datapoint = self._samples.append(batch.step, batch.samples, batch.unknown)
        self.bytes += sum(column.nbytes for column in batch.samples.values())
        placed: dict[tuple[str, int], tuple[int, int]] = {}
        for extent in batch.extents:
            space = self._space(extent.space)
            first_slot = space.append(batch.step, first_datapoint, extent)
            placed[extent.space, extent.call] = first_slot, extent.slots
            self.bytes += space.nbytes(extent)
        self._append_layers(batch, placed)
        self._append_logs(batch)
        known = self._columns_known()
        self.changed = self.changed or known != self._width
        self._width = known

    def _append_layers(self, batch: Batch, placed: Mapping[tuple[str, int], tuple[int, int]]) -> None:
        for name, calls in batch.layers.items():
            writer = self._layers[name]
            for rows in calls:
                where = placed.get((writer.layer.space, rows.call))
                if where is None:
                    raise BadInput(
                        f"layer {name!r} has rows of call {rows.call}, and space {writer.layer.space!r} no such call.",
                        field="layers",
                    )
                self.bytes += writer.append(rows, *where)

    def _append_logs(self, batch: Batch) -> None:
        for name, digest in digests(batch, self._digested).items():
            self._rows["digests"].append((batch.step, name, digest.keys, digest.columns))
        for log in batch.logs:
            self._steps.append(log)
        self._rows["defects"] += [(d.step, d.layer, d.reason) for d in batch.defects]
        self._rows["watch"] += [
            (w.step, w.parameter, w.one_step, w.accumulated, w.way, w.rounding, w.noise) for w in batch.watch
        ]

    def _columns_known(self) -> tuple[int, ...]:
        spaces = (len(space.types) for space in self.spaces.values())
        return (len(self._steps.settings), len(self._samples.types), *spaces)

    def columns(self) -> dict[str, dict[str, str]]:
        """`Manifest.columns` as of now."""
        spaces = {name: dict(space.types) for name, space in self.spaces.items()}
        return {"samples": dict(self._samples.types), "steps": dict(self._steps.settings), **spaces}

    def take(self) -> Increment:
        """The rows since the last call of this or of `take_tables`."""
        tables = self.take_tables()
        return Increment(tables, [rows for writer in self._layers.values() for rows in writer.unseen()])

    def take_tables(self) -> dict[str, pa.Table]:
        """The new rows by table; a table without new rows is absent."""
        tables: dict[str, pa.Table] = {}
        gathered = {"samples": self._samples.take()}
        gathered |= {extents_table(name): space.take() for name, space in self.spaces.items()}
        tables |= {name: rows for name, rows in gathered.items() if rows is not None}
        tables |= self._steps.take()
        rows: dict[str, list[Any]] = {name: self._rows[name] for name in _PLAIN}
        rows["entries"] = [row for writer in self._layers.values() for row in writer.take_entries()]
        rows["key_rows"] = [row for writer in self._layers.values() for row in writer.take_key_rows()]
        self._rows = {name: [] for name in _PLAIN}
        return tables | {name: rows_table(new, TABLES[name]) for name, new in rows.items() if new}

    def finish(self, segment: int) -> pa.Table | None:
        """Make the matrices gathered since the last call durable; returns the rows for the table `segments`."""
        rows = [row for writer in self._layers.values() for row in writer.finish(segment)]
        self.bytes = 0
        return rows_table(rows, TABLES["segments"]) if rows else None

    def discard(self) -> None:
        """Remove the open segments."""
        for writer in self._layers.values():
            writer.discard()

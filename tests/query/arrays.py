"""Memories made of arrays, without a disk: the store's own reading code over rows that are held already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dualform.query.engine import Engine
from dualform.query.score.backends import choose
from dualform.store.layer import Layer, StoredOptimizer, affine
from dualform.store.manifest import Manifest, Shard
from dualform.store.reading.shard_tables import HeldTables
from dualform.store.reading.snapshot import Snapshot
from dualform.store.rows import Keys
from dualform.store.sources.key_format import HeldRows
from dualform.store.tables import SAMPLES, arrow_table, rows_table

SETTINGS = {
    "lr": "DOUBLE",
    "momentum": "DOUBLE",
    "dampening": "DOUBLE",
    "weight_decay": "DOUBLE",
    "nesterov": "BOOLEAN",
    "maximize": "BOOLEAN",
}
SGD = {"lr": 0.1, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}


class ArrayMemory(Snapshot):
    start: Mapping[str, np.ndarray]
    end: Mapping[str, np.ndarray] | None

    def initial(self) -> dict[str, np.ndarray]:
        return dict(self.start)

    def final(self) -> dict[str, np.ndarray] | None:
        return None if self.end is None else dict(self.end)

    @property
    def ended(self) -> bool:
        return self.end is not None

    def buffers(self) -> dict[str, dict[str, np.ndarray]]:
        return {}


def memory(
    keys: Mapping[str, np.ndarray],
    columns: Mapping[str, Sequence[Any]],
    *,
    values: Mapping[str, np.ndarray] | None = None,
    types: Mapping[str, str] | None = None,
    rows_of_slots: Mapping[str, np.ndarray] | None = None,
    entries: Mapping[str, Sequence[int]] | None = None,
    segment_rows: int = 1000,
    initial: Mapping[str, np.ndarray] | None = None,
    final: Mapping[str, np.ndarray] | None = None,
    biases: bool = True,
    rule: str = "sgd",
    defects: Sequence[tuple[int, str, str]] = (),
    watch: Mapping[int, tuple[float, float]] | None = None,
    residual: float = 0.0,
) -> Snapshot:
    """A memory of samples: `keys` float32[rows, d] by layer, `columns` in slot order (None is NULL).

    Slots of one step stand together, and each recorded step is one update of plain SGD with a learning rate of 0.1.
    `entries`: the slots, ascending, of layers that have not all; their keys and values have a row for each.
    `watch`: by step, the one-step and the accumulated distance of every parameter from there on, of a way of 1.0.
    """
    values, rows_of_slots, entries = values or {}, rows_of_slots or {}, entries or {}
    count = len(next(iter(columns.values())))
    steps = np.asarray(columns.get("step", [0] * count), dtype=np.int64)
    said = {name: column for name, column in columns.items() if name not in ("step", "position")}
    kinds = {**SAMPLES, **{name: "DOUBLE" for name in said if name not in SAMPLES}, **(types or {})}
    layers = [
        Layer(
            name,
            "sample",
            rows.shape[1],
            values[name].shape[1] if name in values else 1,
            affine(rows.shape[1], f"{name}.weight", f"{name}.bias" if biases else None),
            repeats=name in rows_of_slots,
            values=name in values,
        )
        for name, rows in keys.items()
    ]
    manifest = Manifest(
        layers=layers,
        skipped={},
        optimizers=[StoredOptimizer("SGD" if rule else "Rprop", rule, "" if rule else "Rprop has no update rule.")],
        spaces=["sample"],
        columns={"samples": kinds, "steps": SETTINGS, "sample": {}},
        shards=[Shard(commits=1)],
        recording=False,
    )
    logged = sorted(set(steps.tolist()))
    parameters = [parameter.name for layer in layers if layer.values for parameter in layer.parameters]
    starts = np.flatnonzero(np.r_[True, steps[1:] != steps[:-1]]) if count else np.empty(0, np.int64)
    sizes = np.diff(starts, append=count)
    samples = {name: [None] * count for name in kinds} | {"sample": range(count), **said}
    samples |= {"datapoint": range(count), "step": steps, "row": np.arange(count) - np.repeat(starts, sizes)}
    positions = columns.get("position")
    rows = {
        "extents_sample": [
            (int(steps[s]), 0, int(s), int(n), int(n), None, int(s), None, positions and list(positions[s : s + n]))
            for s, n in zip(starts, sizes, strict=True)
        ],
        "entries": [
            (layer.name, int(first), 1) for layer in layers if layer.name in entries for first in entries[layer.name]
        ]
        + [(layer.name, 0, count) for layer in layers if layer.name not in entries and count],
        "key_rows": [(name, 0, [int(row) for row in own]) for name, own in rows_of_slots.items()],
        "steps": [(s, True, s, *SGD.values(), 1.0) for s in logged],
        "parameter_groups": [(s, 0, *SGD.values()) for s in logged],
        "factors": [(s, p, 0, 1.0, residual) for s in logged for p in parameters],
        "watch": _watched(logged, parameters, watch or {}),
        "defects": defects,
        "segments": [(0, name, "keys", "held", 0, len(own), own.nbytes, b"") for name, own in keys.items()],
    }
    types_of = manifest.tables()
    named = {name: list(types_of[name]) for name in types_of}
    order = ("step", "updated", "first_step", *SETTINGS, "clip")
    assert set(order) == set(named["steps"])
    tables = {name: rows_table(rows.get(name) or [], types_of[name]) for name in types_of if name != "steps"}
    tables["steps"] = rows_table(rows["steps"], {name: types_of["steps"][name] for name in order})
    tables["samples"] = arrow_table({name: _listed(samples[name]) for name in kinds}, kinds)
    sources = {(name, "keys"): held(own, segment_rows, (name, "keys")) for name, own in keys.items()}
    sources |= {(name, "values"): held(own, segment_rows, (name, "values")) for name, own in values.items()}
    made = ArrayMemory(Path("array-memory"), manifest, HeldTables(tables, types_of), sources)
    made.start, made.end = initial or {}, final
    return made


def engine(made: Snapshot, backend: str | None = "numpy") -> Engine:
    return Engine(made, choose(backend))


def held(matrix: np.ndarray, size: int, name: Any = "held") -> list[HeldRows]:
    """Key sources of `size` rows each."""
    found = []
    for start in range(0, len(matrix), size):
        part = np.ascontiguousarray(matrix[start : start + size], dtype=np.float32)
        part.flags.writeable = False
        found.append(HeldRows((name, start), start, part))
    return found


def keys_of(matrix: np.ndarray, size: int) -> Keys:
    """Keys, all distinct, in sources of `size` rows each."""
    return Keys(held(matrix, size), matrix.shape[1], len(matrix), None)


def _listed(column: Any) -> Any:
    return column if isinstance(column, np.ndarray) else list(column)


def _watched(
    steps: Sequence[int], parameters: Sequence[str], said: Mapping[int, tuple[float, float]]
) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    accumulated = 1e-7
    for step in steps:
        one_step, accumulated = said.get(step, (1e-8, accumulated))
        rows += [(step, name, one_step, accumulated, 1.0, 1e-8, 1e-8) for name in parameters]
    return rows

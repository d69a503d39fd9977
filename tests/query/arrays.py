"""Memories made of arrays, without a disk: the store's own reading code over segments that are held already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dualform.query.engine import Engine
from dualform.query.score.backends import choose
from dualform.store.layer import Layer, affine
from dualform.store.manifest import Manifest, Shard
from dualform.store.rows import SegmentCache
from dualform.store.snapshot import Snapshot
from dualform.store.tables import SLOTS, arrow_table, rows_table, tables_of

SGD = {"lr": 0.1, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}


class Held(SegmentCache):
    """Segments that no file holds."""

    def __init__(self) -> None:
        self.matrices: dict[Path, np.ndarray] = {}

    def get(self, path: Path, read: Callable[[], np.ndarray]) -> np.ndarray:
        return self.matrices[path]


class ArrayMemory(Snapshot):
    start: Mapping[str, np.ndarray]
    end: Mapping[str, np.ndarray] | None

    def initial(self) -> dict[str, np.ndarray]:
        return dict(self.start)

    def final(self) -> dict[str, np.ndarray] | None:
        return None if self.end is None else dict(self.end)

    def momentum(self) -> dict[str, np.ndarray]:
        return {}


def memory(
    keys: Mapping[str, np.ndarray],
    columns: Mapping[str, Sequence[Any]],
    *,
    values: Mapping[str, np.ndarray] | None = None,
    types: Mapping[str, str] | None = None,
    rows_of_slots: Mapping[str, np.ndarray] | None = None,
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

    Each recorded step is one update of plain SGD with a learning rate of 0.1. `watch`: by step, the one-step
    and the accumulated distance of every parameter from there on, of a way of 1.0.
    """
    values, rows_of_slots = values or {}, rows_of_slots or {}
    count = len(next(iter(columns.values())))
    full = {
        "slot": range(count),
        "step": [0] * count,
        "row": range(count),
        "position": [None] * count,
        "dataset": [None] * count,
        "label": [None] * count,
        "sample": range(count),
        **columns,
    }
    kinds = {**SLOTS, **{name: "DOUBLE" for name in columns if name not in SLOTS}, **(types or {})}
    layers = [
        Layer(
            name,
            rows.shape[1],
            values[name].shape[1] if name in values else 1,
            affine(rows.shape[1], f"{name}.weight", f"{name}.bias" if biases else None),
            "sample",
            name in rows_of_slots,
            name in values,
        )
        for name, rows in keys.items()
    ]
    manifest = Manifest(
        layers=layers,
        skipped={},
        optimizer="SGD" if rule else "Adam",
        rule=rule,
        reason="" if rule else "Adam is not linear in the gradients.",
        spaces={"sample": "slots"},
        columns={"sample": kinds},
        shards=[Shard(commits=1)],
        recording=False,
    )
    steps = sorted(set(full["step"]))
    parameters = [parameter.name for layer in layers if layer.values for parameter in layer.parameters]
    known, cache = tables_of("sgd"), Held()
    tables = {name: rows_table([], of) for name, of in known.items()}
    tables["slots"] = arrow_table({name: list(column) for name, column in full.items()}, kinds)
    tables["segments"] = rows_table(_segments(cache, keys, values, segment_rows), known["segments"])
    tables["steps"] = rows_table([(s, True, s, *SGD.values(), 1.0) for s in steps], known["steps"])
    tables["parameter_groups"] = rows_table([(s, 0, *SGD.values()) for s in steps], known["parameter_groups"])
    tables["factors"] = rows_table([(s, p, 0, 1.0, residual) for s in steps for p in parameters], known["factors"])
    tables["watch"] = rows_table(_watched(steps, parameters, watch or {}), known["watch"])
    tables["defects"] = rows_table(defects, known["defects"])
    mapped = [(name, slot, int(row)) for name, rows in rows_of_slots.items() for slot, row in enumerate(rows)]
    tables["key_rows"] = rows_table(mapped, known["key_rows"])
    made = ArrayMemory(Path("array-memory"), manifest, tables, cache)
    made.start, made.end = initial or {}, final
    return made


def engine(made: Snapshot, backend: str | None = "numpy") -> Engine:
    return Engine(made, choose(backend))


def _watched(
    steps: Sequence[int], parameters: Sequence[str], said: Mapping[int, tuple[float, float]]
) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    accumulated = 1e-7
    for step in steps:
        one_step, accumulated = said.get(step, (1e-8, accumulated))
        rows += [(step, name, one_step, accumulated, 1.0, 1e-8, 1e-8) for name in parameters]
    return rows


def _segments(
    cache: Held, keys: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray], size: int
) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for kind, matrices in (("keys", keys), ("values", values)):
        for layer, matrix in matrices.items():
            for start in range(0, len(matrix), size):
                file = f"{layer}-{kind}-{start}"
                part = np.ascontiguousarray(matrix[start : start + size], dtype=np.float32)
                part.flags.writeable = False
                cache.matrices[Path("array-memory/shard-00000") / file] = part
                rows.append((len(rows), layer, kind, file, start, len(part), part.nbytes, ""))
    return rows

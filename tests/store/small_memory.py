"""Small memories made straight through the writer, and everything they should read back as."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dualform.store.batch import (
    Batch,
    Defect,
    Ending,
    Extent,
    Factor,
    Header,
    LayerRows,
    ParameterGroup,
    StepLog,
    WatchLog,
)
from dualform.store.layer import Layer, Sampling, affine
from dualform.store.query_sets import QuerySetArrays
from dualform.store.reading.snapshot import Snapshot
from dualform.store.rows import OtherRow, Others, OtherTensor
from dualform.store.tables import SETTINGS as LR, ColumnTypes
from dualform.store.writing.writer import Writer

LAYERS = (
    Layer("layer-0", "sample", 6, 5, affine(6, "layer-0.weight", "layer-0.bias"), repeats=True),
    Layer("layer-1", "sample", 5, 3, affine(5, "layer-1.weight", None)),
)
NAMES = [block.name for layer in LAYERS for block in layer.parameters]
LENGTH = 4
"""Positions of a row in the space `token`."""
TOKENS = (
    Layer("every", "token", 4, 2, affine(4, "every.weight", None)),
    Layer("some", "token", 3, 2, affine(3, "some.weight", None), repeats=True),
    Layer("digested", "token", 3, 2, affine(3, "digested.weight", None), source="none", values=False),
)

OTHERS = Others((OtherTensor("norm.weight", "float32", (3,)), OtherTensor("norm.seen", "int64", ())))
"""What is kept of a norm, as `other_row` has it."""

SETTINGS = {
    "lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False,
}  # fmt: skip


@dataclass
class Expected:
    """What was appended, concatenated over all batches."""

    keys: dict[str, np.ndarray] = field(default_factory=dict)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    entries: dict[str, list[int]] = field(default_factory=dict)
    """Slots by layer."""
    columns: dict[str, list[Any]] = field(default_factory=dict)
    """Of the first space's view."""
    tokens: dict[str, list[Any]] = field(default_factory=dict)
    """Of the view `token`."""


def log(step: int, *parameters: str) -> StepLog:
    group = ParameterGroup(SETTINGS)
    factors = tuple(Factor(name, 0, 0.5, 1e-8) for name in parameters or NAMES)
    return StepLog(step, True, step, (group,), factors)


def samples(rng: np.random.Generator, sample: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "dataset": np.array([["first", "zweites ü", None][i % 3] for i in sample], dtype=object),
        "label": np.ma.MaskedArray(sample % 10, mask=sample % 7 == 0),
        "sample": sample,
        "weight": rng.normal(size=len(sample)),
        "seen": sample % 2 == 0,
    }


def batch(rng: np.random.Generator, step: int, rows: int, inputs: np.ndarray) -> Batch:
    """One step of `rows` samples whose first layer sees rows of `inputs` again and again."""
    sample = rng.integers(0, len(inputs), rows)
    said = samples(rng, sample)
    layers = {
        "layer-0": [LayerRows(0, inputs[sample], rng.normal(size=(rows, 5)).astype(np.float32))],
        "layer-1": [
            LayerRows(0, rng.normal(size=(rows, 5)).astype(np.float32), rng.normal(size=(rows, 3)).astype(np.float32))
        ],
    }
    defects = [Defect(step, "layer-1", "made up")] if step == 2 else []
    watch = [WatchLog(step, "layer-1.weight", 1e-9, 2e-9, 0.5, 1e-8, 3e-9)]
    return Batch(step, said, [Extent("sample", 0, rows, None)], layers, logs=[log(step)], defects=defects, watch=watch)


def other_values(at_step: int) -> dict[str, np.ndarray]:
    return {"norm.weight": np.float32([at_step, 0.1, -at_step]), "norm.seen": np.array(at_step + 7)}


def other_row(at_step: int) -> OtherRow:
    content = b"".join(own.tobytes() for own in other_values(at_step).values())
    return OtherRow(at_step, np.frombuffer(content, np.uint8))


def token_batch(rng: np.random.Generator, step: int, rows: int, joined: bool = False) -> Batch:
    """One step of tokens: call 0 regular, call 1 with a padding mask and rows that are not known.

    Layer "every" has both calls, "some" the second at odd steps only, "digested" the first.
    """
    n = rows * LENGTH
    row = rng.integers(-1, rows, rows + 1).astype(np.int32)
    position = rng.integers(0, 99, rows + 1)
    first = {"token": rng.integers(0, 9, n)} if step else {}
    if step >= 2:  # a text column that comes late, and hides the sample's column of its name
        first |= {"dataset": np.array(["the", None, "ü", ""] * rows, dtype=object)}
    extents = [Extent("token", 0, rows, LENGTH, columns=first), Extent("token", 1, rows, LENGTH, row, position)]
    layers = {
        "every": [token_rows(rng, 0, n, 4), token_rows(rng, 1, rows + 1, 4)],
        "digested": [token_rows(rng, 0, n, 3)],
    }
    if step % 2:
        layers["some"] = [token_rows(rng, 1, rows + 1, 3)]
    unknown = {"dataset": "unknown", "label": None, "sample": -5, "weight": 0.25, "seen": None}
    said = samples(rng, rng.integers(0, 99, rows))
    late = [layer for layer in TOKENS if joined and layer.name in layers]
    return Batch(step, said, extents, layers, unknown=unknown, joined=late, logs=[log(step, "every.weight")])


def token_rows(rng: np.random.Generator, call: int, n: int, width: int) -> LayerRows:
    keys = rng.integers(0, 2, (n, width)).astype(np.float32)
    return LayerRows(call, keys, rng.normal(size=(n, 2)).astype(np.float32))


def open_writer(
    path: Path,
    layers: tuple[Layer, ...] = LAYERS,
    settings: ColumnTypes = LR,
    others: Others | None = None,
    further: dict[str, np.ndarray] | None = None,
    sampling: Sampling | None = None,
    **options: Any,
) -> Writer:
    """`further`: initial weights beside those of LAYERS and `layers`, which are ones."""
    ones = {f"{layer.name}.weight": np.ones((layer.d_out, layer.d_in), np.float32) for layer in layers}
    initial = (
        ones
        | (further or {})
        | {"layer-0.weight": np.ones((5, 6), np.float32), "layer-0.bias": np.zeros(5, np.float32)}
    )
    header = Header(
        path,
        layers,
        optimizer="SGD",
        rule="sgd",
        reason="",
        initial=initial | {"layer-1.weight": np.ones((3, 5), np.float32)},
        skipped={"norm": "no tap for LayerNorm"},
        label_names={"first": ["zero", "one"]},
        settings=settings,
        others=others,
        sampling=sampling,
    )
    return Writer(header, **options)


def append_all(writer: Writer, batches: Iterable[Batch], commit_after: Collection[int] = ()) -> Writer:
    """Appends batches, with a commit after those of these numbers, and returns the writer."""
    for number, one in enumerate(batches):
        writer.append(one)
        if number in commit_after:
            writer.commit()
    return writer


def batches_of(sizes: list[int], seed: int = 0) -> list[Batch]:
    """The batches that `write` appends."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(12, 6)).astype(np.float32)
    inputs[0], inputs[1] = 0.0, -0.0
    return [batch(rng, step, rows, inputs) for step, rows in enumerate(sizes)]


def write(path: Path, sizes: list[int], seed: int = 0, commit_every: int = 2, finish: bool = True) -> Expected:
    """A memory of one step per entry of `sizes`, with other parameters, a query set and final weights."""
    batches = batches_of(sizes, seed)
    rng = np.random.default_rng(seed + 1)
    appended = (replace(one, others=[other_row(step)] if step else []) for step, one in enumerate(batches))
    commit_after = range(commit_every - 1, len(sizes), commit_every)
    writer = append_all(open_writer(path, others=OTHERS), appended, commit_after)
    if finish:
        queries = {
            "layer-0": rng.normal(size=(12, 6)).astype(np.float32),
            "layer-1": rng.normal(size=(12, 5)).astype(np.float32),
        }
        outputs = rng.normal(size=(12, 3)).astype(np.float32)
        writer.add_query_set(QuerySetArrays("test", queries, np.arange(12), outputs))
        writer.close(Ending(final={"layer-0.weight": np.full((5, 6), 2, np.float32)}))
    else:
        writer.abandon()
    return expected(batches, LAYERS)


def write_shards(
    path: Path, layers: tuple[Layer, ...], batches: list[list[Batch]], finish: bool = True, until: tuple[int, ...] = ()
) -> None:
    """A memory of a shard for each list of batches, of which each has a commit, and only so many steps if `until`."""
    writers = [
        open_writer(path, layers, shard_number=number, shards=len(batches), journal_seconds=60.0 if finish else 0.0)
        for number in range(len(batches))
    ]
    for number, (writer, own) in enumerate(zip(writers, batches, strict=True)):
        append_all(writer, own[: until[number] if until else None], (number,))
    for writer in reversed(writers):
        writer.close() if finish else writer.abandon()


def expected(batches: list[Batch], layers: tuple[Layer, ...]) -> Expected:
    """What a memory of these batches holds, by plain loops."""
    found = Expected(columns=view(batches, "sample"), tokens=view(batches, "token"))
    for layer in layers:
        parts = [(b, rows) for b in batches for rows in b.layers.get(layer.name, [])]
        found.keys[layer.name] = np.concatenate([np.empty((0, layer.d_in), np.float32), *(r.keys for _, r in parts)])
        values = [rows.values for _, rows in parts if rows.values is not None]
        found.values[layer.name] = np.concatenate([np.empty((0, layer.d_out), np.float32), *values])
        called = {(b.step, rows.call) for b, rows in parts}
        steps = view(batches, layer.space)
        found.entries[layer.name] = [
            slot
            for slot, step, call in zip(steps["slot"], steps["step"], steps["call"], strict=True)
            if (step, call) in called
        ]
    return found


def check_rows(memory: Snapshot, layers: tuple[Layer, ...], wanted: Expected) -> None:
    """Every entry, key and value of some layers is what was appended."""
    for layer in layers:
        entries = memory.entries(layer.name)
        assert entries.slots_of(np.arange(entries.count)).tolist() == wanted.entries[layer.name], layer.name
        if layer.keys:
            keys, values = memory.keys(layer.name), memory.values(layer.name)
            assert keys.entry_block(0, keys.entries).tobytes() == wanted.keys[layer.name].tobytes(), layer.name
            assert values.block(0, entries.count).tobytes() == wanted.values[layer.name].tobytes(), layer.name


def view(batches: list[Batch], space: str) -> dict[str, list[Any]]:
    """The columns of a space's view, slot by slot."""
    said = list(dict.fromkeys(name for b in batches for name in b.samples))
    tokens = list(dict.fromkeys(name for b in batches for e in b.extents if e.space == space for name in e.columns))
    columns: dict[str, list[Any]] = {name: [] for name in ("slot", "step", "row", "position", "call", *said, *tokens)}
    for one in batches:
        for extent in [each for each in one.extents if each.space == space]:
            for i in range(extent.slots):
                regular = i // (extent.length or 1)
                row = regular if extent.row is None else int(extent.row[i])
                position = None if extent.length is None else i % extent.length
                entry: dict[str, Any] = dict.fromkeys(columns)
                for name in said:
                    entry[name] = one.samples[name].tolist()[row] if row >= 0 else (one.unknown or {}).get(name)
                for name in tokens:
                    entry[name] = extent.columns[name].tolist()[i] if name in extent.columns else None
                entry |= {"slot": len(columns["slot"]), "step": one.step, "call": extent.call}
                entry["row"] = row if row >= 0 else None
                entry["position"] = position if extent.position is None else int(extent.position[i])
                for name, value in entry.items():
                    columns[name].append(value)
    return columns

"""Every answer over a key source is, bit for bit, that over the same keys as float32 rows."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

import dualform
from dualform.store.batch import Ending
from dualform.store.maintenance.check import check_memory
from dualform.store.reading.snapshot import Snapshot
from tests.cases import pairwise
from tests.store.small_memory import append_all
from tests.store.sources.twins import PAIRS, WEIGHTS, batch, writer

STEPS = 6


def committed(folder: Path, finish: bool = True) -> Path:
    """Two commits, of which the second has segments of two forms where keys are no bfloat16; or one, and a journal."""
    made = append_all(writer(folder), map(batch, range(STEPS)), (2,))
    if finish:
        made.close(Ending(final={name: weight - 1 for name, weight in WEIGHTS.items()}))
    else:
        made.abandon()
    return folder


def half_committed(folder: Path) -> Path:
    return committed(folder, finish=False)


def sharded(folder: Path) -> Path:
    made = [writer(folder, shard_number=number, shards=2) for number in range(2)]
    for step in range(STEPS):
        for number, own in enumerate(made):
            own.append(batch(step, seed=number))
            if step == number:
                own.commit()
    for own in reversed(made):
        own.close()
    return folder


def resumed(folder: Path) -> list[Path]:
    folders = [folder / "a", folder / "b"]
    folder.mkdir()
    for number, own in enumerate(folders):
        append_all(writer(own), (batch(step, seed=number) for step in range(3))).close()
    return folders


@pytest.fixture(
    scope="module",
    params=[(half_committed, "numpy"), (half_committed, "int8"), (sharded, "int8"), (resumed, "numpy")],
    ids=lambda kind: f"{kind[0].__name__}-{kind[1]}",
)
def engine(request, tmp_path_factory):
    made, backend = request.param
    path = made(tmp_path_factory.mktemp("sources") / "memory")
    for folder in path if isinstance(path, list) else [path]:
        assert check_memory(folder) == []
    with dualform.open(path, backend=backend) as opened:
        yield opened


def queries(pair):
    return np.random.default_rng(5).normal(size=(3, pair.layer.d_in)).astype(np.float32)


def flat(parts) -> tuple[list[int], bytes]:
    """Lengths and bits of arrays, or of lists of them."""
    arrays = [array for part in parts for array in (part if isinstance(part, list) else [part])]
    return [len(array) for array in arrays], np.concatenate(arrays).tobytes()


def test_the_best_slots(engine):
    ways = pairwise(["dot", "abs"], [None, "label = 3 OR step = 2"], [None, "label"])
    for pair, (score, where, by) in product(PAIRS, ways):
        found, wanted = (
            engine.topk(layer.name, queries(pair), k=3, where=where, by=by, score=score)
            for layer in (pair.layer, pair.twin)
        )
        assert flat(found.slots) == flat(wanted.slots), pair.layer.name
        assert flat(found.scores) == flat(wanted.scores), pair.layer.name
        assert len(found.slots[0])


def test_sums(engine):
    for pair, score in product(PAIRS, ("dot", "abs")):
        found, wanted = (
            engine.group_sum(layer.name, queries(pair), by="label", score=score) for layer in (pair.layer, pair.twin)
        )
        assert found.groups == wanted.groups, pair.layer.name
        assert found.sums.tobytes() == wanted.sums.tobytes(), pair.layer.name
        assert found.counts.tobytes() == wanted.counts.tobytes(), pair.layer.name


def test_outputs_and_weights(engine):
    weights = engine.weights(allow_inexact=True)
    for pair in PAIRS:
        found, wanted = (
            np.asarray(engine.output(layer.name, queries(pair), where="label <> 3", allow_inexact=True))
            for layer in (pair.layer, pair.twin)
        )
        assert found.tobytes() == wanted.tobytes(), pair.layer.name
        for own, twin in zip(pair.layer.parameters, pair.twin.parameters, strict=True):
            assert weights[own.name].numpy().tobytes() == weights[twin.name].numpy().tobytes(), own.name


def test_keys_and_values_of_single_slots(engine):
    ids = np.array([5, 1, 1, 11, 0])
    for pair, rows in product(PAIRS, (engine.keys, engine.values)):
        found, wanted = (rows(layer.name, ids) for layer in (pair.layer, pair.twin))
        assert found.tobytes() == wanted.tobytes(), pair.layer.name


def stored_type(source):
    """Of the numbers in a source's file."""
    return getattr(source, "stored", source).dtype.str


def test_files_are_as_small_as_their_source_makes_them(tmp_path):
    memory, own = Snapshot.open(committed(tmp_path / "memory")), [pair.layer.name for pair in PAIRS]
    types = {
        ("half", "keys"): ["<u2"] * 2,
        ("numbers", "keys"): ["<u4"] * 2,
        ("mixed", "keys"): ["<u2", "<f4"] * 2,
        ("half16", "keys"): ["<f2"] * 2,
        ("mixed16", "keys"): ["<f2", "<f4"] * 2,
        ("half", "values"): ["<f4"] * 2,  # as memories before had them
        ("half-repeats", "values"): ["<u2"] * 2,
        ("half16", "values"): ["<f2"] * 2,
        ("mixed", "values"): ["<u2", "<f4"] * 2,
        ("mixed16", "values"): ["<f2", "<f4"] * 2,
    }
    assert {kind: [stored_type(source) for source in memory.sources[kind]] for kind in types} == types
    entries = {name: memory.entries(name).count for name in own}
    stored = {name: sum(source.segment.rows for source in memory.sources[name, "keys"]) for name in own}
    assert stored["conv"] * 6 == entries["conv"]
    assert stored["conv-repeats"] * 8 == entries["conv-repeats"]
    assert stored["half-repeats"] == entries["half-repeats"] - 2 * (STEPS - 1)

"""A memory without keys: what it holds, what it answers, and how it refuses the rest."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import dualform
from dualform.errors import Damaged, Inexact, NotFound
from dualform.store.maintenance.check import check_memory
from dualform.store.reading.snapshot import Snapshot
from dualform.store.writing.slot_rows import digests
from dualform_client.cli import main

from .trained import Training


@pytest.fixture(scope="module")
def training():
    return Training(steps=4, tokens=6)


@pytest.fixture(scope="module")
def folder(training, tmp_path_factory):
    path = tmp_path_factory.mktemp("no-keys") / "m"
    training.run(lambda model, optimizer: dualform.Recorder(model, optimizer, path, keys=False))
    return path


def test_it_holds_slots_steps_weights_query_sets_and_no_matrix(folder, training, tmp_path):
    training.run(lambda model, optimizer: dualform.Recorder(model, optimizer, tmp_path / "stored"))
    stored, memory = Snapshot.open(tmp_path / "stored"), Snapshot.open(folder)
    assert not [path for path in folder.rglob("*") if path.suffix == ".faiss" or path.parent.parent.name == "layers"]
    (space,) = memory.manifest.spaces
    for name in memory.columns(space):
        assert memory.column(space, name).tolist() == stored.column(space, name).tolist()
    assert (
        memory.table("steps").select(["step", "lr", "momentum", "updated"]).to_pylist()
        == stored.table("steps").select(["step", "lr", "momentum", "updated"]).to_pylist()
    )
    assert all(np.array_equal(memory.final()[name], weight) for name, weight in stored.final().items())
    assert np.array_equal(memory.query_set("test").queries("0"), stored.query_set("test").queries("0"))
    assert stored.table("digests").num_rows == 0
    assert memory.table("digests").select(["step", "layer"]).to_pylist() == [
        {"step": step, "layer": layer} for step in range(4) for layer in ("0", "2")
    ]


def test_what_needs_keys_is_refused_and_the_rest_answered(folder):
    memory = dualform.open(folder)
    assert [(layer.distinct_keys, layer.values, layer.exact) for layer in memory.info().layers] == [
        (0, False, False)
    ] * 2
    assert memory.info().layers[0].reason == "neither keys nor error signals were recorded (keys=False)."
    for ask in (
        lambda: memory.topk("0", "test/0"),
        lambda: memory.group_sum("0", "test/0", by="label"),
        lambda: memory.group_sum("0", "test/0", by="label", score="abs"),
        lambda: memory.topk("0", dualform.SlotKeys((0,))),
    ):
        with pytest.raises(
            NotFound,
            match=r"The keys of layer '0' were not stored: the training was recorded with keys=False\. "
            r"Rerun the training with this query: dualform\.Rerun\(model, optimizer, path, "
            r"\[query\]\)\.",
        ):
            ask()
    with pytest.raises(Inexact, match="neither keys nor error signals were recorded"):
        memory.output("0", "test/0")
    with pytest.raises(Inexact, match="neither keys nor error signals were recorded"):
        memory.weights()
    assert not any(reconstruction.exact for reconstruction in memory.verify().values())
    assert memory.sql("SELECT count(*) AS steps FROM steps")["steps"].tolist() == [4]
    memory.close()


def test_check_and_the_command_line_know_it(folder, capfd):
    assert check_memory(folder) == []
    assert main(["info", str(folder), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["layers"][0]["distinct_keys"] == 0
    assert main(["topk", str(folder), "--layer", "0", "--query", "test/0", "--json"]) != 0
    assert json.loads(capfd.readouterr().out)["error"]["code"] == "not_found"
    assert main(["check", str(folder)]) == 0


def test_altered_digests_are_noticed(training, tmp_path):
    import duckdb

    training.run(lambda model, optimizer: dualform.Recorder(model, optimizer, tmp_path / "m", keys=False))
    with duckdb.connect(tmp_path / "m" / "shard-00000" / "slots.duckdb") as tables:
        tables.execute("UPDATE digests SET keys = 'beef' WHERE step = 2")
    said = "slots.duckdb was altered: column 'keys' of table 'digests' does not match its checksum."
    with pytest.raises(Damaged, match=re.escape(said)):
        Snapshot.open(tmp_path / "m").table("digests")
    (problem,) = check_memory(tmp_path / "m")
    assert problem.endswith(said)


def test_a_digest_covers_every_key_and_every_column(training):
    batches = []

    class Kept:
        def __init__(self, header):
            self.layers = {layer.name: layer.space for layer in header.layers}
            batches.append(self)

        def append(self, batch):
            self.batch = batch

        def tick(self): ...
        def commit(self): ...
        def add_query_set(self, query_set): ...
        def close(self, ending): ...

    training.run(lambda model, optimizer: dualform.Recorder(model, optimizer, "unused", keys=False, sink=Kept))
    (kept,) = batches
    batch = kept.batch
    before = digests(batch, kept.layers)
    assert before == digests(batch, kept.layers)
    assert before["0"].columns == before["2"].columns
    assert before["0"].keys != before["2"].keys
    keys = batch.layers["2"][0].keys
    keys[3, 2] = np.nextafter(keys[3, 2], np.float32(9))
    after = digests(batch, kept.layers)
    assert (after["0"], after["2"].columns) == (before["0"], before["2"].columns)
    assert after["2"].keys != before["2"].keys
    for name, other in others(batch):
        assert digests(other, kept.layers)["0"].columns != before["0"].columns, name
        assert digests(other, kept.layers)["0"].keys == before["0"].keys, name


def others(batch):
    """The batch with one thing that is said of its samples or slots changed or left out, and what that is."""
    for name, column in batch.samples.items():
        for columns in ({**batch.samples, name: changed(column)}, without(batch.samples, name)):
            yield name, replace(batch, samples=columns)
    (extent,) = batch.extents
    for name, column in extent.columns.items():
        for columns in ({**extent.columns, name: changed(column)}, without(extent.columns, name)):
            yield name, replace(batch, extents=[replace(extent, columns=columns)])
    for name in ("call", "rows", "length"):
        yield name, replace(batch, extents=[replace(extent, **{name: (getattr(extent, name) or 1) + 1})])
    for name in ("row", "position"):
        column = getattr(extent, name)
        column = np.zeros(extent.slots, np.int64) if column is None else changed(column)
        yield name, replace(batch, extents=[replace(extent, **{name: column})])
    yield "unknown", replace(batch, unknown={"label": 1})


def changed(column):
    """One entry of it."""
    if column.dtype == object:
        return np.array(["other", *column[1:]], dtype=object)
    if isinstance(column, np.ma.MaskedArray):
        return np.ma.MaskedArray(column.data, mask=np.arange(len(column)) > 0)
    return column + (np.arange(len(column)) == 5)


def without(columns, name):
    return {key: column for key, column in columns.items() if key != name}

"""What the writer puts on disk, read back by DuckDB, FAISS and NumPy alone."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import faiss
import numpy as np
import pytest
import xxhash
from hypothesis import Phase, example, given, settings, strategies as st

from dualform.errors import BadInput, NotAMemory
from dualform.store.batch import Batch, Extent, LayerRows, ParameterGroup, StepLog
from dualform.store.layer import Layer, Parameter, affine
from dualform.store.manifest import Manifest
from dualform.store.tables import quoted, running_digest
from tests.cases import some
from tests.store.small_memory import LAYERS, TOKENS, Expected, batches_of, expected, open_writer, token_batch

SIZES = st.lists(st.integers(0, 5), min_size=1, max_size=6)


def tables_of(path: Path) -> duckdb.DuckDBPyConnection:
    return duckdb.connect(path / "shard-00000" / "slots.duckdb", read_only=True)


def read_view(connection: duckdb.DuckDBPyConnection, view: str) -> dict[str, list[Any]]:
    found = connection.sql(f"SELECT * FROM {quoted(view)} ORDER BY slot").to_arrow_table()
    return found.to_pydict()


def rows_of(path: Path, layer: str, kind: str) -> np.ndarray:
    """Keys by FAISS, or values by NumPy, of all segments one after the other."""
    folder = path / "shard-00000" / "layers" / layer
    if kind == "values":
        return np.concatenate([np.load(file) for file in sorted(folder.glob("values-*.npy"))])
    indexes = [faiss.read_index(str(file)) for file in sorted(folder.glob("keys-*.faiss"))]
    assert {type(index) for index in indexes} == {faiss.IndexFlatIP}
    return np.concatenate([index.reconstruct_n(0, index.ntotal) for index in indexes])


def entries_of(connection: duckdb.DuckDBPyConnection, layer: str) -> list[int]:
    found = connection.execute("SELECT first_slot, slots FROM entries WHERE layer = ? ORDER BY 1", [layer]).fetchall()
    return [slot for first, slots in found for slot in range(first, first + slots)]


def key_rows_of(connection: duckdb.DuckDBPyConnection, layer: str) -> list[int]:
    found = connection.execute("SELECT * FROM key_rows WHERE layer = ? ORDER BY first_entry", [layer]).fetchall()
    rows: list[int] = []
    for _, first_entry, part in found:
        assert first_entry == len(rows)
        rows += part
    return rows


def check(path: Path, whole: Expected, layers: tuple[Layer, ...], view: str) -> None:
    with tables_of(path) as connection:
        assert read_view(connection, view) == whole.tokens
        for layer in layers:
            assert entries_of(connection, layer.name) == whole.entries[layer.name]
            if layer.keys and whole.entries[layer.name]:
                keys = rows_of(path, layer.name, "keys")
                keys = keys[key_rows_of(connection, layer.name)] if layer.repeats else keys
                assert keys.tobytes() == whole.keys[layer.name].tobytes()
                assert rows_of(path, layer.name, "values").tobytes() == whole.values[layer.name].tobytes()


@settings(max_examples=10, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(sizes=SIZES, seed=st.integers(0, 99), commit_every=st.integers(1, 4), seconds=st.sampled_from([0.0, 60.0]))
@example(sizes=[0], seed=0, commit_every=1, seconds=60.0)
def test_duckdb_and_faiss_alone_read_every_slot(sizes, seed, commit_every, seconds):
    rng = np.random.default_rng(seed)
    batches = [token_batch(rng, step, rows) for step, rows in enumerate(sizes)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory"
        writer = open_writer(path, layers=TOKENS, journal_seconds=seconds)
        for number, one in enumerate(batches):
            writer.append(one)
            if number % commit_every == commit_every - 1:
                writer.commit()
        writer.close()
        check(path, expected(batches, TOKENS), TOKENS, "slots")
        assert not list((path / "shard-00000").glob("journal-*"))


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_layers_and_spaces_may_join_later(tmp_path, seconds):
    rng = np.random.default_rng(0)
    first, joining, last = token_batch(rng, 0, 2), token_batch(rng, 1, 2, joined=True), token_batch(rng, 3, 2)
    before = Batch(0, first.samples, [], {}, first.unknown)
    writer = open_writer(tmp_path / "memory", layers=LAYERS, journal_seconds=seconds)
    for one in (before, joining, last):
        writer.append(one)
    writer.close()
    check(tmp_path / "memory", expected([before, joining, last], TOKENS), TOKENS, "token")
    manifest = Manifest.read(tmp_path / "memory")
    assert manifest.layers == [*LAYERS, *TOKENS]
    assert manifest.spaces == ["sample", "token"]
    assert manifest.columns["token"] == {"token": "BIGINT", "dataset": "VARCHAR"}


def test_samples_are_stored_once_and_datapoints_are_dense(tmp_path):
    rng = np.random.default_rng(0)
    batches = [token_batch(rng, step, 3) for step in range(4)]
    writer = open_writer(tmp_path / "memory", layers=TOKENS)
    for one in batches:
        writer.append(one)
    writer.close()
    with tables_of(tmp_path / "memory") as connection:
        found = connection.execute('SELECT datapoint, step, "row", sample FROM samples').fetchall()
        firsts = connection.execute('SELECT step, "call", first_datapoint, "rows" FROM extents_token').fetchall()
    said = [(b.step, row, s) for b in batches for row, s in [*enumerate(b.samples["sample"].tolist()), (None, -5)]]
    assert found == [(number, *each) for number, each in enumerate(said)]
    assert firsts == [(step, call, 4 * step, 3) for step in range(4) for call in range(2)]


def test_every_row_and_column_has_its_running_digest(tmp_path):
    rng = np.random.default_rng(0)
    writer = open_writer(tmp_path / "memory", layers=TOKENS)
    for step in range(5):
        writer.append(token_batch(rng, step, 3))
        writer.commit()
    writer.close()
    manifest = Manifest.read(tmp_path / "memory")
    with tables_of(tmp_path / "memory") as connection:
        for table, types in some(manifest.tables().items()):
            mark = manifest.shards[0].tables[table]
            rows = connection.sql(f"SELECT * FROM {quoted(table)}").to_arrow_table()
            assert mark.rows == rows.num_rows
            assert list(mark.digests) == list(types) == rows.column_names
            for column in types:
                log = 'SELECT "rows", digest FROM commits WHERE "table" = ? AND "column" = ?'
                digest, start = "", 0
                for stop, logged in connection.execute(log, [table, column]).fetchall():
                    digest = running_digest(digest, rows[column].slice(start, stop - start))
                    assert digest == logged
                    start = stop
                assert (digest, start) == (mark.digests[column], mark.rows)


def test_each_mebibyte_of_a_segment_has_its_checksum(tmp_path):
    layer = Layer("wide", "sample", 700, 3, affine(700, "wide.weight", None))
    writer = open_writer(tmp_path / "memory", layers=(layer,))
    rng = np.random.default_rng(0)
    for step in range(5):
        said = {name: np.zeros(300, np.int64) for name in ("label", "sample")} | {"dataset": np.full(300, None, object)}
        keys, values = rng.normal(size=(300, 700)).astype(np.float32), rng.normal(size=(300, 3)).astype(np.float32)
        writer.append(Batch(step, said, [Extent("sample", 0, 300, None)], {"wide": [LayerRows(0, keys, values)]}))
    writer.close()
    with tables_of(tmp_path / "memory") as connection:
        found = connection.execute('SELECT file, "bytes", blocks, "rows" FROM segments').fetchall()
    assert len(found) == 2
    for file, size, blocks, rows in found:
        content = (tmp_path / "memory" / "shard-00000" / file).read_bytes()
        assert (len(content), rows) == (size, 1500)
        pieces = [content[start : start + (1 << 20)] for start in range(0, size, 1 << 20)]
        assert blocks == b"".join(xxhash.xxh3_128_digest(piece) for piece in pieces)
    assert sum(len(blocks) for _, _, blocks, _ in found) > 32


def test_settings_are_those_that_the_optimizer_has(tmp_path):
    writer = open_writer(tmp_path / "memory")
    batches = batches_of([2, 2, 2])
    groups = ({"lr": 0.5}, {"lr": 0.25, "beta": 0.9, "amsgrad": True}, {})
    for one, group in zip(batches, groups, strict=True):
        logged = [StepLog(one.step, bool(group), None, (ParameterGroup(group),) if group else ())]
        writer.append(Batch(one.step, one.samples, one.extents, one.layers, logs=logged))
        writer.commit()
    writer.close()
    with tables_of(tmp_path / "memory") as connection:
        steps = connection.execute("SELECT step, updated, lr, beta, amsgrad FROM steps").fetchall()
        each = connection.execute('SELECT step, "group", lr, beta, amsgrad FROM parameter_groups').fetchall()
    assert steps == [(0, True, 0.5, None, None), (1, True, 0.25, 0.9, True), (2, False, None, None, None)]
    assert each == [(0, 0, 0.5, None, None), (1, 0, 0.25, 0.9, True)]


def test_settings_that_are_known_before_have_columns_from_the_start(tmp_path):
    writer = open_writer(tmp_path / "memory", settings={"lr": "DOUBLE", "nesterov": "BOOLEAN"})
    with tables_of(tmp_path / "memory") as connection:
        assert connection.sql("FROM steps").columns == ["step", "updated", "first_step", "lr", "clip", "nesterov"]
        assert connection.sql("FROM parameter_groups").columns == ["step", "group", "lr", "nesterov"]
    (one,) = batches_of([2])
    writer.append(one)
    writer.close()
    with tables_of(tmp_path / "memory") as connection:
        assert connection.sql("SELECT lr, nesterov, momentum FROM steps").fetchall() == [(0.1, False, 0.9)]
        assert connection.sql("FROM watch").fetchall() == [(0, "layer-1.weight", 1e-9, 2e-9, 0.5, 1e-8, 3e-9)]


def refused(path: Path, batches: list[Batch], layers: tuple[Layer, ...] = LAYERS) -> BadInput:
    writer = open_writer(path, layers=layers)
    for one in batches[:-1]:
        writer.append(one)
    with pytest.raises(BadInput) as raised:
        writer.append(batches[-1])
    writer.abandon()
    assert not list(path.rglob("*.tmp"))
    return raised.value


def test_a_sample_column_keeps_its_name_and_type(tmp_path):
    first, second = batches_of([2, 2])
    other = Batch(1, second.samples | {"weight": np.array([1, 2])}, second.extents, second.layers)
    error = refused(tmp_path / "type", [first, other])
    assert error.message == "column 'weight' was DOUBLE at the first step and is BIGINT now."
    more = Batch(1, second.samples | {"more": np.array([1, 2])}, second.extents, second.layers)
    error = refused(tmp_path / "more", [first, more])
    assert (error.message, error.field) == ("column 'more' was absent at the first step and is BIGINT now.", "more")


def test_a_token_column_keeps_its_type_and_may_come_late(tmp_path):
    rng = np.random.default_rng(0)
    first, second = token_batch(rng, 1, 2), token_batch(rng, 2, 2)
    changed = [Extent("token", 0, 2, 4, columns={"token": np.zeros(8)}), second.extents[1]]
    error = refused(tmp_path / "type", [first, Batch(2, second.samples, changed, second.layers)], TOKENS)
    assert error.message == "column 'token' was BIGINT when it was first said and is DOUBLE now."


@pytest.mark.parametrize("name", ["step", "Label", "position", "SEEN"])
def test_a_user_column_cannot_take_a_name_that_sql_could_not_tell_apart(tmp_path, name):
    (first,) = batches_of([2])
    error = refused(tmp_path / "m", [Batch(0, first.samples | {name: np.arange(2)}, first.extents, first.layers)])
    there = {"Label": "label", "SEEN": "seen"}.get(name, name)
    assert error.message.startswith(f"Column {name!r} cannot be recorded: every memory has a column {there!r}")


def test_rows_that_do_not_fit_their_extent_are_refused(tmp_path):
    (one,) = batches_of([3])
    short = {"layer-1": [LayerRows(0, np.zeros((2, 5), np.float32), np.zeros((2, 3), np.float32))]}
    error = refused(tmp_path / "short", [Batch(0, one.samples, one.extents, short)])
    assert error.message == "layer 'layer-1' has 2 keys for the 3 slots of call 0 in space 'sample'."
    second = {"layer-1": [LayerRows(1, np.zeros((3, 5), np.float32), np.zeros((3, 3), np.float32))]}
    error = refused(tmp_path / "second", [Batch(0, one.samples, one.extents, second)])
    assert error.message == "layer 'layer-1' has rows of call 1, and space 'sample' no such call."


def test_a_memory_of_format_1_is_refused_by_the_version_that_wrote_it(tmp_path):
    (tmp_path / "memory.json").write_text(json.dumps({"format": 1, "checksum": "of that time"}))
    with pytest.raises(NotAMemory) as raised:
        Manifest.read(tmp_path)
    assert raised.value.message == (
        f"{tmp_path} is a memory of format 1, written by dualform 0.1, which this version does not read."
    )
    assert raised.value.hint == "Open it with dualform 0.1, or record the training again."


def test_a_memory_of_a_later_format_is_refused(tmp_path):
    (tmp_path / "memory.json").write_text(json.dumps({"format": 3}))
    with pytest.raises(NotAMemory, match=r"format 3, newer than the 2 .* Upgrade dualform"):
        Manifest.read(tmp_path)


def test_a_layer_in_the_manifest_is_the_layer_again():
    blocks = (Parameter("in_proj", 0, 6, (6, 12)), Parameter("conv", 0, 6, None, True), Parameter("bias", 6, 7))
    layer = Layer("q", "token", 6, 5, blocks, "none", True, False, "bfloat16", "no values")
    assert Layer.from_json(json.loads(json.dumps(layer.to_json()))) == layer
    assert ([p.name for p in layer.weights], [p.name for p in layer.biases]) == (["in_proj", "conv"], ["bias"])


@pytest.mark.parametrize(
    ("said", "unread"),
    [({"source": "sketches"}, "source 'sketches'"), ({"stride": 2}, "stride")],
    ids=["source", "field"],
)
def test_layers_of_a_later_version_are_refused_as_such(tmp_path, said, unread):
    open_writer(tmp_path / "memory").close()
    manifest = Manifest.read(tmp_path / "memory")
    fields = [{**layer.to_json(), **(said if layer.name == "layer-1" else {})} for layer in manifest.layers]
    manifest.layers = [Described(one) for one in fields]
    manifest.write(tmp_path / "memory")
    with pytest.raises(NotAMemory) as raised:
        Manifest.read(tmp_path / "memory")
    said = f"layer 'layer-1' has {unread}, which this version of dualform does not read."
    assert raised.value.message == f"{tmp_path / 'memory' / 'memory.json'}: {said}"


class Described:
    """A layer as another version describes it."""

    def __init__(self, fields):
        self.fields = fields

    def to_json(self):
        return self.fields

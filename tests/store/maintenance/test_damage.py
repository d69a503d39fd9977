"""A file cut short or with one bit flipped is refused by name, or has no effect on anything that is read."""

from __future__ import annotations

import copy
import errno
import io
import json
import os
import re
import shutil
from contextlib import suppress
from functools import reduce
from operator import getitem
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import dualform
from dualform.errors import Damaged, DualformError, NotAMemory, Overloaded
from dualform.faults import as_dualform_error
from dualform.store import journal, manifest, weights as weights_files
from dualform.store.files import segment
from dualform.store.files.durable_files import checksum, unreadable
from dualform.store.locks import writing
from dualform.store.maintenance.check import check_memory
from dualform.store.maintenance.copying import repair
from dualform.store.manifest import _canonical
from dualform.store.reading import shard_tables
from dualform.store.reading.snapshot import Snapshot
from tests.cases import some
from tests.damage import flipped
from tests.store.small_memory import write

FLIPS_PER_FILE = 1
HOSTILE = (
    None, True, -1, 0, 1, 7, 2**31, 2**63, -(2**70), 0.5, float("nan"), "", "x", "../victim/shard-00000", "/etc/passwd",
    "..", "shard-00009", "a\0b", "\ud800", "0" * 32, [], [[]], [-1], ["x"], [1, 2], {}, {"x": 1}, {"": {}},
)  # fmt: skip
QUESTIONS = (
    ("info", (), {}),
    ("topk", ("0", "test"), {"k": 2}),
    ("group_sum", ("2", "test"), {"by": "label"}),
    ("output", ("2", "test"), {"where": "label <> 1"}),
    ("weights", (), {"at_step": 3}),
    ("topk", ("*", "traced"), {"k": 2, "score": "gradient"}),
    ("contributions", ("2", "test/0"), {"by": "label"}),
    ("query_set", ("test", "0"), {}),
    ("slots", ([0, 1],), {}),
    ("verify", (), {}),
    ("previews", ([1, 2], "first"), {}),
)
FLIPS_OF_THE_TABLES = 3


def everything(path: Path) -> list[bytes]:
    """All that a question could come from, as bytes."""
    memory = Snapshot.open(path)
    found = [repr((memory.commits, memory.steps, memory.layers, memory.skipped, memory.query_sets)).encode()]
    for layer in memory.layers:
        keys = memory.keys(layer)
        found += [keys.entry_block(0, keys.entries).tobytes(), memory.values(layer).block(0, keys.entries).tobytes()]
    for weights in (memory.initial(), memory.final() or {}):
        found += [name.encode() + weights[name].tobytes() for name in sorted(weights)]
    assert memory.others is not None
    for at_step in memory.others.moments:
        found += [own.tobytes() for own in (memory.others.at(at_step) or {}).values()]
    query_set = memory.query_set("test")
    assert query_set.labels is not None
    assert query_set.outputs is not None
    found += [query_set.labels.tobytes(), query_set.outputs.tobytes()]
    found += [query_set.queries(layer).tobytes() for layer in query_set.layers]
    # Behind the files, of which a damaged one is found sooner then; and at once, which is faster than one by one.
    memory.whole_tables(memory.manifest.tables())
    found += [repr(memory.column("sample", name).tolist()).encode() for name in memory.columns("sample")]
    return found + [repr(memory.table(n).to_pylist()).encode() for n in ("steps", "factors", "defects", "labels")]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "memory"
    write(path, [4, 3, 5])
    return path


@pytest.fixture
def path(sound, tmp_path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(sound, tmp_path / "memory"))


def files(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def refused(path: Path, file: str, before: list[bytes]) -> bool:
    """True where reading raised an error that names the file; False where everything reads as before."""
    try:
        after = everything(path)
    except (Damaged, NotAMemory) as error:
        named = path if isinstance(error, NotAMemory) else path / file
        assert str(named) in error.message  # noqa: PT017  either outcome is right, as long as it is one of the two
        return True
    assert after == before
    return False


def test_every_file_that_is_cut_short_missing_or_altered_is_refused_by_name_or_without_effect(sound, path):
    before, rng = everything(sound), np.random.default_rng(0)
    for number, file in some(enumerate(files(sound))):
        content = (path / file).read_bytes()
        (path / file).write_bytes(content[: -1 if number % 3 else 0])
        assert refused(path, file, before), f"{file} was cut short unnoticed"
        (path / file).unlink()
        assert refused(path, file, before), f"{file} is missing unnoticed"
        tables, caught = file.endswith(".duckdb"), 0
        tries = FLIPS_OF_THE_TABLES if tables else FLIPS_PER_FILE
        for bit in rng.integers(0, 8 * len(content), tries):
            (path / file).write_bytes(flipped(content, bit))
            caught += refused(path, file, before)
        (path / file).write_bytes(content)
        # DuckDB's file has unused room, and memory.json white space; every byte of the others counts.
        assert caught == tries or tables or file == "memory.json"


@pytest.fixture(scope="module")
def trained(small_run, tmp_path_factory) -> Path:
    """With two layers, others, query sets, preview sets and a further run."""
    return Path(shutil.copytree(small_run, tmp_path_factory.mktemp("edited") / "memory"))


def places(said: object, at: tuple = ()) -> list[tuple]:
    """Where something is said."""
    inner = said.items() if isinstance(said, dict) else enumerate(said) if isinstance(said, list) else ()
    return [at, *(place for name, own in inner for place in places(own, (*at, name)))]


def edited(said: dict, place: tuple, how: str, value: object) -> dict:
    """A manifest with one thing replaced, removed, said twice or called otherwise; its checksum is right."""
    said = copy.deepcopy(said)
    *above, last = place
    inside = reduce(getitem, above, said)
    if how == "remove":
        del inside[last]
    elif how == "twice":
        inside.insert(last, inside[last]) if isinstance(inside, list) else inside.update(x=inside[last])
    elif how == "rename" and isinstance(inside, dict) and isinstance(value, str):
        inside[value] = inside.pop(last)
    else:
        inside[last] = value
    said.pop("checksum", None)
    with suppress(UnicodeEncodeError):
        said["checksum"] = checksum(_canonical(said))
    return said


def asked(path: Path) -> list[str]:
    """What comes of every question: an answer, or a refusal. Anything else is raised."""
    found = []
    try:
        memory = dualform.open(path)
    except DualformError as error:
        assert str(path) in error.message  # noqa: PT017  it names the folder or a file in it
        return [error.code]
    with memory:
        for method, arguments, named in QUESTIONS:
            try:
                getattr(memory, method)(*arguments, **named)
                found.append("answered")
            except DualformError as error:
                found.append(error.code)
    check_memory(path)
    return found


@pytest.mark.filterwarnings("ignore::UserWarning")  # of layers that the edit takes away
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_memory_json_says_under_a_right_checksum_is_answered_or_refused(trained, data):
    said = json.loads((trained / "memory.json").read_text())
    before = {path: path.stat().st_mtime_ns for path in trained.parent.rglob("*") if path.is_file()}
    known = [place for place in places(said) if place and place != ("checksum",)]
    how, value = data.draw(st.sampled_from(["replace", "replace", "remove", "twice", "rename"])), None
    if how in ("replace", "rename"):
        value = data.draw(st.sampled_from(HOSTILE))
    other = edited(said, data.draw(st.sampled_from(known)), how, value)
    (trained / "memory.json").write_text(json.dumps(other))
    try:
        asked(trained)
    finally:
        (trained / "memory.json").write_text(json.dumps(said))
    after = {path: path.stat().st_mtime_ns for path in trained.parent.rglob("*") if path.is_file()}
    assert after.keys() == before.keys()


@pytest.mark.parametrize(
    ("place", "value", "refused"),
    [
        ("shards", [], "shards is [], where a list of 1 or more is expected"),
        ("shards.0.folder", "../victim/shard-00000", "a folder's name like shard-00000 is expected"),
        ("shards.0.folder", "/victim/shard-00000", "a folder's name like shard-00000 is expected"),
        ("shards.0.tables", {}, "shards[0].tables.samples is missing"),
        ("files", {}, "files needs 'weights/initial.safetensors'"),
        ("files", {"weights/../../victim": {"bytes": 1, "checksum": "0" * 32}}, "a file inside the memory's folder"),
        ("layers.0.d_in", -1, "layers[0].d_in is -1, where an integer from 0 to 2147483647 is expected"),
        ("layers.0.d_in", True, "layers[0].d_in is True"),
        ("layers.1.name", "layer-0", "a name that no other layer has is expected"),
        ("layers.1.space", "token", "one of the spaces is expected"),
        ("layers.0.groups", 4, "a divisor of d_in and d_out is expected"),
        ("layers.0.parameters.0.stop", 99, "a range of the layer's columns is expected"),
        ("layers.0.dtype", "float8", "one of bfloat16, float16, float32 is expected"),
        ("columns.samples.label", "TEXT", "one of BIGINT"),
        ("columns.steps.momentum", None, "columns.steps.momentum is None"),
        ("probes.test.layers", ["layer-9"], "the name of a layer is expected"),
        ("others", None, "others is None, where an object is expected"),
        ("recording", 0, "recording is 0, where true or false is expected"),
        ("format", 2.0, "format is 2.0"),
    ],
)
def test_an_edited_memory_json_is_refused_by_name(path, tmp_path, place, value, refused):
    (tmp_path / "victim").mkdir()
    said = json.loads((path / "memory.json").read_text())
    names = tuple(int(name) if name.isdigit() else name for name in place.split("."))
    (path / "memory.json").write_text(json.dumps(edited(said, names, "replace", value)))
    with pytest.raises(Damaged, match=re.escape(f"{path / 'memory.json'} was altered or cut short: ")) as error:
        Snapshot.open(path)
    assert refused in error.value.message
    assert list((tmp_path / "victim").iterdir()) == []


ADDED = {"galleries", "buffers", "aliases", "halved", "final", "marks", "runs", "repaired"}
"""What memory.json has, though the first memories of this format had it not."""


def test_a_memory_of_before_lacks_what_memory_json_has_since(path):
    said = json.loads((path / "memory.json").read_text())
    before = {name: own for name, own in said.items() if name not in ADDED}
    assert len(before) < len(said)
    (path / "memory.json").write_text(json.dumps(edited(before, ("format",), "replace", said["format"])))
    memory = Snapshot.open(path)
    assert (memory.count("sample"), memory.aliases, check_memory(path)) == (12, {}, [])


def test_layers_of_one_anothers_parameters_are_refused_and_found(sound, tmp_path):
    said = json.loads((sound / "memory.json").read_text())
    for number, name in enumerate(["layer-0.weight", "layer-1.weight "]):
        path = Path(shutil.copytree(sound, tmp_path / str(number)))
        other = edited(said, ("layers", 1, "parameters", 0, "name"), "replace", name)
        (path / "memory.json").write_text(json.dumps(other))
        with pytest.raises(Damaged, match=r"memory\.json was altered: 'layer-.*' does not fit weights/initial"):
            Snapshot.open(path).initial()
        assert len(check_memory(path)) == 2
        assert "lists updates of the parameter 'layer-1.weight', which no layer has" in check_memory(path)[0]


@pytest.mark.parametrize(
    "file", ["memory.json", "shard-00000/writing", "shard-00000/slots.duckdb", "weights/initial.safetensors"]
)
def test_a_pipe_is_no_file(path, file):
    (path / file).unlink(missing_ok=True)
    os.mkfifo(path / file)
    if file.endswith("writing"):
        assert Snapshot.open(path).writers == []
        assert writing(path / "shard-00000").going_on is None
        return
    with pytest.raises((Damaged, NotAMemory), match=re.escape(str(path / file))):
        Snapshot.open(path)


@pytest.mark.parametrize(
    "content",
    [b"nothing", b"\x93NUMPY\x01\x00\xff\xff{", "object", "float64", "rows", "huge"],
)
def test_a_query_set_that_is_no_array_of_its_kind_is_damaged_though_its_checksum_is_right(path, content):
    for file in ("probes/test/queries-layer-0.npy", "probes/test/labels.npy", "probes/test/outputs.npy"):
        if isinstance(content, str):
            other = {
                "object": np.array([None, "x"], dtype=object),
                "float64": np.load(path / file).astype(np.float64),
                "rows": np.load(path / file)[..., None],
                "huge": np.zeros(0, np.float32),
            }[content]
            stream = io.BytesIO()
            np.save(stream, other, allow_pickle=True)
            written = stream.getvalue()
            if content == "huge":
                written = written.replace(b"(0,), }", b"(9999999999999,), }")
        else:
            written = content
        (path / file).write_bytes(written)
        said = json.loads((path / "memory.json").read_text())
        entry = {"bytes": len(written), "checksum": checksum(written)}
        (path / "memory.json").write_text(json.dumps(edited(said, ("files", file), "replace", entry)))
    query_set = Snapshot.open(path).query_set("test")
    for read in (lambda: query_set.queries("layer-0"), lambda: query_set.labels, lambda: query_set.outputs):
        with pytest.raises(Damaged, match=re.escape(f"{path / 'probes' / 'test'}")):
            read()


@pytest.mark.parametrize("content", [b"", b"nothing", (2**62).to_bytes(8, "little") + b"{}", b"\x02\0\0\0\0\0\0\0{}"])
def test_weights_that_are_no_such_file_are_damaged_though_their_checksum_is_right(path, content):
    (path / "weights/initial.safetensors").write_bytes(content)
    said = json.loads((path / "memory.json").read_text())
    entry = {"bytes": len(content), "checksum": checksum(content)}
    other = edited(said, ("files", "weights/initial.safetensors"), "replace", entry)
    (path / "memory.json").write_text(json.dumps(other))
    with pytest.raises(Damaged, match=r"initial\.safetensors|memory\.json"):
        Snapshot.open(path).initial()


SHORT = (
    (MemoryError,), (OSError, errno.EMFILE, "Too many open files"), (OSError, errno.ENOMEM, "Cannot allocate memory"),
    (pa.ArrowMemoryError, "malloc of size 76864 failed"),
    (duckdb.OutOfMemoryException, "Out of Memory Error: Failed to allocate block of 262144 bytes (bad allocation)"),
    (duckdb.IOException, 'IO Error: Cannot open file "slots.duckdb": Too many open files'),
)  # fmt: skip


PLACES = (
    (manifest, "read_regular"), (journal, "read_regular"), (journal, "open_regular"), (weights_files, "read_regular"),
    (segment, "open_regular"), (shard_tables, "opened"), (shard_tables, "running_digest"),
)  # fmt: skip


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    path = tmp_path_factory.mktemp("unfinished") / "memory"
    write(path, [4, 3, 5], finish=False)
    return path


@pytest.mark.parametrize(
    ("module", "name", "error"),
    # DuckDB and Arrow raise errors of their own.
    [(*at, SHORT[number % 3]) for number, at in enumerate(PLACES)]
    + [(shard_tables, name, own) for name, own in zip(["opened", "running_digest", "opened"], SHORT[3:], strict=True)],
    ids=lambda given: f"{given[0].__name__} {given[-1]!s:.20}" if isinstance(given, tuple) else None,
)
def test_shortage_is_no_damage(unfinished, tmp_path, monkeypatch, module, name, error):
    """Neither is it said as damage, nor does a repair drop what could not be read."""

    def short(*given, **named):
        raise error[0](*error[1:])

    monkeypatch.setattr(module, name, short)
    for read in (everything, check_memory, lambda path: repair(path, tmp_path / "copy")):
        try:
            read(unfinished)
        except BaseException as raised:
            assert type(as_dualform_error(raised)) is Overloaded  # noqa: PT017  whichever of the two it was
        else:
            assert (module is weights_files, read is everything) == (True, False), "nothing was short"
        if module is segment:  # whose segments neither a check nor a repair opens like this
            return


def test_a_damaged_file_that_asks_for_more_than_any_machine_has_is_damaged(tmp_path):
    error = pa.ArrowMemoryError("malloc of size 9223372036854775807 failed")
    assert isinstance(unreadable(tmp_path / "slots.duckdb", error), Damaged)


def test_rows_that_a_cut_off_commit_left_behind_are_not_seen(tmp_path):
    """A cut between the DuckDB transaction and memory.json leaves the memory as of the commit before."""
    write(tmp_path / "older", [4, 3], finish=False)
    write(tmp_path / "longer", [4, 3, 5, 6], finish=False)
    shutil.copy(tmp_path / "older" / "memory.json", tmp_path / "longer" / "memory.json")
    assert Snapshot.open(tmp_path / "longer").count("sample") == 7

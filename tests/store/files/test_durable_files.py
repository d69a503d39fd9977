"""Files are whole or not there, whatever the file system takes, and what is derived from them is left out. Only
durable_files.py changes the disk: what tests make fail there is all that can fail, but DuckDB.
"""

from __future__ import annotations

import ast
import errno
import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import duckdb
import faiss
import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings, strategies as st

import dualform.store
from dualform.query.sql import worker
from dualform.record.setup.budget import disk_use
from dualform.store import locks
from dualform.store.batch import LayerRows
from dualform.store.files import durable_files
from dualform.store.files.durable_files import (
    ABANDONED_SECONDS,
    BLOCK_BYTES,
    CODES,
    SUM,
    Blocks,
    DerivedFile,
    DirectFile,
    write_derived,
)
from dualform.store.files.segment import flat_index, npy
from dualform.store.layer import Layer, affine
from dualform.store.writing.rows_writer import LayerWriter, MatrixWriter


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


def write_durably(path, blocks, size):
    file = DirectFile(path)
    try:
        file.write(blocks, 0, size)
        file.finish(size)
    finally:
        file.close()


def of_blocks(content: bytes) -> bytes:
    pieces = [content[start : start + BLOCK_BYTES] for start in range(0, len(content), BLOCK_BYTES)]
    return b"".join(xxhash.xxh3_128_digest(piece) for piece in pieces)


@settings(max_examples=10, deadline=None)
@given(
    batches=st.lists(st.integers(0, 400), max_size=5),
    width=st.sampled_from([1, 7, 784, 1024, 4096]),
    seed=st.integers(0, 99),
    ahead=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_what_was_appended_is_read_back(folder, batches, width, seed, ahead):
    rng, blocks = np.random.default_rng(seed), Blocks()
    for _ in range(2):  # the second file is gathered in blocks that held the first
        rows = [rng.normal(size=(n, width)).astype(np.float32) for n in batches]
        whole = np.concatenate([np.empty((0, width), np.float32), *rows])
        for path, form in ((folder / "keys.faiss", flat_index(width)), (folder / "values.npy", npy("<f4", width))):
            writer, unseen = MatrixWriter(path, form, blocks), b""
            for part, written in zip(rows, ahead, strict=False):
                writer.append(part)
                unseen += b"".join(writer.unseen())
                if written:
                    writer.write()
            assert unseen == whole.tobytes()
            size, checksums = writer.finish()
            content = path.read_bytes()
            assert (len(content), checksums) == (size, of_blocks(content))
            assert content == form.header(len(whole)) + whole.tobytes()
        assert np.load(folder / "values.npy").tobytes() == whole.tobytes()
        index = faiss.read_index(str(folder / "keys.faiss"))
        assert index.reconstruct_n(0, index.ntotal).tobytes() == whole.tobytes()


def test_a_file_has_its_name_at_once_where_it_cannot_get_one_later(tmp_path, monkeypatch):
    def refusing(*arguments, **options):
        raise OSError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(durable_files, "_NAMED_LATER", {})
    monkeypatch.setattr(os, "link", refusing)
    file = DirectFile(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    file.write([Blocks().take()], 0, 10)
    file.finish(10)
    assert (tmp_path / "file").stat().st_size == 10


@pytest.mark.skipif(not durable_files._NAMELESS, reason="this system gives every file a name as it is opened")
def test_what_is_not_finished_leaves_nothing_behind(tmp_path):
    file = DirectFile(tmp_path / "file")
    file.write([Blocks().take()], 0, BLOCK_BYTES)
    assert list(tmp_path.iterdir()) == []
    file.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [4096, BLOCK_BYTES + 1, 40 * BLOCK_BYTES + 5])
@pytest.mark.parametrize("refused", ["nothing", "opening", "writing"])
def test_without_direct_writes_the_page_cache_takes_them(tmp_path, monkeypatch, size, refused):
    content = np.random.default_rng(size).bytes(size)
    blocks = [Blocks().take() for _ in range(-(-size // BLOCK_BYTES))]
    for index, block in enumerate(blocks):
        part = content[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES]
        block[: len(part)] = part
    opened, written, direct = os.open, os.writev, durable_files._DIRECT

    def is_direct(handle):
        return durable_files.fcntl.fcntl(handle, durable_files.fcntl.F_GETFL) & direct

    def refusing_open(path, flags, mode=0o777):
        if refused == "opening" and flags & direct:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(path, flags, mode)

    def refusing_write(handle, parts):
        if refused == "writing" and is_direct(handle):
            raise OSError(errno.EINVAL, "Invalid argument")
        # A write may take less than it was given.
        return written(handle, [parts[0][:8192]]) if len(parts) == 1 else written(handle, parts)

    monkeypatch.setattr(os, "open", refusing_open)
    monkeypatch.setattr(os, "writev", refusing_write)
    write_durably(tmp_path / "file", blocks, size)
    assert (tmp_path / "file").read_bytes() == content


@pytest.mark.timeout(20)
def test_a_full_disk_and_a_file_system_that_takes_nothing_raise(tmp_path, monkeypatch):
    def full(handle, parts):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(OSError, match="No space left"):
        write_durably(tmp_path / "file", [Blocks().take()], 10)
    monkeypatch.setattr(os, "writev", lambda handle, parts: 0)
    with pytest.raises(OSError, match="did not write any bytes"):
        write_durably(tmp_path / "file", [Blocks().take()], 10)


def test_a_segment_that_failed_half_way_leaves_no_file_behind(tmp_path, monkeypatch):
    layer = Layer("fc", "sample", 3, 2, affine(3, "fc.weight", None))
    writer = LayerWriter(layer, tmp_path, Blocks())
    writer.folder.mkdir(parents=True)
    writer.append(LayerRows(0, np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)), 0, 4)
    renamed = os.replace

    def full(source, target):
        if "values" in str(target):
            raise OSError(errno.ENOSPC, "No space left on device")
        renamed(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        writer.finish(0)
    assert [path.name for path in writer.folder.glob("*.faiss")] == ["keys-000000.faiss"]
    writer.discard()
    assert list(writer.folder.iterdir()) == []


NUMBERS = np.arange(100.0)


def write_numbers(path: Path) -> None:
    write_derived(path, "numbers 1", "their origin", [(NUMBERS,)])


def written(path: Path) -> Path:
    path.write_bytes(b"a part")
    return path


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_whoever_writes_next_removes_what_nobody_writes_any_more(tmp_path):
    """Of a layer's folder, with files that a killed process was writing."""
    for name in (f"keys-000000.faiss{CODES}.tmp", f"0123{SUM}.tmp", "keys-000001.faiss.tmp", "notes.tmp"):
        age(written(tmp_path / name), 2 * ABANDONED_SECONDS)
    age(tmp_path / f"0123{SUM}.tmp", ABANDONED_SECONDS / 2)
    write_numbers(tmp_path / f"4567{SUM}")
    # What another process may be writing stays, and so does what is a segment's or somebody else's.
    left = [f"0123{SUM}.tmp", f"4567{SUM}", "keys-000001.faiss.tmp", "notes.tmp"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left
    age(tmp_path / left[0], 2 * ABANDONED_SECONDS)
    write_numbers(tmp_path / f"4567{SUM}")
    assert sorted(path.name for path in tmp_path.iterdir()) == left[1:]


def test_a_writer_whose_file_was_removed_meanwhile_leaves_no_part_of_one(tmp_path, monkeypatch):
    path, replace = tmp_path / f"0123{SUM}", os.replace

    def removed_before(temporary, target):
        temporary.unlink()
        replace(temporary, target)

    monkeypatch.setattr(durable_files.os, "replace", removed_before)
    write_numbers(path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    write_numbers(path)
    file = DerivedFile.open(path, "numbers 1", "their origin")
    assert np.array_equal(file.read(0).view(np.float64), NUMBERS)


def test_a_folder_that_cannot_be_listed_is_written_to_nevertheless(tmp_path, monkeypatch):
    def denied(folder):
        raise PermissionError("denied")

    monkeypatch.setattr(durable_files.os, "scandir", denied)
    write_numbers(tmp_path / f"0123{SUM}")
    assert DerivedFile.open(tmp_path / f"0123{SUM}", "numbers 1", "their origin") is not None


def test_derived_files_finished_or_not_are_left_out_of_what_a_memory_takes(tmp_path):
    layer = tmp_path / "m" / "shard-00000" / "layers" / "0"
    layer.mkdir(parents=True)
    written(layer / "keys-000000.faiss")
    before, own = disk_use(tmp_path / "m"), disk_use(tmp_path / "m", "shard-00000")
    for name in (f"keys-000000.faiss{CODES}", f"0123{SUM}", f"0123{SUM}.tmp", f"keys-000000.faiss{CODES}.tmp"):
        layer.joinpath(name).write_bytes(bytes(100_000))
    assert disk_use(tmp_path / "m") == before
    assert disk_use(tmp_path / "m", "shard-00000") == own
    layer.joinpath("keys-000001.faiss").write_bytes(bytes(100_000))
    assert disk_use(tmp_path / "m") >= before + 100_000


def without(monkeypatch, module, missing):
    """A module as it is loaded where another one cannot be imported."""
    monkeypatch.setitem(sys.modules, missing, None)
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_elsewhere", module.__file__)
    loaded = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, loaded.__name__, loaded)
    spec.loader.exec_module(loaded)
    return loaded


def test_a_folder_that_cannot_be_locked_is_said_to_be_open_to_others(monkeypatch, tmp_path):
    own = without(monkeypatch, locks, "fcntl")
    monkeypatch.setattr(own, "Manifest", SimpleNamespace(read=lambda folder: None))
    with own.folder_lock(tmp_path / "run", wait=True):
        pass
    with (
        pytest.warns(RuntimeWarning, match=r"^This system cannot lock .*\. Do not delete samples of it"),
        own.folder_lock(tmp_path / "run"),
    ):
        pass


def test_sql_is_answered_without_limits_of_the_system(monkeypatch):
    own = without(monkeypatch, worker, "resource")
    connection = duckdb.connect(":memory:")
    own._lock(connection, 1 << 30)
    answered = own.answer(connection, "SELECT 7 AS a", 10, 1 << 20, 1.0)
    assert pa.ipc.open_stream(answered.slice(len(worker.ROWS))).read_all().to_pylist() == [{"a": 7}]
    assert sys.meta_path  # this process goes on loading modules


def test_folders_are_not_synced_on_windows(monkeypatch, tmp_path):
    missing = tmp_path / "there is none"
    with monkeypatch.context() as patch:
        patch.setattr(durable_files.os, "name", "nt")
        durable_files.sync_folder(missing)
    with pytest.raises(FileNotFoundError):
        durable_files.sync_folder(missing)


PACKAGE = Path(dualform.store.__file__).parent.parent
DOOR = PACKAGE / "store" / "files" / "durable_files.py"
CALLS = {
    "close", "fdatasync", "fsync", "ftruncate", "link", "makedirs", "mkdir", "mkfifo", "mknod", "pwrite", "pwritev",
    "remove", "rename", "renames", "replace", "rmdir", "sendfile", "symlink", "truncate", "unlink", "utime", "write",
    "writev",
}  # fmt: skip
"""Of os."""
IMPORTED = {"PathLike", "fspath"}
METHODS = {
    "hardlink_to", "mkdir", "rename", "rmdir", "symlink_to", "tofile", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
"""Of paths and arrays. Path.replace is told from that of strings by its one argument."""
BESIDE = {
    "store/locks.py": ["os.close"],  # of a folder that is opened for its lock, and read
    "store/files/startup.py": ["open", "os.sendfile"],  # to the null device, so that pages are read
}
"""By file, what it calls once and changes nothing with."""


def changes(tree: ast.AST) -> Iterator[str]:
    """All in a source that changes the disk, or opens a file for that; also what others are to call."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    reading = [call.func for call in calls if any(getattr(flag, "attr", "") == "O_RDONLY" for flag in call.args[1:2])]
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name("os"), name) if name in CALLS or (name == "open" and node not in reading):
                yield f"os.{name}"
            case ast.Attribute(ast.Name("shutil"), name) if name != "disk_usage":
                yield f"shutil.{name}"
            case ast.Attribute(owner, name) if name in METHODS and ast.unparse(owner) != "os":
                yield f".{name}"
            case ast.ImportFrom("os" | "shutil", names):
                yield from (f"import {name.name}" for name in names if name.name not in IMPORTED)
            case ast.Call(ast.Attribute(_, "replace"), [_], []):
                yield ".replace"
            case ast.Call(ast.Name("open"), [_, *mode]) if writes(mode, node):
                yield "open"
            case ast.Call(ast.Attribute(owner, "open"), mode) if writes(mode, node) and ast.unparse(owner) != "os":
                yield ".open"


def writes(mode: list[ast.expr], call: ast.Call) -> bool:
    """Whether a file is opened for writing, as its mode says, given in its place or by name."""
    said = mode + [word.value for word in call.keywords if word.arg == "mode"]
    return any(
        isinstance(one, ast.Constant) and isinstance(one.value, str) and set(one.value) & set("wax+") for one in said
    )


def test_nothing_else_changes_the_disk():
    found = {
        file.relative_to(PACKAGE).as_posix(): sorted(changes(ast.parse(file.read_text("utf-8"))))
        for room in ("store", "record", "deletion")
        for file in sorted((PACKAGE / room).rglob("*.py"))
        if file != DOOR
    }
    assert {file: own for file, own in found.items() if own} == BESIDE

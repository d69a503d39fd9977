"""Matrix files are the same whether the file system takes direct writes or not, and wherever blocks end."""

from __future__ import annotations

import errno
import os

import faiss
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings, strategies as st

from dualform.store.batch import LayerRows
from dualform.store.files import durable_files
from dualform.store.files.durable_files import BLOCK_BYTES, Blocks, DirectFile
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


def test_rows_whose_memory_others_have_are_not_asked_for(tmp_path):
    writer = MatrixWriter(tmp_path / "values.npy", npy("<f4", 1024), Blocks())
    writer.append(np.zeros((1024, 1024), np.float32))
    writer.write()
    with pytest.raises(AssertionError, match="whose memory others have"):
        writer.unseen()
    writer.discard()


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


def test_a_file_takes_the_place_of_another(tmp_path):
    (tmp_path / "file").write_bytes(b"before")
    write_durably(tmp_path / "file", [Blocks().take()], 10)
    assert (tmp_path / "file").stat().st_size == 10


@pytest.mark.parametrize("size", [1, 4096, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 40 * BLOCK_BYTES + 5])
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


def test_a_full_disk_raises(tmp_path, monkeypatch):
    def full(handle, parts):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(OSError, match="No space left"):
        write_durably(tmp_path / "file", [Blocks().take()], 10)


@pytest.mark.timeout(20)
def test_a_file_system_that_takes_nothing_raises(tmp_path, monkeypatch):
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

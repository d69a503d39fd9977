"""A question's files are asked of the disk before they are read; whatever that meets, nothing is said of it."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading

import numpy as np
import pytest

from dualform.store import manifest, shard
from dualform.store.files import durable_files, startup
from dualform.store.layer import Layer, affine


@pytest.fixture
def asked(monkeypatch):
    """The files that the system read, in order, once all readers have ended; a call brings no more than two bytes."""
    files, send = {}, os.sendfile

    def sent(out, file, first, count):
        assert os.readlink(f"/proc/self/fd/{out}") == os.devnull
        got = send(out, file, first, min(count, 2))
        path = os.readlink(f"/proc/self/fd/{file}")
        assert files.get(path, 0) == first
        files[path] = first + got
        return got

    monkeypatch.setattr(os, "sendfile", sent)
    monkeypatch.setattr(startup, "READERS", 1)  # several take files from one queue, in whatever order they come

    def found():
        ended()
        assert {path: os.stat(path).st_size for path in files} == files, "whole files"
        return list(files)

    return found


def ended():
    for thread in threading.enumerate():
        if thread.name == "dualform-ahead":
            thread.join(10)


@pytest.fixture
def folder(tmp_path):
    layer = Layer("block/0", "sample", 2, 2, affine(2, "w", None))
    for name in ("shard-00001", "shard-00000"):
        own = tmp_path / name / "layers" / layer.folder
        own.mkdir(parents=True)
        (tmp_path / name / shard.FILE).write_bytes(b"tables")
        for file in (
            f"keys-000001.faiss{durable_files.CODES}",
            f"keys-000000.faiss{durable_files.CODES}",
            "keys-000000.faiss",
        ):
            (own / file).write_bytes(b"keys")
    (tmp_path / manifest.FILE).write_bytes(b"{}")
    return tmp_path


def test_tables_come_first_then_codes_of_the_layers(folder, asked):
    startup.read_ahead(str(folder), ["block/0", "none"])
    shards = [folder / name for name in ("shard-00000", "shard-00001")]
    codes = [
        own / "layers" / "block%2F0" / f"keys-{number:06}.faiss{durable_files.CODES}"
        for own in shards
        for number in (0, 1)
    ]
    expected = [folder / manifest.FILE, *(own / shard.FILE for own in shards), *codes]
    assert asked() == list(map(str, expected))


def test_queries_of_a_query_set_come_before_codes_and_without_them_where_none_are_asked(folder, asked):
    queries = folder / "probes" / "test" / "queries-block%2F0.npy"
    queries.parent.mkdir(parents=True)
    queries.write_bytes(b"queries")
    startup.read_ahead(str(folder), ["block/0"], ["test", "none"], codes=False)
    tables = [folder / name / shard.FILE for name in ("shard-00000", "shard-00001")]
    assert asked() == list(map(str, [folder / manifest.FILE, *tables, queries]))


def test_it_stops_at_half_of_the_memory_that_there_is(folder, asked, monkeypatch):
    monkeypatch.setattr(startup, "_memory", lambda: 2 * len(b"{}tablestableskeys"))
    startup.read_ahead(str(folder), ["block/0"])
    assert [os.path.basename(file) for file in asked()][3:] == [f"keys-000000.faiss{durable_files.CODES}"]


def test_what_is_missing_or_refused_goes_unsaid(folder, asked, monkeypatch):
    startup.read_ahead(str(folder / "nothing"), ["block/0"])
    assert asked() == []
    startup.read_ahead(str(folder), [os.fsdecode(b"latin-\xfc")])
    assert asked() == []

    def refuse(*_):
        raise OSError("this file system sends nothing")

    monkeypatch.setattr(os, "sendfile", refuse)
    startup.read_ahead(str(folder), [])
    assert asked() == []
    monkeypatch.delattr(os, "sendfile")
    startup.read_ahead(str(folder), [])
    assert asked() == []


@pytest.mark.skipif(sys.platform != "linux", reason="reading ahead is Linux's")
def test_a_whole_file_comes_into_the_page_cache_however_far_the_system_reads_ahead_by_itself(folder):
    large = folder / "shard-00000" / "layers" / "block%2F0" / f"keys-000002.faiss{durable_files.CODES}"
    large.write_bytes(os.urandom(40 << 20))
    descriptor = os.open(large, os.O_RDWR)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(descriptor, 0) as mapped:
            if resident(mapped):
                pytest.skip("this file system keeps what it was told to drop")
            startup.read_ahead(str(folder), ["block/0"])
            ended()
            assert resident(mapped) == len(mapped) // mmap.PAGESIZE
    finally:
        os.close(descriptor)


def resident(mapped):
    """Pages of it that the page cache holds."""
    pages = np.empty(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
    place = np.frombuffer(mapped, np.uint8).ctypes.data
    assert not ctypes.CDLL(None).mincore(ctypes.c_void_p(place), ctypes.c_size_t(len(mapped)), pages.ctypes)
    return int((pages & 1).sum())

"""A question's files are asked of the disk before they are read; whatever that meets, nothing is said of it."""

from __future__ import annotations

import os
import threading

import pytest

from dualform.store import derived_file, manifest, read_ahead, shard
from dualform.store.layer import Layer, affine


@pytest.fixture
def asked(monkeypatch):
    """The files that the system was to read, in order, once the thread has ended."""
    files = []

    def advise(descriptor, *_):
        files.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "posix_fadvise", advise, raising=False)

    def found():
        for thread in threading.enumerate():
            if thread.name == "dualform-ahead":
                thread.join(10)
        return files

    return found


@pytest.fixture
def folder(tmp_path):
    layer = Layer("block/0", "sample", 2, 2, affine(2, "w", None))
    for name in ("shard-00001", "shard-00000"):
        own = tmp_path / name / "layers" / layer.folder
        own.mkdir(parents=True)
        (tmp_path / name / shard.FILE).write_bytes(b"tables")
        for file in (
            f"keys-000001.faiss{derived_file.CODES}",
            f"keys-000000.faiss{derived_file.CODES}",
            "keys-000000.faiss",
        ):
            (own / file).write_bytes(b"keys")
    (tmp_path / manifest.FILE).write_bytes(b"{}")
    return tmp_path


def test_tables_come_first_then_codes_of_the_layers(folder, asked):
    read_ahead.read_ahead(str(folder), ["block/0", "none"])
    shards = [folder / name for name in ("shard-00000", "shard-00001")]
    codes = [
        own / "layers" / "block%2F0" / f"keys-{number:06}.faiss{derived_file.CODES}"
        for own in shards
        for number in (0, 1)
    ]
    expected = [folder / manifest.FILE, *(own / shard.FILE for own in shards), *codes]
    assert asked() == list(map(str, expected))


def test_it_stops_at_half_of_the_memory_that_there_is(folder, asked, monkeypatch):
    monkeypatch.setattr(read_ahead, "_memory", lambda: 2 * len(b"{}tablestableskeys"))
    read_ahead.read_ahead(str(folder), ["block/0"])
    assert [os.path.basename(file) for file in asked()][3:] == [f"keys-000000.faiss{derived_file.CODES}"]


def test_what_is_missing_or_refused_goes_unsaid(folder, asked, monkeypatch):
    read_ahead.read_ahead(str(folder / "nothing"), ["block/0"])
    assert asked() == []

    def refuse(*_):
        raise OSError("no advice is taken")

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    read_ahead.read_ahead(str(folder), [])
    assert asked() == []
    monkeypatch.delattr(os, "posix_fadvise")
    read_ahead.read_ahead(str(folder), [])
    assert asked() == []

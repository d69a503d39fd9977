"""What a process does with the C library's memory, and reading ahead of what a question needs."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import threading

import pytest

from dualform.store import manifest, shard
from dualform.store.files import durable_files, startup
from dualform.store.files.ram_budget import anonymous_bytes
from dualform.store.layer import Layer, affine

FREED = """
import sys, threading
import numpy as np
from dualform.store.files.startup import return_large_blocks
from dualform.store.files.ram_budget import anonymous_bytes

def use(megabytes):
    for size in megabytes:
        array, other = np.ones(size << 17), np.ones(3 << 17)

use([30])  # from then on glibc maps no smaller block by itself
if "early" in sys.argv:
    return_large_blocks()
before = anonymous_bytes()
meet = threading.Barrier(5)

def work():
    meet.wait()
    for _ in range(3):
        use([25, 12, 20, 9])
    meet.wait()
    meet.wait()

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
meet.wait()
meet.wait()
print(anonymous_bytes() - before)
meet.wait()
"""


def kept(*how: str) -> int:
    untold = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", FREED, *how]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=untold)
    return int(ran.stdout)


@pytest.mark.skipif(
    not anonymous_bytes() or platform.libc_ver()[0] != "glibc",
    reason="the system does not say what a process holds, or its C library has no such parameters",
)
def test_what_threads_free_is_the_systems_again():
    assert kept("early") < 30e6 < 60e6 < kept()


ARENAS = """
import ctypes, sys, threading
from dualform.store.files.startup import bound_arenas

if sys.argv[2] == "bounded":
    bound_arenas()
libc, together = ctypes.CDLL(None), threading.Barrier(8)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p

def allocate():
    together.wait()
    libc.malloc(1000)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="the C library is not glibc")
@pytest.mark.parametrize(("kind", "few"), [("bounded", True), ("as it is", False)])
def test_threads_share_two_pools_of_memory(tmp_path, kind, few):
    subprocess.run([sys.executable, "-c", ARENAS, str(tmp_path / "info"), kind], check=True, timeout=60)
    pools = (tmp_path / "info").read_text().count("<heap ")
    assert (pools <= 2) == few


HELD = """
import ctypes
from dualform.store.files.startup import return_free_pages
from dualform.store.files.ram_budget import anonymous_bytes

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [libc.malloc(1000) for _ in range(100_000)]
for block in blocks:
    ctypes.memset(block, 1, 1000)
for number, block in enumerate(blocks):
    if number % 100 != 99:  # so that none of it lies at the end
        libc.free(block)
before = anonymous_bytes()
return_free_pages()
print(before - anonymous_bytes())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_free_pages_between_blocks_in_use_are_returned():
    ran = subprocess.run([sys.executable, "-c", HELD], check=True, timeout=60, capture_output=True, text=True)
    assert int(ran.stdout) > 50_000_000


COMMITS = """
import sys
from pathlib import Path

import numpy as np

from dualform.store import shard
from dualform.store.files.ram_budget import anonymous_bytes
from dualform.store.tables import arrow_table

types = {f"c{number}": "DOUBLE" for number in range(40)}
path, generator = Path(sys.argv[1]), np.random.default_rng(0)
rows = {"numbers": arrow_table({name: generator.normal(size=20_000) for name in types}, types)}
marks = shard.create(path, {"numbers": types}, [])
marks = shard.append(path, 0, rows, marks)
before = anonymous_bytes()
for commit in range(1, 7):
    marks = shard.append(path, commit, rows, marks)
print(rows["numbers"].nbytes, anonymous_bytes() - before)
"""


@pytest.mark.skipif(not anonymous_bytes(), reason="the system does not say what a process holds")
def test_what_a_commit_took_is_let_go(tmp_path):
    """Six commits of six megabytes left ninety."""
    command = [sys.executable, "-c", COMMITS, str(tmp_path / "slots.duckdb")]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout
    rows, held = map(int, said.split())
    assert held < rows


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

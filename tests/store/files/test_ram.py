"""A budget of bytes: who keeps, who claims, who waits, and what the machine has. What a process does with the C
library's memory, and reading ahead of what a question needs.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from hypothesis import given, settings, strategies as st

from dualform.errors import BadInput, Cancelled, Overloaded
from dualform.store import manifest, shard
from dualform.store.files import durable_files, ram_budget, startup
from dualform.store.files.ram_budget import RamBudget, anonymous_bytes, memory_bytes
from dualform.store.layer import Layer, affine


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    """Numbers here are of budgets that leave 15 in 100 to the allocator."""
    monkeypatch.setattr(ram_budget, "_ACCOUNTED", 0.85)


def test_what_was_used_longest_ago_goes_first_whosever_it_is():
    budget, one, two = RamBudget(100, 40), object(), object()
    budget.keep(one, "a", "A", 40)
    budget.keep(two, "a", "B", 40)
    budget.keep(one, "large", "C", 41)
    assert budget.find(one, "large") is None
    assert budget.find(one, "a") == "A"
    budget.keep(two, "b", "D", 30)
    assert (budget.find(one, "a"), budget.find(two, "a"), budget.find(two, "b")) == ("A", None, "D")
    budget.keep(two, "b", "D", 10)
    assert (budget.kept_bytes, budget.bytes_of(one), budget.bytes_of(two)) == (50, 40, 10)
    with budget.claimed(70, lambda: None):
        assert budget.kept_bytes == 10
    budget.forget(two)
    assert budget.kept_bytes == 0


def test_who_came_first_is_served_first_though_smaller_claims_would_fit():
    budget, order, threads = RamBudget(100), [], []

    def ask(size):
        with budget.claimed(size, lambda: None):
            order.append(size)

    with budget.claimed(30, lambda: None):
        for size in (90, 20, 70):
            threads.append(threading.Thread(target=ask, args=(size,)))
            threads[-1].start()
            while len(budget._line) + len(order) < len(threads):
                time.sleep(0.001)
        threads[1].join(0.15)  # long enough to be let in, were there no line
    for thread in threads:
        thread.join(60)
    assert order[0] == 90
    assert sorted(order) == [20, 70, 90]


@settings(deadline=None, max_examples=10)
@given(st.lists(st.tuples(st.integers(1, 100), st.booleans()), min_size=2, max_size=8))
def test_any_claims_are_served_or_given_up_and_never_together_too_many(claims):
    budget, held, most, served = RamBudget(100), [0], [0], [0]
    lock = threading.Lock()

    def leave():
        raise Cancelled("the question was given up")

    def ask(size, patient):
        with suppress(Cancelled), budget.claimed(size, (lambda: None) if patient else leave):
            with lock:
                held[0] += size
                most[0] = max(most[0], held[0])
                served[0] += patient
            time.sleep(0.001)
            with lock:
                held[0] -= size

    with ThreadPoolExecutor(len(claims)) as pool:
        for asked in [pool.submit(ask, *claim) for claim in claims]:
            asked.result(60)
    assert most[0] <= 100
    assert served[0] == sum(patient for _, patient in claims)
    with budget.claimed(100, leave):
        pass


def test_caches_make_room_for_what_a_process_holds_and_nobody_counts():
    budget, owner, held = RamBudget.shared(1000), object(), [100]
    budget.leave(100, 100, lambda: held[0])
    for number in range(4):
        budget.keep(owner, number, number, 150)
    assert (budget.most_bytes, budget.kept_bytes) == (765, 600)
    held[0] = 100 + 600 + 101  # of a thousand bytes 135 are left to the allocator, a quarter of them till the next look
    with budget.claimed(165, lambda: None):
        assert budget.kept_bytes == 600
    held[0] += 1
    with budget.claimed(165, lambda: None):
        assert budget.kept_bytes == 450
        held[0] = 100 + 450 + 101  # of the claim nothing is in use yet, and what is uncounted seems to be gone
        with budget.claimed(150, lambda: None):
            assert budget.kept_bytes == 300
    held[0] = 100 + 300
    budget.keep(owner, 5, 5, 150)
    with budget.claimed(300, lambda: None):
        assert budget.kept_bytes == 450


def test_a_question_that_finds_no_room_beside_what_nobody_counts_is_refused_once_that_stays(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(ram_budget, "_LOOK", 0.001)
    monkeypatch.setattr(ram_budget.time, "monotonic", lambda: clock[0])
    budget, owner, held, looks = RamBudget.shared(1000), object(), [100], []
    budget.leave(100, 100, lambda: held[0])
    held[0] = 600

    def look():
        looks.append(None)
        clock[0] += 0.3
        if len(looks) == 3:
            held[0] = 300

    with budget.claimed(500, look):
        assert len(looks) == 3
    held[0] = 600
    refused = pytest.raises(Overloaded, match=r"needs about 500 bytes of RAM; 366 bytes of the limit are free")
    looks[:] = [None] * 10
    with refused, budget.claimed(500, look):
        pass
    assert len(looks) == 14  # more than a second
    with refused, budget.claimed(500, look):
        pass
    assert len(looks) == 14  # nor does the next one keep anyone up who waits behind it
    with budget.claimed(366, look):
        assert not budget._line
    held[0] = 0  # what the system does not say this once is what it said before
    assert budget._room() == 366
    budget.keep(owner, 1, 1, 100)
    held[0] = 100 + 250 + 101  # what is kept takes more than it said
    monkeypatch.setattr(budget, "_drop", lambda *place: (held.__setitem__(0, 100), RamBudget._drop(budget, *place)))
    with budget.claimed(700, look):
        assert budget.kept_bytes == 0


def test_memories_that_share_a_budget_take_what_they_need_of_one_bound():
    budget = RamBudget.shared(1000)
    budget.leave(200, 100)
    assert (budget.most_bytes, budget.largest) == (680, 170)
    budget.leave(300, 100)
    assert (budget.most_bytes, budget.largest) == (425, 106)
    budget.leave(-300, 100)
    assert budget.most_bytes == 425
    with pytest.raises(BadInput, match=r"^ram=1 kB is too small: opening the memory takes 900 bytes"):
        budget.leave(400, 100)


GB = 10**9


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GB // 4096}.get)
    (tmp_path / "proc/self").mkdir(parents=True)

    def build(groups, **files):
        (tmp_path / "proc/self/cgroup").write_text(groups)
        for name, text in files.items():
            file = tmp_path / "sys/fs/cgroup" / name.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            # A dot is none of Python's names.
            file.with_name(file.name.replace("max", "memory.max").replace("limit", "memory.limit_in_bytes")).write_text(
                text
            )
        return tmp_path

    return build


NONE = "9223372036854771712\n"


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        ("0::/\n", {}, 64 * GB),
        ("0::/\n", {"max": "max\n"}, 64 * GB),
        # A container of version 2, a service of systemd, and a slice above it that has less.
        ("0::/\n", {"max": "2000000000\n"}, 2 * GB),
        ("0::/system.slice/a.service\n", {"system.slice__a.service__max": "3000000000\n"}, 3 * GB),
        ("0::/a/b\n", {"a__b__max": "3000000000\n", "a__max": "1000000000\n"}, GB),
        # Version 1: a group by its path, a container that sees its own as the root, and no limit.
        ("9:name=systemd:/\n4:memory:/a/b\n0::/\n", {"memory__a__b__limit": "5000000000\n"}, 5 * GB),
        ("4:cpu,memory:/docker/0123\n", {"memory__limit": "1000000000\n"}, GB),
        ("4:memory:/a\n", {"memory__a__limit": NONE, "memory__limit": NONE}, 64 * GB),
        # What is no such file.
        ("nonsense\n", {"max": "two\n"}, 64 * GB),
        ("3:cpu:/a\n", {"memory__a__limit": "1\n"}, 64 * GB),
    ],
)
def test_the_least_limit_counts(root, groups, files, found):
    assert memory_bytes(root(groups, **files)) == found


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
        for thread in threading.enumerate():
            if thread.name == "dualform-ahead":
                thread.join(10)
        assert {path: os.stat(path).st_size for path in files} == files, "whole files"
        return list(files)

    return found


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

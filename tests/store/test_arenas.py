"""What a server has the C library do with memory that is free."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

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

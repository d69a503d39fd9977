"""Large blocks that threads free go back to the system, where glibc by itself keeps them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from dualform.store.files.ram_budget import anonymous_bytes

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

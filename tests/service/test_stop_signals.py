"""A server told to stop ends, whichever line of its wait the signal comes in."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A handler runs between two lines of what it interrupts. Tracing sends the signal before the `COUNT`-th line that runs
# in the main thread once the server waits; the last counts lie beyond, where the thread sleeps and a timer sends it.
WAITING = """
import faulthandler, os, signal, sys, threading
from dualform_service.server import stop_signals

count = int(sys.argv[1])
faulthandler.dump_traceback_later(60, exit=True)
lines = 0

def traced(frame, event, argument):
    global lines
    if event == "line":
        lines += 1
        if lines == count:
            signal.raise_signal(signal.SIGINT)
    return traced

with stop_signals() as wait:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    sys.settrace(traced)
    wait()
    sys.settrace(None)
print("ended")
"""


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16, 32])
def test_a_signal_in_any_line_of_the_wait_ends_it(count):
    done = subprocess.run([sys.executable, "-c", WAITING, str(count)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr

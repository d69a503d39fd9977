"""A server told to stop ends, whichever line of its wait the signal comes in; told again, it ends at once."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# A handler runs between two lines of what it interrupts. Tracing sends the signal before the `COUNT`-th line that runs
# in the main thread once the server waits; the last counts lie beyond, where the thread sleeps and a timer sends it.
# The handler's own lines are left out: a signal in those is the second one.
WAITING = """
import faulthandler, os, signal, sys, threading
from dualform_service.server import stop_signals

count = int(sys.argv[1])
faulthandler.dump_traceback_later(60, exit=True)
lines = 0

def traced(frame, event, argument):
    global lines
    if frame.f_code.co_name == "stop":
        return None
    if event == "line":
        lines += 1
        if lines == count:
            signal.raise_signal(signal.SIGINT)
    return traced

def send():
    global count
    if lines < count:
        count = 0  # one signal, not two
        os.kill(os.getpid(), signal.SIGTERM)

with stop_signals() as wait:
    threading.Timer(0.3, send).start()
    sys.settrace(traced)
    wait()
    sys.settrace(None)
print("ended")
"""


@pytest.mark.parametrize("count", [1, 4, 32])
def test_a_signal_in_any_line_of_the_wait_ends_it(count):
    done = subprocess.run([sys.executable, "-c", WAITING, str(count)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


# The system may give a signal to any thread of a process; only the main one runs its handler, where it is not asleep.
ELSEWHERE = """
import faulthandler, os, signal, threading, time
from dualform_service.server import stop_signals

faulthandler.dump_traceback_later(30, exit=True)

def send():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGTERM)

with stop_signals() as wait:
    threading.Thread(target=send).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    wait()
print("ended")
"""


def test_a_signal_that_does_not_interrupt_the_wait_ends_it():
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


# A server whose engine is answering a question that takes for ever.
SERVING = """
import contextlib, logging, sys, threading
from dualform_client import Client
from dualform_service.server import serve
from tests.service.canned import Canned

logging.basicConfig(level=logging.INFO, stream=sys.stderr)
engine = Canned()
engine.hold.clear()
engine.answered_by = "canned answers"

def ready(address):
    threading.Thread(target=lambda: Client(address).topk("fc", "test"), daemon=True).start()
    assert engine.waiting.acquire(timeout=60)
    print("asked", flush=True)

serve("here", "127.0.0.1:0", ready, lambda path: contextlib.nullcontext(engine))
print("ended")
"""


@pytest.mark.parametrize(("first", "second"), [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)])
def test_a_second_signal_ends_a_server_that_drains_at_once(first, second):
    server = subprocess.Popen(
        [sys.executable, "-c", SERVING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert server.stdout.readline() == "asked\n"
        server.send_signal(first)
        assert any(
            "draining: a second signal ends the server at once" in line for line in iter(server.stderr.readline, "")
        )
        server.send_signal(second)
        out, logged = server.communicate(timeout=60)
    finally:
        server.kill()
        server.wait()
    assert (server.returncode, out) == (128 + second, "")
    said = f"ended at once by a second signal, {second.name}: open questions were cut off\n"
    assert said in logged


# One whose engine never looks whether it must stop.
STUBBORN = """
import contextlib, threading
from dualform_client import Client
from dualform_service import server
from dualform_service.config import ServiceConfig
from tests.service.canned import Canned

server.LAST_SECONDS = 0.3
engine, asked = Canned(), threading.Event()
engine.answered_by = "canned answers"

def ask(question, cancelled, bounds):
    asked.set()
    threading.Event().wait()

def ready(address):
    threading.Thread(target=lambda: Client(address).topk("fc", "test"), daemon=True).start()
    assert asked.wait(60)
    print("asked", flush=True)

engine.ask = ask
config = ServiceConfig("127.0.0.1:0", grace=0.2)
server.serve("here", config, ready, lambda path: contextlib.nullcontext(engine))
print("ended")
"""


def test_work_that_does_not_stop_does_not_keep_a_server_alive():
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout.readline() == "asked\n"
        server.send_signal(signal.SIGTERM)
        out, logged = server.communicate(timeout=60)
    assert (server.returncode, out) == (0, "")
    assert "ended: some questions did not stop in time\n" in logged

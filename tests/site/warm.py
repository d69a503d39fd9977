"""Python, and the commands `dualform` and `torchrun`, as forks of one process that has loaded torch and the rest: a
page starts a process for each block, and each would load it for seconds.

A fork runs with the folder, environment, arguments and pipes of its caller. What examples import by a name of its own,
such as an integration or the explorer, it loads itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path

LOADED = (
    "torch._dynamo", "torch.distributed.run", "duckdb", "faiss", "pyarrow", "pandas", "sklearn.datasets", "grpc",
    "ipykernel.kernelapp", "safetensors.torch", "scipy.stats", "dualform.record.recorder", "dualform.query.engine",
    "dualform_client.cli.main",
)  # fmt: skip
NAMES = ("python", "dualform", "torchrun")
CALL = """#!{python} -ISE
import os, signal, socket, sys
call = socket.socket(socket.AF_UNIX)
call.connect({address!r})
parts = [{name!r}, os.getcwd(), *sys.argv[1:], "", *(f"{{name}}={{value}}" for name, value in os.environ.items())]
told = "\\0".join(parts).encode()
socket.send_fds(call, [len(told).to_bytes(4, "little")], [0, 1, 2])
call.sendall(told)
fork = int(call.recv(20))
for number in signal.SIGTERM, signal.SIGINT:
    signal.signal(number, lambda number, _: os.kill(fork, number))
code = call.recv(4)
os._exit(int(code) if code else 1)
"""
"""What stands on the PATH for each name: it is as soon there as Python without a package."""


@contextlib.contextmanager
def warm(folder: Path) -> Iterator[Path]:
    """A folder of commands for the PATH, while the process they are forks of is there."""
    address = str(folder / "calls")
    for name in NAMES:
        (folder / name).write_text(CALL.format(python=sys.executable, address=address, name=name))
        (folder / name).chmod(0o755)
    command = [sys.executable, "-m", "tests.site.warm", address]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield folder
        finally:
            os.killpg(process.pid, signal.SIGTERM)  # with a server that a page left


def serve(address: str) -> None:
    """Forks for each call until the process is ended, and tells the caller how the fork ended."""
    forks = dict[int, socket.socket]()

    def ended(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                with forks.pop(found[0]) as call, contextlib.suppress(OSError):
                    call.sendall(str(os.waitstatus_to_exitcode(found[1]) & 255).encode())

    signal.signal(signal.SIGCHLD, ended)
    with socket.socket(socket.AF_UNIX) as calls:
        calls.bind(address)
        calls.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            call, _ = calls.accept()
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # pyarrow's memory has a thread, which is at rest
                fork = os.fork()
            forks[fork] = call
            if not fork:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            if not fork:
                calls.close()
                os._exit(_called(call))


def _called(call: socket.socket) -> int:
    """Run what was called, to its exit code."""
    size, pipes, _, _ = socket.recv_fds(call, 4, 3)
    told = b""
    while len(told) < int.from_bytes(size, "little"):
        told += call.recv(1 << 16)
    name, folder, *others = told.decode().split("\0")
    end = others.index("")
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(own.split("=", 1) for own in others[end + 1 :])
    sys.argv[:] = [name, *others[:end]]
    call.sendall(str(os.getpid()).encode())
    code = 1
    try:
        _run(name)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if code and not isinstance(ended.code, int):
            sys.stderr.write(f"{ended.code}\n")
    except BaseException:
        traceback.print_exc()
    util._exit_function()
    threading._shutdown()
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(OSError):
            stream.flush()
    return code


def _run(name: str) -> None:
    if name == "dualform":
        from dualform_client.command import run

        run()
    if name == "torchrun":
        from torch.distributed.run import main

        main()
    elif sys.argv[1] == "-m":
        del sys.argv[:2]
        sys.path[0] = ""
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif sys.argv[1] == "-":
        sys.path[0] = ""
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        exec(compile(sys.stdin.read(), "<stdin>", "exec"), vars(module))
    else:
        if sys.argv[1] == "-u":
            del sys.argv[1]
        del sys.argv[0]
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    for module in LOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    serve(sys.argv[1])

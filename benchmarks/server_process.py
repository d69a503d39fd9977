"""A server in a process of its own: `python -m benchmarks.server_process MEMORY [BACKEND]`.

It runs as `dualform serve` does by default. Prints its address once it listens, and ends when its input does.
"""

from __future__ import annotations

import sys

import dualform
from dualform_service.config import ServiceConfig
from dualform_service.server import Server


def main(memory: str, backend: str | None = None) -> None:
    with dualform.open(memory, backend=backend) as engine, Server(engine, ServiceConfig("127.0.0.1:0")) as server:
        print(server.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])

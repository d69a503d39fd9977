"""A server in a process of its own: `python -m benchmarks.served MEMORY PLACES [BACKEND]`.

Prints its address once it listens, and ends when its input does.
"""

from __future__ import annotations

import sys

import dualform
from dualform_service.config import ServiceConfig
from dualform_service.server import Server


def main(memory: str, places: int, backend: str | None) -> None:
    config = ServiceConfig("127.0.0.1:0", max_concurrent=places)
    with dualform.open(memory, backend=backend) as engine, Server(engine, config) as server:
        print(server.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)

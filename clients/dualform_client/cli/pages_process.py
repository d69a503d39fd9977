"""The process of the pages that `dualform serve --explore` has beside the server. It is told on stdin what to show, and
ends with stdin, which closes when the server's process ends, however that does.
"""

from __future__ import annotations

import json
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

from dualform.methods import Answers
from dualform_client.target import connect
from dualform_explorer.beside import BesideConfig, serve_beside


def main() -> None:
    said = json.loads(sys.stdin.buffer.readline())
    certificate, key = said["certificate"], said["key"]
    pair = None if certificate is None else (Path(certificate), Path(key))
    config = BesideConfig(said["address"], said["tokens"], pair)

    def opened(token: str | None) -> dict[str, Any]:
        return {name: partial(_connected, target, token, said) for name, target in said["memories"].items()}

    serve_beside(config, opened, socket.socket(fileno=said["listening"]), sys.stdin.buffer.read)


def _connected(target: str, token: str | None, said: dict[str, Any]) -> Answers:
    """The server holds the certificate's key, so that the certificate itself is who is trusted."""
    return connect(target, token=token, authority=said["certificate"], tls_name=said["tls_name"])


if __name__ == "__main__":
    main()

"""The pages of `dualform serve --explore`: the server's handle on their process, and the process itself."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dualform_proto.address import Address, parse_address

if TYPE_CHECKING:
    from dualform.methods import Answers
    from dualform_service.config import ServiceConfig

_CLOSING_SECONDS = 6.0
"""How long the pages' process may take to end."""
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_log = logging.getLogger("dualform.explorer")


class ServedPages:
    """A context manager. It binds the address at once, so that a wrong one is refused before anything starts. From
    `start` on, a process answers until this one ends.
    """

    def __init__(self, config: ServiceConfig, memories: Mapping[str, str]) -> None:
        """`memories`: the name that a page shows -> the server's name for it, "" if it has only one. Raises BadInput if
        the address is taken or TLS cannot be used, MissingPackage without [explore].
        """
        from dualform_explorer.server import listening_at
        from dualform_proto.pem import names_of

        assert config.explore is not None
        self._config, self._memories = config, memories
        pair = (config.certificate, config.key)
        names = () if pair[0] is None or pair[1] is None else names_of(pair[0], pair[1])
        # Any name in the certificate will do: the pages ask the server on this machine.
        self._tls_name = names[0].replace("*", "any") if names else None
        self._listening = listening_at(config.explore)
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = False

    @property
    def url(self) -> str:
        port = self._listening.getsockname()[1]
        scheme = "http" if self._config.certificate is None else "https"
        return f"{scheme}://{Address(parse_address(self._config.explore or '').host, port)}/"

    def start(self, server: str) -> None:
        """Starts the process. `server`: host:port as bound."""
        own = parse_address(server)
        target = str(Address(_ANY.get(own.host, own.host), own.port))
        said = {
            "listening": self._listening.fileno(),
            "address": self._config.explore,
            "memories": {shown: f"{target}/{name}" if name else target for shown, name in self._memories.items()},
            "tokens": self._config.asks_for_tokens,
            "certificate": None if self._config.certificate is None else str(self._config.certificate),
            "key": None if self._config.key is None else str(self._config.key),
            "tls_name": self._tls_name,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dualform_client.cli.pages"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[self._listening.fileno()],
            start_new_session=True,  # the server gets Ctrl-C, and ends the pages
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(said).encode() + b"\n")
        self._process.stdin.flush()
        threading.Thread(target=self._watch, args=(self._process,), name="dualform-pages", daemon=True).start()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if not self._ending:
            _log.error("the pages of --explore ended with code %d; questions are answered all the same", code)

    def __enter__(self) -> ServedPages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending = True
        self._listening.close()
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """The process of the pages. It reads its settings from stdin and ends when stdin closes, which happens even if the
    server is killed.
    """
    from dualform_explorer.visitors import serve_beside

    said = json.loads(sys.stdin.buffer.readline())
    certificate, key = said["certificate"], said["key"]
    pair = None if certificate is None else (Path(certificate), Path(key))

    def opened(token: str | None) -> dict[str, Any]:
        return {name: partial(_connected, target, token, said) for name, target in said["memories"].items()}

    listening = socket.socket(fileno=said["listening"])
    serve_beside(said["address"], said["tokens"], pair, opened, listening, sys.stdin.buffer.read)


def _connected(target: str, token: str | None, said: dict[str, Any]) -> Answers:
    """Trusts the server's own certificate, whose key the server holds."""
    from dualform_client.target import connect

    return connect(target, token=token, authority=said["certificate"], tls_name=said["tls_name"])


if __name__ == "__main__":
    main()

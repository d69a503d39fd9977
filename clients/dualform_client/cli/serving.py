"""Commands that answer others, or help callers of a server: serve with its pages, mcp, token and health."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from dualform.errors import BadInput
from dualform.extras import optional
from dualform.methods import Answers
from dualform_client.cli.help import FAILED, command, complete_folder
from dualform_client.cli.options import (
    asks_target,
    timeout_option,
    tls_ca_option,
    tls_cert_option,
    tls_key_option,
)
from dualform_client.cli.printing import Note, Report, emit
from dualform_client.target import check_folder
from dualform_proto.address import Address, parse_address
from dualform_service.settings import PREFIX, options, service_config

if TYPE_CHECKING:
    from dualform.query.engine import Engine
    from dualform_service.call_record import JsonLog
    from dualform_service.settings import ServiceConfig


@command(params=options(), context_settings={"auto_envvar_prefix": PREFIX})
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_folder)
def serve(runs: tuple[str, ...], **values: Any) -> None:
    """Answer questions about memories over gRPC.

    If you serve several, address each by its folder's name: HOST:PORT/NAME. An
    address that other machines can reach needs TLS and a token. On Ctrl-C or
    SIGTERM, questions under way have seven seconds; a second one ends it at once.

    \b
    Examples:
      dualform serve runs/demo --address 127.0.0.1:50051
      dualform serve runs/* --ram "4 GB" --explore
    """
    for run in runs:
        check_folder(Path(run))
    from dualform_service.call_record import Exporter
    from dualform_service.server import serve as serve_memory

    service = service_config(values, len(runs))
    log, ram, ray = _logging(values["log"]), values["ram"], values["ray"]
    traces = Exporter() if values["tracing"] else None
    with _pages(service, runs) as pages:

        def ready(bound: str) -> None:
            record, lines = {"address": bound}, [f"serving {', '.join(runs)} at {bound}"]
            if pages is not None:
                pages.start(bound)
                record["explore"] = pages.url
                lines.append(f"exploring {', '.join(runs)} at {pages.url}")
            emit(Report(record, lines))
            sys.stdout.flush()

        serve_memory(runs, service, ready, _opening(ram, ray, values["shard_deadline"], len(runs)), log, traces)


def _opening(
    ram: int | None, ray: str | None, shard_deadline: float, runs: int
) -> Callable[[Path], AbstractContextManager[Engine]]:
    """A function that opens a memory in this process, or on a Ray cluster."""
    if ray is None:
        from dualform_service.memories import opening

        return opening(ram, runs > 1)
    from dualform_service.scheduling import ENGINE_THREADS
    from dualform_service.shards import opened_on_ray

    def opened(path: Path) -> AbstractContextManager[Engine]:
        return opened_on_ray(path, ray, shard_deadline, ENGINE_THREADS)

    return opened


def _pages(service: ServiceConfig, runs: tuple[str, ...]) -> AbstractContextManager[ServedPages | None]:
    """The pages of --explore, with their address bound; None without it."""
    if service.explore is None:
        return nullcontext()

    names = [Path(run).resolve().name for run in runs]
    return ServedPages(service, {name: name if len(runs) > 1 else "" for name in names})


def _logging(form: str) -> JsonLog | None:
    """Logs to stderr. Returns the JSON log, which also takes a line for each call; None for text."""
    if form == "text":
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
        return None
    from dualform_service.call_record import JsonLog

    log = JsonLog(sys.stderr.fileno())
    logging.basicConfig(level=logging.INFO, handlers=[log])
    return log


@command()
@asks_target
def mcp(memory: Answers) -> None:
    """Answer an agent by the Model Context Protocol.

    The agent starts this command itself; it reads stdin and writes stdout until
    stdin ends. Its tools only read. --json prints an error at the start as JSON.

    \b
    Example:
      dualform mcp runs/demo
    """
    optional("mcp")
    from dualform_mcp.server import serve

    serve(memory)


@command()
@click.argument("name")
@click.option(
    "--scopes",
    metavar="NAME[,NAME]",
    default="read",
    show_default=True,
    help="Allow read, sql, admin or metrics.",
)
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    show_default="print the line",
    help="Add the line to a server's token file.",
)
def token(name: str, scopes: str, file: Path | None) -> Report:
    """Make a token for a caller NAME.

    The token is the only line on stdout and is shown only this once: the server's
    file has its digest. A running server reads its file again within a second.

    Scopes: read allows all questions but SQL and verify; sql allows SQL; admin
    allows verify and reflection; metrics allows scraping.

    \b
    Example:
      dualform token alice --file tokens > alice.token
    """
    from dualform_service.auth import new_token, read_tokens

    made, line = new_token(name, scopes.split(","))
    if file is not None:
        names = read_tokens(file).names if file.exists() and file.stat().st_size else ()
        if name in names:
            raise BadInput(
                f"{file} already has a token for {name}.", hint="Remove its line, or give another NAME.", field="name"
            )
        if "" in names:
            raise BadInput(
                f"{file} holds a bare token, and no other can be added to it.",
                hint="Give another --file.",
                field="file",
            )
        _add(file, line)
    note = f"added to {file}: {line}" if file is not None else f"for the server's token file: {line}"
    return Report({"name": name, "token": made, "line": line}, [made, Note(note)])


def _add(file: Path, line: str) -> None:
    """Adds a line. If the file is new, only its owner may read or write it."""
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "a+b") as stream:
            stream.seek(0)
            content = stream.read()
            stream.write((b"\n" if content and not content.endswith(b"\n") else b"") + line.encode() + b"\n")
    except OSError as error:
        raise BadInput(f"The token file {file} cannot be written: {error.strerror}.", field="file") from None


@command()
@click.argument("address", metavar="HOST:PORT[/NAME]")
@tls_ca_option
@tls_cert_option
@tls_key_option
@timeout_option(5)
def health(
    address: str,
    authority: Path | None,
    certificate: Path | None,
    key: Path | None,
    timeout: float,
) -> Report:
    """Say whether a server takes questions.

    The exit code is 0 if it does, else 1: while it shuts down, or if the memory's
    folder is gone. It needs no token.

    \b
    Example:
      dualform health 127.0.0.1:50051
    """
    from dualform_client.client import is_serving

    serving = is_serving(address, timeout=timeout, authority=authority, certificate=certificate, key=key)
    return Report({"serving": serving}, ["serving" if serving else "not serving"], 0 if serving else FAILED)


_CLOSING_SECONDS = 6.0
"""How long the pages' process may take to end."""
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_log = logging.getLogger("dualform.explorer")


class ServedPages(AbstractContextManager["ServedPages"]):
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
            [sys.executable, "-m", "dualform_client.cli.serving"],
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
    from dualform_explorer.server import serve_beside

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

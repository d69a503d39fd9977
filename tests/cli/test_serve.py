"""dualform serve as a process: it says where it listens, answers, drains when told to, shows pages beside (--explore)
with its tokens and TLS, and writes no secret."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dualform.errors import DualformError
from dualform.query.score import backends
from dualform_client import Client
from dualform_client.client import is_serving
from dualform_service.auth import ADMIN, METRICS, READ, new_token
from tests.service.test_tls import certificate

GUESS = "a-guess-at-a-token-that-is-wrong"
tls = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")


@contextmanager
def serving(folder, *options):
    command = [sys.executable, "-m", "dualform_client.cli", "serve", str(folder), "--address", "127.0.0.1:0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


@contextmanager
def exploring(folder, *options):
    with serving(folder, "--json", "--explore", *options) as (process, line):
        yield process, json.loads(line)


def get(url: str, path: str = "", token: str | None = None, trust: Path | None = None, name: str = "") -> tuple:
    """Status and text of a page; `name`: whom its server is taken for."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    if parts.scheme == "https":
        connection.connect()
        trusting = ssl.create_default_context(cafile=trust)
        connection.sock = trusting.wrap_socket(connection.sock, server_hostname=name or parts.hostname)
    given = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request("GET", f"/{path}", headers={"Host": name or parts.netloc, **given})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def until_refused(url: str) -> None:
    """Returns once nobody listens there any more."""
    parts, end = urlsplit(url), time.monotonic() + 30
    while True:
        with socket.socket() as tried:
            if tried.connect_ex((parts.hostname, parts.port)):
                return
        assert time.monotonic() < end, "the pages are still there"
        time.sleep(0.05)


def test_serves_until_told_to_stop(folder, tmp_path):
    token, line = new_token("alice", ["read", "sql", "metrics"])
    (tmp_path / "tokens").write_text(f"{line}\n")
    options = ("--json", "--sql", "--log", "json", "--metrics", "127.0.0.1:0", "--token-file", str(tmp_path / "tokens"))
    with serving(folder, *options) as (process, line):
        address = json.loads(line)["address"]
        assert is_serving(address)
        with Client(address, token=token) as client:
            layer = client.info().layers[0]
            client.topk(layer.name, [[1.0] * layer.d_in], k=1)
            assert client.sql("SELECT 1 AS a")["a"].tolist() == [1]
        logged = [process.stderr.readline() for _ in range(2)]
        url = json.loads(logged[1])["message"].removeprefix("metrics at ")
        _, text = get(url, "metrics", token)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        logged += process.stderr.read().splitlines()
    lines = [json.loads(line) for line in logged]
    calls = [(line["method"], line["token"], line["outcome"]) for line in lines if line["kind"] == "call"]
    assert calls == [("Info", "alice", "ok"), ("TopK", "alice", "ok"), ("Sql", "alice", "ok")]
    assert [line["message"] for line in lines if line["kind"] == "log"] == [
        backends.described(backends.choose()),
        f"metrics at {url}",
        "draining: a second signal ends the server at once",
    ]
    assert token not in "".join(logged)
    series = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    own = f'layer="{layer.name}",memory="{folder.name}",method="TopK",outcome="ok"'
    assert series[f"dualform_calls_total{{{own}}}"] == "1.0"
    assert float(series["dualform_read_bytes_total"]) > 0
    assert float(series[f'dualform_screened_queries_total{{memory="{folder.name}"}}']) == 1
    assert "dualform_ram_limit_bytes" not in series


def asked(client: Client) -> str:
    """All that is told of calls that are right, wrong and not allowed."""
    told = repr(client) + repr(client.connection)
    for ask in (client.info, client.verify, lambda: client.sql("SELECT 1"), lambda: client.topk("none", [[1.0]])):
        try:
            told += repr(ask())
        except DualformError as error:
            cause = error.__cause__ or error.__context__
            told += f"{error!r} {error} {error.hint} {error.field} {cause} {getattr(cause, 'trailing_metadata', str)()}"
    return told


@tls
def test_nothing_that_a_session_writes_has_a_secret(dualform, folder, tmp_path):
    """Nor has any list of processes."""
    (token, line), (scrape, other) = new_token("alice", [READ]), new_token("prometheus", [METRICS, ADMIN])
    chain, key = certificate(tmp_path, "server")
    files = {name: tmp_path / name for name in ("tokens", "right", "wrong")}
    for name, text in (("tokens", f"{line}\n{other}"), ("right", token), ("wrong", GUESS)):
        files[name].write_text(f"{text}\n")
        files[name].chmod(0o600)
    options = ("--json", "--metrics", "127.0.0.1:0", "--token-file", str(files["tokens"]))
    with serving(folder, *options, "--tls-cert", str(chain), "--tls-key", str(key)) as (process, first):
        # Before anything else is logged: what is read of stderr here is not among what the process has said at its end.
        said = next(line for line in process.stderr if "metrics at " in line)
        address, told = first.split('"')[3], [first, said]
        url = said.split("metrics at ")[1].split("metrics")[0]
        for used in (token, GUESS, scrape):
            with Client(address, token=used, authority=chain) as client:
                told.append(asked(client))
            told += map(str, get(url, "metrics", used, chain))
        for name in ("right", "wrong"):
            told += map(str, dualform("verify", address, "--tls-ca", chain, "--token-file", files[name]))
        for name in ("cmdline", "environ") if Path("/proc/self").exists() else ():
            told.append(Path(f"/proc/{process.pid}/{name}").read_bytes().decode(errors="replace"))
        process.send_signal(signal.SIGTERM)
        told += process.communicate(timeout=60)
    everything = "".join(told)
    for expected in (
        "dualform_wrong_tokens_total",
        "with a missing or wrong token",
        "draining",
        "is not allowed",
        "403",
    ):
        assert expected in everything, expected
    for secret in (token, scrape, GUESS, *key.read_text().splitlines()[1:-1]):
        for form in (secret, base64.b64encode(secret.encode()).decode().rstrip("=")[:-1]):
            assert form not in everything


def test_health(dualform, address):
    assert dualform("health", address) == (0, "serving\n", "")
    assert dualform("health", address, "--json").json == {"serving": True}
    assert dualform("health", "127.0.0.1:1", "--json").json["error"]["code"] == "unavailable"
    assert dualform("health", f"{address}/other", "--json").json["error"] == {
        "code": "not_found",
        "message": f"The server at {address} has no memory 'other'.",
        "hint": f"Ask for the server as a whole: dualform health {address}",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--address", "0.0.0.0:0"], "0.0.0.0:0 can be reached from other machines, which needs both TLS and a token."),
        (["--explore", "0.0.0.0:0"], "0.0.0.0:0 can be reached from other machines, which needs both TLS and a token."),
        (["--explore", "nowhere"], "'nowhere' is no address."),
        (["--explore", "127.0.0.1:99999"], "'127.0.0.1:99999' is no address."),
        (["--explore", "127.0.0.1:0", *(word for name in ("cert", "key", "client-ca") for word in (f"--tls-{name}",
         __file__))], "its pages have no certificate"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(dualform, folder, options, message):
    told = dualform("serve", folder, "--address", "127.0.0.1:0", *options)
    assert told.code == 2
    assert message in told.err


def test_pages_stand_beside_the_server_and_end_with_it(folder):
    with serving(folder, "--explore", "127.0.0.1:0") as (process, line):
        second = process.stdout.readline()
        assert line.startswith(f"serving {folder} at 127.0.0.1:")
        assert second.startswith(f"exploring {folder} at http://127.0.0.1:")
        address, pages = (own.rpartition(" at ")[2].strip() for own in (line, second))
        status, page = get(pages, "explore?item=test/0&open=data")
        with Client(address) as client:
            layer = client.info().layers[-1].name
            best = client.topk(layer, "test/0", k=1).slots[0][0]
        assert status == 200
        assert f"<title>test/0 · {layer} · {folder.name} · dualform</title>" in page
        assert f'data-slot="{best}"' in page
        process.send_signal(signal.SIGINT)
        _, logged = process.communicate(timeout=60)
        until_refused(pages)
    assert process.returncode == 0
    assert "draining" in logged
    assert "Traceback" not in logged
    assert "--explore ended" not in logged


def test_visitors_see_what_their_tokens_may_ask(folder, tmp_path):
    (alice, first), (metrics, second) = new_token("alice", ["read"]), new_token("metrics", ["metrics"])
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{first}\n{second}\n")
    with exploring(folder, "127.0.0.1:0", "--token-file", str(tokens)) as (process, said):
        pages = said["explore"]
        for path in ("", "explore?item=test/0", "panels?item=test/0", "news"):
            every = (None, "wrong", alice[:-1], " ", "\t", "\xfc", "two words", "x\x7f", alice * 200)
            for wrong in every if not path else every[:2]:
                status, page = get(pages, path, wrong)
                assert (status, "test" in page, folder.name in page) == (401, False, False), wrong
            assert get(pages, path, alice)[0] == 200
        assert get(pages, "static/explorer.css")[0] == 200
        status, page = get(pages, "explore?item=test/0", metrics)
        assert (status, "The token is not allowed" in page) == (502, True)
        # Wrong tokens by the hundred let nobody in and shut nobody out.
        tried = [alice if number % 20 == 0 else f"wrong-{number}" for number in range(100)]
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda token: get(pages, "", token), tried))
        assert [status for status, _ in found] == [200 if token == alice else 401 for token in tried]
        assert all((folder.name in page) == (status == 200) for status, page in found)
        # Nobody whom it has not seen is let in while the server does not answer.
        process.send_signal(signal.SIGSTOP)
        status, page = get(pages, "", new_token("alice", ["read"])[0])
        process.send_signal(signal.SIGCONT)
        assert (status, folder.name in page) == (503, False)
        assert "The server did not say whether it takes this token." in page
        tokens.write_text(f"{second}\n")
        end = time.monotonic() + 30
        while get(pages, "explore?item=test/0", alice)[0] != 401:
            assert time.monotonic() < end, "a token that is gone still lets a visitor in"
            time.sleep(0.1)
        process.kill()
        until_refused(pages)
        assert alice not in process.communicate(timeout=60)[1]


@tls
def test_pages_of_several_memories_behind_tls_and_a_server_that_goes_on_without_them(folder, tmp_path):
    """By a certificate of another name than the loopback's."""
    pair, (token, line) = (tmp_path / "hub.pem", tmp_path / "hub.key"), new_token("alice", ["read"])
    made = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days")
    named = ("-subj", "/CN=hub", "-addext", "subjectAltName=DNS:*.hub.example.org")
    subprocess.run([*made, "1", *named, "-out", str(pair[0]), "-keyout", str(pair[1])], check=True, capture_output=True)
    (tmp_path / "tokens").write_text(f"{line}\n")
    for name in ("one", "other"):
        shutil.copytree(folder, tmp_path / name)
    options = ("--tls-cert", str(pair[0]), "--tls-key", str(pair[1]), "--token-file", str(tmp_path / "tokens"))
    with exploring(tmp_path / "one", "0.0.0.0:0", str(tmp_path / "other"), *options) as (process, said):
        assert said["explore"].startswith("https://")
        pages, hub = f"https://127.0.0.1:{urlsplit(said['explore']).port}", "pages.hub.example.org"
        for name in ("one", "other"):
            status, page = get(pages, f"explore?memory={name}&item=test/0", token, pair[0], hub)
            assert (status, "data-failure" in page) == (200, False)
        with pytest.raises(ssl.SSLCertVerificationError):
            get(pages, "", token)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ours = [own for own in children if b"dualform_client.cli.serving" in Path(f"/proc/{own}/cmdline").read_bytes()]
        subprocess.run(["kill", "-KILL", *ours], check=True)
        logged = next(line for line in process.stderr if "--explore" in line)
        with Client(f"{said['address']}/one", token=token, authority=pair[0], tls_name=f"a.{hub[6:]}") as client:
            assert client.info().steps == 6
    assert "the pages of --explore ended with code -9; questions are answered all the same" in logged

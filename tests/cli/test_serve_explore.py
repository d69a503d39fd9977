"""dualform serve --explore: pages beside the server, with its tokens and TLS, that end when it does."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import ssl
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dualform_client import Client
from dualform_service.auth import new_token
from tests.cli.test_serve import serving
from tests.service.test_tls import certificate


def get(url: str, path: str = "", token: str | None = None, trust: Path | None = None) -> tuple[int, str]:
    parts = urlsplit(url)
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            parts.netloc, timeout=60, context=ssl.create_default_context(cafile=trust)
        )
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    try:
        connection.request("GET", f"/{path}", headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@contextmanager
def exploring(folder, *options):
    with serving(folder, "--json", "--explore", "127.0.0.1:0", *options) as (process, line):
        yield process, json.loads(line)


def until_refused(url: str, seconds: float = 30.0) -> None:
    """Returns once nobody listens there any more."""
    parts, end = urlsplit(url), time.monotonic() + seconds
    while True:
        with socket.socket() as tried:
            if tried.connect_ex((parts.hostname, parts.port)):
                return
        assert time.monotonic() < end, "the pages are still there"
        time.sleep(0.1)


def test_pages_stand_beside_the_server_and_end_with_it(folder):
    with serving(folder, "--explore", "127.0.0.1:0") as (process, line):
        second = process.stdout.readline()
        assert line.startswith(f"serving {folder} at 127.0.0.1:")
        assert second.startswith(f"exploring {folder} at http://127.0.0.1:")
        address, pages = (own.rpartition(" at ")[2].strip() for own in (line, second))
        assert get(pages)[0] == 200
        status, page = get(pages, "explore?item=test/0&open=data")
        with Client(address) as client:
            layer = client.info().layers[-1].name
            best = client.topk(layer, "test/0", k=1).slots[0][0]
        assert status == 200
        assert f"<title>test/0 · {layer} · {folder.name} · dualform</title>" in page
        assert f'data-slot="{best}"' in page
        process.send_signal(signal.SIGINT)
        _, logged = process.communicate(timeout=60)
        until_refused(pages, 1.0)
    assert process.returncode == 0
    assert "draining" in logged
    assert "Traceback" not in logged
    assert "--explore ended" not in logged


def test_pages_end_also_where_the_server_is_killed(folder):
    with exploring(folder) as (process, said):
        assert get(said["explore"])[0] == 200
        process.kill()
        until_refused(said["explore"])


def test_a_server_whose_pages_die_goes_on_and_says_so(folder):
    with exploring(folder) as (process, said):
        assert get(said["explore"])[0] == 200
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ours = [own for own in children if b"dualform_client.cli.serving" in Path(f"/proc/{own}/cmdline").read_bytes()]
        (pages,) = ours
        subprocess.run(["kill", "-KILL", pages], check=True)
        logged = next(line for line in process.stderr if "--explore" in line)
        with Client(said["address"]) as client:
            assert client.info().steps == 6
    assert "the pages of --explore ended with code -9; questions are answered all the same" in logged


def test_visitors_see_what_their_tokens_may_ask(folder, tmp_path):
    (alice, first), (metrics, second) = new_token("alice", ["read"]), new_token("metrics", ["metrics"])
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{first}\n{second}\n")
    with exploring(folder, "--token-file", str(tokens)) as (process, said):
        for path in ("", "explore?item=test/0", "panels?item=test/0", "news"):
            for wrong in (None, "wrong", alice[:-1], " ", "\t", "\xfc", "two words", "x\x7f", alice * 200):
                status, page = get(said["explore"], path, wrong)
                assert status == 401, wrong
                assert "test" not in page
                assert folder.name not in page
            assert get(said["explore"], path, alice)[0] == 200
        assert get(said["explore"], "static/explorer.css")[0] == 200
        status, page = get(said["explore"], "explore?item=test/0", metrics)
        assert status == 502
        assert "The token is not allowed" in page
        tokens.write_text(f"{second}\n")
        end = time.monotonic() + 30
        while get(said["explore"], "explore?item=test/0", alice)[0] != 401:
            assert time.monotonic() < end, "a token that is gone still lets a visitor in"
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        _, logged = process.communicate(timeout=60)
    assert process.returncode == 0
    assert alice not in logged


@pytest.fixture(scope="module")
def guarded(folder, tmp_path_factory):
    """A server's process and the address of its pages, which ask for a token, and the token."""
    token, line = new_token("alice", ["read"])
    tokens = tmp_path_factory.mktemp("guarded") / "tokens"
    tokens.write_text(f"{line}\n")
    with exploring(folder, "--token-file", str(tokens)) as (process, said):
        yield process, said["explore"], token


def test_wrong_tokens_by_the_hundred_let_nobody_in_and_shut_nobody_out(folder, guarded):
    _, pages, token = guarded

    def tried(number: int) -> tuple[int, bool]:
        status, page = get(pages, "", token if number % 20 == 0 else f"wrong-{number}")
        return status, folder.name in page

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(tried, range(400)))
    assert found == [(200, True) if number % 20 == 0 else (401, False) for number in range(400)]


def test_nobody_is_let_in_while_the_server_does_not_answer(folder, guarded):
    process, pages, token = guarded
    known = new_token("alice", ["read"])[0]  # one that it has not seen
    process.send_signal(signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(2) as threads:
            for status, page in threads.map(lambda own: get(pages, "", own), (known, "wrong")):
                assert (status, folder.name in page) == (503, False)
                assert "The server did not say whether it takes this token." in page
    finally:
        process.send_signal(signal.SIGCONT)
    assert get(pages, "", token)[0] == 200


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")
def test_several_memories_behind_tls(folder, tmp_path):
    pair = certificate(tmp_path, "own")
    for name in ("one", "other"):
        shutil.copytree(folder, tmp_path / name)
    options = (str(tmp_path / "other"), "--tls-cert", str(pair[0]), "--tls-key", str(pair[1]))
    with exploring(tmp_path / "one", *options) as (_, said):
        assert said["explore"].startswith("https://127.0.0.1:")
        for name in ("one", "other"):
            status, page = get(said["explore"], f"explore?memory={name}&item=test/0", trust=pair[0])
            assert status == 200
            assert "data-failure" not in page
        with pytest.raises(ssl.SSLCertVerificationError):
            get(said["explore"])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")
def test_a_certificate_of_another_name_than_the_loopbacks_will_do(folder, tmp_path):
    pair = tmp_path / "hub.pem", tmp_path / "hub.key"
    made = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days")
    named = ("-subj", "/CN=hub", "-addext", "subjectAltName=DNS:*.hub.example.org")
    subprocess.run([*made, "1", *named, "-out", str(pair[0]), "-keyout", str(pair[1])], check=True, capture_output=True)
    token, line = new_token("alice", ["read"])
    (tmp_path / "tokens").write_text(f"{line}\n")
    options = ("--tls-cert", str(pair[0]), "--tls-key", str(pair[1]), "--token-file", str(tmp_path / "tokens"))
    with serving(folder, "--json", "--explore", "0.0.0.0:0", *options) as (_, line):
        port = urlsplit(json.loads(line)["explore"]).port
        context = ssl.create_default_context(cafile=pair[0])
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname="pages.hub.example.org") as spoken,
        ):
            spoken.sendall(
                b"GET /explore?item=test/0 HTTP/1.1\r\nHost: pages.hub.example.org\r\nConnection: close\r\n"
                b"Authorization: Bearer " + token.encode() + b"\r\n\r\n"
            )
            page = b""
            while part := spoken.recv(1 << 16):
                page += part
    assert page.startswith(b"HTTP/1.1 200")
    assert b"data-failure" not in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--explore", "0.0.0.0:0"], "0.0.0.0:0 can be reached from other machines, which needs both TLS and a token."),
        (["--explore", "nowhere"], "'nowhere' is no address."),
        (["--explore", "127.0.0.1:99999"], "'127.0.0.1:99999' is no address."),
    ],
)
def test_what_cannot_be_is_refused(dualform, folder, options, message):
    told = dualform("serve", folder, "--address", "127.0.0.1:0", *options)
    assert told.code == 2
    assert message in told.err


def test_pages_have_no_certificate_to_ask_with(dualform, folder, tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("x")
    files = ("--tls-cert", tmp_path / "a", "--tls-key", tmp_path / "b", "--tls-client-ca", tmp_path / "c")
    told = dualform("serve", folder, "--explore", "127.0.0.1:0", *files)
    assert told.code == 2
    assert "its pages have no certificate" in told.err

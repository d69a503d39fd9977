"""A session of right and wrong calls: nothing that it writes, and no list of processes, has a token or a key."""

from __future__ import annotations

import base64
import shutil
import signal
import ssl
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import pytest

from dualform.errors import DualformError
from dualform_client import Client
from dualform_service.auth import ADMIN, METRICS, READ, new_token
from tests.cli.test_serve import serving
from tests.service.test_tls import certificate

GUESS = "a-guess-at-a-token-that-is-wrong"
PROCESSES = Path("/proc/self/cmdline")


def scraped(url: str, token: str, authority: Path) -> str:
    request = Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urlopen(request, timeout=60, context=ssl.create_default_context(cafile=authority)) as page:
            return page.read().decode()
    except HTTPError as error:
        with error:
            return f"{error} {error.headers} {error.read().decode()}"


def asked(client: Client, layer: str) -> str:
    """All that is told of calls that are right, wrong and not allowed."""
    told = repr(client) + repr(client.connection)
    for ask in (
        client.info,
        client.verify,
        lambda: client.sql("SELECT getenv('HOME')"),
        lambda: client.topk(layer, [[1.0]], where="no such ="),
        lambda: client.topk("none", [[1.0]]),
    ):
        try:
            told += repr(ask())
        except DualformError as error:
            told += repr(error) + str(error) + error.hint + error.field
    return told


def refused(address: str, token: str, authority: Path) -> str:
    """The whole status of a refusal, with its details as they are sent."""
    credentials = grpc.ssl_channel_credentials(authority.read_bytes())
    with grpc.secure_channel(address, credentials) as channel:
        verify = channel.unary_unary("/dualform.v1.Memory/Verify")
        with pytest.raises(grpc.RpcError) as caught:
            verify(b"", timeout=60, metadata=(("authorization", f"bearer {token}"),))
    status = caught.value
    assert status.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    return f"{status} {status.details()} {status.initial_metadata()} {status.trailing_metadata()}"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")
@pytest.mark.skipif(not PROCESSES.exists(), reason="the system has no /proc to list processes with")
@pytest.mark.parametrize("log", ["text", "json"])
def test_nothing_that_a_session_writes_has_a_secret(dualform, folder, tmp_path, log):
    (token, line), (scrape, other) = new_token("alice", [READ]), new_token("prometheus", [METRICS, ADMIN])
    chain, key = certificate(tmp_path, "server")
    files = {name: tmp_path / name for name in ("tokens", "right", "wrong")}
    for name, text in (("tokens", f"{line}\n{other}"), ("right", token), ("wrong", GUESS)):
        files[name].write_text(f"{text}\n")
        files[name].chmod(0o600)
    options = ("--json", "--log", log, "--metrics", "127.0.0.1:0", "--token-file", str(files["tokens"]))
    with serving(folder, *options, "--tls-cert", str(chain), "--tls-key", str(key)) as (process, first):
        # Before anything else is logged: what is read of stderr here is not among what the process has said at its end.
        said = next(line for line in process.stderr if "metrics at " in line)
        address, told = first.split('"')[3], [first]
        for used in (token, GUESS, scrape):
            with Client(address, token=used, authority=chain) as client:
                told.append(asked(client, "layer-0"))
        told += [refused(address, used, chain) for used in (token, GUESS)]
        for name in ("right", "wrong"):
            done = dualform("verify", address, "--tls-ca", chain, "--token-file", files[name])
            assert done.code == 1
            told += [done.out, done.err]
        for name in ("cmdline", "environ"):
            told.append(Path(f"/proc/{process.pid}/{name}").read_bytes().decode(errors="replace"))
        url = said.split("metrics at ")[1].split("metrics")[0] + "metrics"
        told += [said, scraped(url, scrape, chain), scraped(url, GUESS, chain), scraped(url, token, chain)]
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
    lines = key.read_text().splitlines()
    for secret in (token, scrape, GUESS, *lines[1:-1]):
        for form in (secret, base64.b64encode(secret.encode()).decode().rstrip("=")[:-1]):
            assert form not in everything

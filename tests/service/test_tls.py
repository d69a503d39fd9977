from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from dualform.errors import BadInput, Unauthenticated, Unavailable
from dualform_client import AsyncClient, Client
from dualform_client.cli import main
from dualform_client.client import is_serving
from dualform_proto.pem import names_of
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.service.held_engine import outcomes, until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")


def certificate(folder: Path, name: str, names: str = "DNS:localhost,IP:127.0.0.1") -> tuple[Path, Path]:
    pair = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "1", "-subj", "/CN=localhost"),
            *("-addext", f"subjectAltName={names}"),
            *("-out", str(pair[0]), "-keyout", str(pair[1])),
        ],
        check=True,
        capture_output=True,
    )
    return pair


def signed(folder: Path, name: str, authority: tuple[Path, Path], days: int = 1) -> tuple[Path, Path]:
    """A certificate that an authority has signed; one of negative `days` has expired."""
    pair, request = (folder / f"{name}.pem", folder / f"{name}.key"), folder / f"{name}.csr"
    made = ("openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    sign = ("openssl", "x509", "-req", "-CA", str(authority[0]), "-CAkey", str(authority[1]), "-CAcreateserial")
    for command in (
        (*made, "-subj", f"/CN={name}", "-keyout", str(pair[1]), "-out", str(request)),
        (*sign, "-in", str(request), "-days", str(days), "-out", str(pair[0])),
    ):
        subprocess.run(command, check=True, capture_output=True)
    return pair


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    return certificate(folder, "one"), certificate(folder, "other")


def test_speaks_tls_to_who_trusts_its_certificate(engine, pairs):
    (chain, key), (other, _) = pairs
    config = ServiceConfig("127.0.0.1:0", token="t", certificate=chain, key=key)
    with Server(engine, config) as server:
        with Client(server.address, token="t", authority=chain) as client:
            assert client.info().snapshot == 7
        with Client(server.address, token="t", authority=other) as client, pytest.raises(Unavailable):
            client.info()
        with Client(server.address, token="t") as client, pytest.raises(Unavailable):
            client.info()


def test_metrics_speak_tls_and_ask_for_a_token_and_a_certificate_too(engine, pairs):
    (chain, key), (other, other_key) = pairs
    files = {"token": "t", "certificate": chain, "key": key, "client_authority": other}
    with Server(engine, ServiceConfig("127.0.0.1:0", metrics="0.0.0.0:0", **files)) as server:
        port = int(server.metrics_address.rpartition(":")[2])
        url = f"https://127.0.0.1:{port}/metrics"
        scrape = Request(url, headers={"Authorization": "Bearer t"})
        trusting, strange, bare = (ssl.create_default_context(cafile=file) for file in (chain, other, chain))
        for context in (trusting, strange):
            context.load_cert_chain(other, other_key)
        with socket.create_connection(("127.0.0.1", port)), urlopen(scrape, timeout=4, context=trusting) as page:
            assert b"dualform_open_calls 0.0" in page.read(), "a connection without a handshake holds nobody up"
        with pytest.raises(HTTPError, match="401") as refused:
            urlopen(url, timeout=60, context=trusting)
        refused.value.close()
        with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urlopen(scrape, timeout=60, context=strange)
        for where, context in ((scrape, bare), (url.replace("https", "http"), None)):
            with pytest.raises((OSError, HTTPException)):
                urlopen(where, timeout=60, context=context)


def test_mutual_tls_asks_for_a_certificate_of_its_authority_beside_the_token(engine, pairs, tmp_path):
    (chain, key), other = pairs
    authority = certificate(tmp_path, "authority")
    mine, expired = signed(tmp_path, "mine", authority), signed(tmp_path, "expired", authority, days=-1)
    stranger, own = signed(tmp_path, "stranger", other), certificate(tmp_path, "own")
    config = ServiceConfig("127.0.0.1:0", token="t", certificate=chain, key=key, client_authority=authority[0])
    with Server(engine, config) as server:

        def client(pair: tuple[Path, Path] | None, token: str | None = "t") -> Client:
            given = {} if pair is None else {"certificate": pair[0], "key": pair[1]}
            return Client(server.address, token=token, authority=chain, **given)

        for pair in (None, stranger, expired, own, (chain, key)):
            with client(pair) as refused, pytest.raises(Unavailable):
                refused.info()
        with pytest.raises(Unavailable):  # nor is health told
            is_serving(server.address, authority=chain)
        for token in (None, "wrong"):
            with client(mine, token) as refused, pytest.raises(Unauthenticated):
                refused.info()
        assert engine.asked == []
        until(lambda: outcomes(server, "Info") == {"unauthenticated": 2})
        with client(mine) as let_in:
            assert let_in.info().snapshot == 7
        assert is_serving(server.address, authority=chain, certificate=mine[0], key=mine[1])


def test_files_that_cannot_be_used_are_refused_by_both_ends(engine, pairs, tmp_path):
    (chain, key), (_, other_key) = pairs
    files = {"certificate": chain, "key": key}
    (blank := tmp_path / "blank.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for wrong, says in (
        ({"key": other_key}, "cannot be used together"),
        ({"certificate": tmp_path / "none.pem"}, r"^The certificate file .*none\.pem cannot be read: No such file"),
        ({"client_authority": blank}, "holds no certificate that can be used"),
    ):
        with pytest.raises(BadInput, match=says):
            Server(engine, ServiceConfig("127.0.0.1:0", **{**files, **wrong})).start()
    for wrong, says in (
        ({"certificate": chain}, "goes with its key"),
        ({"key": key}, "goes with its key"),
        ({"certificate": chain, "key": other_key}, "cannot be used together"),
        ({"authority": blank}, "holds no certificate that can be used"),
    ):
        with pytest.raises(BadInput, match=says):
            Client("127.0.0.1:1", **wrong)
    Client("192.0.2.1:1", token="t", **files).close()  # which speaks TLS


def test_the_command_line_has_certificates_too(engine, pairs, capfd):
    (chain, key), (other, other_key) = pairs
    config = ServiceConfig("127.0.0.1:0", certificate=chain, key=key, client_authority=other)
    authority, own = ["--tls-ca", str(chain)], ["--tls-cert", str(other), "--tls-key", str(other_key)]
    with Server(engine, config) as server:
        assert main(["info", server.address, *authority, *own, "--json"]) == 0
        assert main(["health", server.address, *authority, *own]) == 0
        capfd.readouterr()
        assert main(["info", server.address, *authority, "--json"]) == 1
        assert json.loads(capfd.readouterr().out)["error"]["code"] == "unavailable"


def test_a_server_behind_a_tunnel_is_known_by_the_name_of_its_certificate(engine, tmp_path):
    pair = certificate(tmp_path, "hub", "DNS:hub.example.org,IP:10.0.0.7")
    assert names_of(*pair) == ("hub.example.org", "10.0.0.7")
    config = ServiceConfig("127.0.0.1:0", certificate=pair[0], key=pair[1])
    with Server(engine, config) as server:
        for name in ("hub.example.org", "10.0.0.7"):
            with Client(server.address, authority=pair[0], tls_name=name) as client:
                assert client.info().snapshot == 7
        for name in (None, "hub.example.com"):
            with Client(server.address, authority=pair[0], tls_name=name) as client, pytest.raises(Unavailable):
                client.info()

        async def asked() -> int:
            async with AsyncClient(server.address, authority=pair[0], tls_name="hub.example.org") as client:
                return (await client.info()).snapshot

        assert asyncio.run(asked()) == 7


def test_names_of_a_certificate_that_does_not_hold_are_none(pairs, tmp_path):
    expired = signed(tmp_path, "expired", pairs[0], days=-1)
    with pytest.raises(BadInput, match=r"The certificate .*expired\.pem does not hold"):
        names_of(*expired)

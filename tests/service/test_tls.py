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
from dualform_client.connection import is_serving
from dualform_proto.pem import names_of
from dualform_service.config import ServiceConfig
from dualform_service.server import Server
from tests.service.held_engine import outcomes, until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    pair = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "1", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
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


def test_metrics_speak_tls_too(engine, pairs):
    (chain, key), (other, _) = pairs
    config = ServiceConfig("127.0.0.1:0", token="t", certificate=chain, key=key, metrics="0.0.0.0:0")
    with Server(engine, config) as server:
        port = int(server.metrics_address.rpartition(":")[2])
        url = f"https://127.0.0.1:{port}/metrics"
        scrape = Request(url, headers={"Authorization": "Bearer t"})
        trusting = ssl.create_default_context(cafile=chain)
        with socket.create_connection(("127.0.0.1", port)), urlopen(scrape, timeout=4, context=trusting) as page:
            assert b"dualform_open_calls 0.0" in page.read(), "a connection without a handshake holds nobody up"
        with pytest.raises(HTTPError, match="401") as refused:
            urlopen(url, timeout=60, context=ssl.create_default_context(cafile=chain))
        refused.value.close()
        with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urlopen(scrape, timeout=60, context=ssl.create_default_context(cafile=other))
        with pytest.raises((OSError, HTTPException)):
            urlopen(url.replace("https", "http"), timeout=60)


def test_a_key_of_another_certificate_is_refused(engine, pairs):
    (chain, _), (_, key) = pairs
    with pytest.raises(BadInput, match="cannot be used together"):
        Server(engine, ServiceConfig("127.0.0.1:0", certificate=chain, key=key)).start()


def test_a_certificate_that_is_not_there_is_named(engine, tmp_path):
    config = ServiceConfig("127.0.0.1:0", certificate=tmp_path / "none.pem", key=tmp_path / "none.key")
    with pytest.raises(BadInput, match=r"^The certificate file .*none\.pem cannot be read: No such file"):
        Server(engine, config).start()


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


def test_metrics_ask_for_a_certificate_too(engine, pairs):
    (chain, key), (other, other_key) = pairs
    config = ServiceConfig("127.0.0.1:0", certificate=chain, key=key, client_authority=other, metrics="127.0.0.1:0")
    with Server(engine, config) as server:
        url = f"https://{server.metrics_address}/metrics"
        context = ssl.create_default_context(cafile=chain)
        with pytest.raises((OSError, HTTPException)):
            urlopen(url, timeout=60, context=context)
        context.load_cert_chain(other, other_key)
        with urlopen(url, timeout=60, context=context) as page:
            assert b"dualform_open_calls 0.0" in page.read()


def test_authorities_that_cannot_be_used_are_refused_by_both_ends(engine, pairs, tmp_path):
    (chain, key), _ = pairs
    blank = tmp_path / "blank.pem"
    for content in ("", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        blank.write_text(content)
        config = ServiceConfig("127.0.0.1:0", certificate=chain, key=key, client_authority=blank)
        with pytest.raises(BadInput, match="holds no certificate that can be used") as caught:
            Server(engine, config).start()
        assert caught.value.field == "client_authority"
        with pytest.raises(BadInput, match="holds no certificate that can be used"):
            Client("127.0.0.1:1", authority=blank)


def test_certificates_of_callers_need_one_of_the_server():
    with pytest.raises(BadInput, match="the server has no certificate") as caught:
        ServiceConfig("127.0.0.1:0", client_authority=Path("ca.pem"))
    assert caught.value.field == "client_authority"


def test_a_clients_certificate_goes_with_its_key(pairs):
    (chain, key), (_, other_key) = pairs
    for given in ({"certificate": chain}, {"key": key}):
        with pytest.raises(BadInput, match="goes with its key"):
            Client("127.0.0.1:1", **given)
    with pytest.raises(BadInput, match="cannot be used together"):
        Client("127.0.0.1:1", certificate=chain, key=other_key)
    Client("192.0.2.1:1", token="t", certificate=chain, key=key).close()  # which speaks TLS


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
    pair = tmp_path / "hub.pem", tmp_path / "hub.key"
    made = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days")
    named = ("1", "-subj", "/CN=hub", "-addext", "subjectAltName=DNS:hub.example.org,IP:10.0.0.7")
    subprocess.run([*made, *named, "-out", str(pair[0]), "-keyout", str(pair[1])], check=True, capture_output=True)
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

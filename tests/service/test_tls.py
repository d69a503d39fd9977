from __future__ import annotations

import shutil
import ssl
import subprocess
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from dualform.errors import BadInput, Unavailable
from dualform_client import Client
from dualform_service.config import ServiceConfig
from dualform_service.server import Server

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
        url = f"https://127.0.0.1:{server.metrics_address.rpartition(':')[2]}/metrics"
        scrape = Request(url, headers={"Authorization": "Bearer t"})
        with urlopen(scrape, timeout=60, context=ssl.create_default_context(cafile=chain)) as page:
            assert b"dualform_open_calls 0.0" in page.read()
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

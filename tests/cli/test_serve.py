"""dualform serve as a process of its own: it says where it listens, answers, and drains when told to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from urllib.request import Request, urlopen

from dualform.query.score import backends
from dualform_client import Client
from dualform_client.connection import is_serving
from dualform_service.auth import new_token


@contextmanager
def serving(folder, *options):
    command = [sys.executable, "-m", "dualform_client.cli", "serve", str(folder), "--address", "127.0.0.1:0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


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
        with urlopen(Request(url, headers={"Authorization": f"Bearer {token}"}), timeout=60) as page:
            text = page.read().decode()
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


def test_health(dualform, address):
    assert dualform("health", address) == (0, "serving\n", "")
    assert dualform("health", address, "--json").json == {"serving": True}
    assert dualform("health", "127.0.0.1:1", "--json").json["error"]["code"] == "unavailable"
    assert dualform("health", f"{address}/other", "--json").json["error"] == {
        "code": "not_found",
        "message": f"The server at {address} has no memory 'other'.",
        "hint": f"Ask for the server as a whole: dualform health {address}",
    }


def test_a_public_address_needs_tls_and_a_token(dualform, folder):
    told = dualform("serve", folder, "--address", "0.0.0.0:0", "--json")
    assert told.code == 2
    assert "needs both TLS and a token" in told.json["error"]["message"]

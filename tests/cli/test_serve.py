"""dualform serve as a process of its own: it says where it listens, answers, and drains when told to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from urllib.request import urlopen

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
    token, line = new_token("alice", ["read", "sql"])
    (tmp_path / "tokens").write_text(f"{line}\n")
    with serving(folder, "--json", "--sql", "--token-file", str(tmp_path / "tokens")) as (process, line):
        address = json.loads(line)["address"]
        assert is_serving(address)
        with Client(address, token=token) as client:
            assert client.info().steps == 6
            assert client.sql("SELECT 1 AS a")["a"].tolist() == [1]
        process.send_signal(signal.SIGTERM)
        _, logged = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "draining" in logged
    assert backends.described(backends.choose()) in logged
    assert "Info: 1 ok" in logged
    assert "Traceback" not in logged
    assert token not in logged


def test_with_log_json_stderr_is_json_line_by_line(folder):
    with serving(folder, "--json", "--log", "json") as (process, line):
        with Client(json.loads(line)["address"]) as client:
            assert client.info().steps == 6
        process.send_signal(signal.SIGTERM)
        _, logged = process.communicate(timeout=60)
    assert process.returncode == 0
    lines = [json.loads(line) for line in logged.splitlines()]
    calls = [line for line in lines if line["kind"] == "call"]
    assert [(call["method"], call["outcome"]) for call in calls] == [("Info", "ok")]
    said = [line["message"] for line in lines if line["kind"] == "log"]
    assert "draining: a second signal ends the server at once" in said
    assert said[-1].startswith("Info: 1 ok; mean ")


def test_metrics_are_scraped_where_it_says(folder):
    with serving(folder, "--metrics", "127.0.0.1:0") as (process, line):
        assert line.startswith(f"serving {folder} at 127.0.0.1:")
        with Client(line.rpartition(" at ")[2].strip()) as client:
            layer = client.info().layers[0]
            client.topk(layer.name, [[1.0] * layer.d_in], k=1)
        said = next(line for line in process.stderr if "metrics at " in line)
        with urlopen(said.split("metrics at ")[1].strip(), timeout=60) as page:
            text = page.read().decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert (
        lines[f'dualform_calls_total{{layer="{layer.name}",memory="{folder.name}",method="TopK",outcome="ok"}}']
        == "1.0"
    )
    assert float(lines["dualform_read_bytes_total"]) > 0
    assert float(lines[f'dualform_screened_queries_total{{memory="{folder.name}"}}']) == 1
    assert "dualform_ram_limit_bytes" not in lines


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

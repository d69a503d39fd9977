"""dualform mcp: what keeps it from starting. What it answers: tests/agents/."""

from __future__ import annotations

import json
import subprocess
import sys


def test_a_missing_package_is_named_with_its_extra(dualform, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    told = dualform("mcp", folder)
    assert told.code == 1
    assert "The package mcp is not installed; the extra [mcp] brings it." in told.err
    assert "pip install 'dualform[mcp]'" in told.err


def test_a_target_that_is_none_is_said_before_anything_is_spoken(dualform, tmp_path):
    told = dualform("mcp", tmp_path / "nix", "--json")
    assert told.json["error"]["code"] == "not_a_memory"


LINES = {
    "half of a surrogate pair": (r'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"\ud800"}}', 3),
    "half of one in its id": (r'{"jsonrpc":"2.0","id":"\ud800","method":"tools/list"}', None),
    "no JSON": ("not JSON", None),
    "no message": ('{"jsonrpc":"2.0","id":"four"}', "four"),
    "a list": ("[]", None),
}


def test_every_line_gets_a_reply(folder):
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    first = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})
    last = '{"jsonrpc":"2.0","id":9,"method":"tools/list"}'
    with subprocess.Popen(
        [sys.executable, "-m", "dualform_client.cli", "mcp", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            said = []
            ready = '{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
            for line in (first, *(line for line, _ in LINES.values()), last):
                process.stdin.write(f"{ready if line == last else ''}{line}\n".encode())
                process.stdin.flush()
                said.append(json.loads(process.stdout.readline()))
        finally:
            process.stdin.close()
            process.wait(60)
    assert [own["id"] for own in said] == [0, *(number for _, number in LINES.values()), 9]
    assert [own["error"]["code"] for own in said[1:-1]] == [-32700] * len(LINES)
    assert said[-1]["result"]["tools"]

"""The steps of docs/operations.md, followed as they are written, at ports that are free."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store import small_memory

DOCUMENT = (Path(__file__).parent.parent.parent / "docs" / "operations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", DOCUMENT, re.DOTALL)


def free_port():
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return trial.getsockname()[1]


@pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "openssl", "curl"))), reason="the steps use bash, openssl and curl"
)
def test_the_steps_lead_to_a_server_a_scrape_and_a_backup(tmp_path):
    small_memory.write(tmp_path / "runs/mine", [4])
    steps = "".join(BLOCKS)
    assert steps.count("dualform serve") == 1
    for port in ("50051", "9464"):
        steps = steps.replace(port, str(free_port()))
    (tmp_path / "bin").mkdir()
    own = tmp_path / "bin/dualform"
    own.write_text(f'#!/bin/sh\nexec {sys.executable} -m dualform_client.cli "$@"\n')
    own.chmod(0o755)
    script = f"set -euo pipefail\ntrap 'kill \"${{server:-}}\" 2>/dev/null || true' EXIT\n{steps}"
    told = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{own.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert 'dualform_calls_total{layer="",memory="mine",method="Info",outcome="ok"} 1.0' in told.stdout
    assert '"token": "alice"' in told.stdout
    for secret in (tmp_path / "secrets/alice.token", tmp_path / "secrets/prometheus.token"):
        token = secret.read_text().strip()
        assert token not in told.stdout + told.stderr + (tmp_path / "calls.jsonl").read_text()

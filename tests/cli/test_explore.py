"""dualform explore: what it says, and what it refuses before it begins."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest


def test_it_says_its_address_and_ends_with_ctrl_c(folder):
    command = [sys.executable, "-m", "dualform_client.cli", "explore", str(folder), "--address", "127.0.0.1:0"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = json.loads(process.stdout.readline())["url"]
            with urllib.request.urlopen(url, timeout=60) as page:
                assert "test" in page.read().decode()
        finally:
            os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--address", "0.0.0.0:0"], "0.0.0.0:0 can be reached from other machines, and no token is asked for."),
        (["--address", "nowhere"], "nowhere"),
        (["--root-path", "explorer"], "root_path is 'explorer'."),
        (["--access", "none.txt"], "The token file none.txt cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(dualform, folder, arguments, message):
    told = dualform("explore", folder, *arguments)
    assert told.code == 2
    assert message in told.err


def test_an_address_that_is_taken_is_refused(dualform, folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        told = dualform("explore", folder, "--address", address)
    assert told.code == 2
    assert f"Nothing can listen at {address}" in told.err


def test_a_folder_that_is_no_memory_is_refused_at_once(dualform, tmp_path):
    assert "There is no folder" in dualform("explore", tmp_path / "none").err
    assert "A target is given twice." in dualform("explore", tmp_path, tmp_path).err


def test_without_its_extra_the_command_names_it(folder):
    code = """
import sys
sys.modules["starlette"] = None
from dualform_client.cli import main
sys.exit(main(["explore", sys.argv[1]]))
"""
    told = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert told.returncode == 1
    assert "the extra [explore] brings it" in told.stderr
    assert "Traceback" not in told.stderr

"""The examples of the start, the concepts and the how-tos run as they stand, each page in an empty folder."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.site.pages import BLOCK, DOCS, MARK, PAGES, script

RECORDED = "of the [five-minute start](../start.md#record)"
"""What a page says that goes on from the start's memory."""
SECONDS = 200


def run(page: Path, folder: Path) -> str:
    """What the page's script prints, on a free port where it serves. Fails where any of its commands does."""
    commands = script(page).replace("50051", str(free_port()))
    here = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        ["bash", "-c", commands], cwd=folder, env=os.environ | here, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a server that the page left
    assert process.returncode == 0, printed
    return printed


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A folder in which somebody has gone through the start, and what that printed."""
    folder = tmp_path_factory.mktemp("started")
    return folder, run(DOCS / "start.md", folder)


def test_the_start_is_gone_through(started):
    folder, printed = started
    assert (folder / "first-half.safetensors").is_file()
    assert "Reconstruction errors: 2 layers" in printed


@pytest.mark.parametrize("document", PAGES[1:], ids=lambda path: path.stem)
def test_the_page_runs(document, tmp_path, request):
    if RECORDED in document.read_text(encoding="utf-8"):
        shutil.copytree(request.getfixturevalue("started")[0] / "runs", tmp_path / "runs")
    printed = run(document, tmp_path)
    if document.stem == "concepts":
        assert printed == "[3. 2.]\n[ 2.3 -0.1] [ 2.3 -0.1]\n"
    if document.stem == "resuming":
        assert "stopped" in printed
        assert re.search(r"^\s*steps\s.*^\s*30\s", printed, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", PAGES, ids=lambda path: path.stem)
def test_every_block_of_code_is_run(document):
    text = document.read_text(encoding="utf-8")
    assert len(BLOCK.findall(text)) == text.count(MARK) == text.count("\n```python\n") + text.count("\n```bash\n") > 0

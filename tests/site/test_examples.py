"""The examples of the pages run as they stand, each page in an empty folder, and print what is shown."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.site.pages import BLOCK, DOCS, MARK, PAGES, script, shown_but_not_printed

RECORDED = re.compile(r"continues\s+\[the start\]")
"""What a page says that needs the memory and the files of the start."""
SECONDS = 200


def run(page: Path, folder: Path, commands: Path) -> str:
    """What the page's script prints, on a free port where it serves. Fails where any of its commands does."""
    lines = script(page).replace("50051", str(free_port()))
    here = {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    here["PYTHON_EXEC"] = str(commands / "python")  # what torchrun starts
    with subprocess.Popen(
        ["bash", "-c", lines], cwd=folder, env=os.environ | here, start_new_session=True, text=True,
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
def started(tmp_path_factory, commands):
    """A folder in which somebody has gone through the start, and what that printed."""
    folder = tmp_path_factory.mktemp("started")
    return folder, run(DOCS / "start.md", folder, commands)


def test_the_start_is_gone_through(started):
    folder, printed = started
    assert (folder / "first-task.safetensors").is_file()
    assert shown_but_not_printed(DOCS / "start.md", printed) == []
    now, without, *steps = (int(share) for share in re.findall(r"^.*: (\d+)%$", printed, re.MULTILINE))
    assert now < 10 < 90 < without
    assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize(
    "document", [page for page in PAGES[1:] if MARK in page.read_text("utf-8")], ids=lambda path: path.stem
)
def test_the_page_runs(document, tmp_path, commands, request):
    if RECORDED.search(document.read_text(encoding="utf-8")):
        shutil.copytree(request.getfixturevalue("started")[0], tmp_path, dirs_exist_ok=True)
    printed = run(document, tmp_path, commands)
    assert shown_but_not_printed(document, printed) == []
    if document.stem == "resuming":
        assert "stopped" in printed
        assert re.search(r"^\s*steps\s.*^\s*30\s", printed, re.MULTILINE | re.DOTALL)


def test_every_block_of_code_is_run():
    for document in PAGES:
        text = document.read_text(encoding="utf-8")
        blocks = text.count("\n```python\n") + text.count("\n```bash\n")
        assert len(BLOCK.findall(text)) == text.count(MARK) == blocks, document

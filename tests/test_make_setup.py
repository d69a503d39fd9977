"""`make setup` says what takes minutes: on a terminal pip shows what it fetches, a log gets a line and pip's errors."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parent.parent / "Makefile"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """With a Python that makes no environment, and notes what pip was told."""
    shutil.copy(MAKEFILE, tmp_path)
    for name in ("pyproject.toml", "setup.py", "constraints.txt"):
        (tmp_path / name).touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text('#!/bin/sh\necho "$*" >> told\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    return tmp_path


def make(checkout: Path, errors: int) -> str:
    command = ["make", "setup", "VENV=.", "BIN=./bin", "PYTHON=./bin/python"]
    # Not as a part of the make that runs the tests, which would have it say where it is.
    own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    made = subprocess.run(command, cwd=checkout, env=own, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=60)
    assert made.returncode == 0
    return made.stdout


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "log"])
def test_setup_says_what_it_does(checkout, terminal):
    ours, its = pty.openpty()
    with open(os.devnull, "w") as nowhere:
        said = make(checkout, its if terminal else nowhere.fileno())
    os.close(ours)
    os.close(its)
    assert "pip fetches PyTorch" in said.splitlines()[0]
    (pip,) = [line for line in (checkout / "told").read_text().splitlines() if "pip install" in line]
    assert ("--quiet" in pip) != terminal
    assert "[dev]" in pip

"""Tests that want a browser skip without one and say why; where one is required they fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.explorer.chromium import MISSING, REQUIRED

ROOT = Path(__file__).parents[2]
WANTING = (
    "tests/explorer/test_export_in_browser.py::test_both_themes_can_be_chosen",
    "tests/explorer/browser/test_previews.py::test_a_script_in_a_training_text_stays_text",
    "tests/notebook/test_in_a_browser.py::test_a_token_is_chosen",
)


@pytest.mark.parametrize("required", [False, True], ids=["where none is required", "where one is"])
def test_without_chromium_tests_that_want_it_skip_with_a_reason_or_fail(tmp_path, required):
    env = {name: value for name, value in os.environ.items() if name != REQUIRED} | {"PATH": str(tmp_path)}
    env |= {REQUIRED: "1"} if required else {}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", *WANTING]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert MISSING in done.stdout, done.stdout + done.stderr
    outcome = f"{len(WANTING)} errors" if required else f"{len(WANTING)} skipped"
    assert done.stdout.splitlines()[-1].startswith(outcome), done.stdout
    assert done.returncode == (1 if required else 0)


def test_it_is_looked_for_in_one_place():
    found = [file for file in (ROOT / "tests").rglob("*.py") if "executable_path" in file.read_text(encoding="utf-8")]
    assert [file.relative_to(ROOT).as_posix() for file in found if file != Path(__file__)] == [
        "tests/explorer/chromium.py"
    ]

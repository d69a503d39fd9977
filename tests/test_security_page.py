"""docs/security.md says what is held by a test, and names tests that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
LINES = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| what is", "| ---"))]


def named(line: str) -> list[tuple[str, str]]:
    """The tests of a line: file and function."""
    return re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", line)


def test_the_page_has_lines():
    assert len(LINES) > 10


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split("|")[1].strip()[:40])
def test_every_line_names_tests_that_there_are(line):
    assert named(line)
    assert line.count("::") == len(named(line))
    for file, function in named(line):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert function in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}, (file, function)


def test_what_is_not_defended_against_is_said():
    assert PAGE.split("## Not defended against\n")[1].count("\n- ") >= 4

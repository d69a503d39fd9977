"""While a training records in another process, its page offers what is new, and moves only when the reader says so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dualform
from tests.explorer.chromium import chromium, needs_chromium
from tests.explorer.served import served

pytestmark = needs_chromium
SLOTS = 12
"""Of a step."""
SCANNED = '#panel-record div:has(> dt:has-text("slots scanned"))'


class Training:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def take(self, steps: int) -> int:
        """How many there are once these are on disk."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    command = [sys.executable, "-m", "tests.explorer.recording_process", str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Training(process)
        finally:
            process.kill()


def test_newer_steps_are_offered_and_shown_when_asked_for(training: Training, tmp_path: Path) -> None:
    assert training.take(2) == 2
    with served({"run": lambda: dualform.open(tmp_path / "run")}) as pages, chromium() as browser:
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)

        def slots() -> str | None:
            return page.locator(f"{SCANNED} data").first.get_attribute("value")

        page.goto(f"{pages.url}explore?item=test/1&open=data,layers,training,record")
        assert page.get_attribute("#answers", "data-recording") == "yes"
        assert not page.is_visible("#news")
        assert slots() == str(2 * SLOTS)
        before = page.inner_html("#answers")

        assert training.take(5) == 7
        page.wait_for_selector("#news", state="visible", timeout=30_000)
        assert page.inner_text("#news span") == "The training has reached step 7."
        assert page.inner_html("#answers") == before
        page.click("#panel-layers a[data-layer='0']")
        page.wait_for_selector("#panel-layers a[data-layer='0'][aria-current]")
        assert slots() == str(2 * SLOTS), "a click moved the page to another snapshot"

        page.click("#news a")
        page.locator(f"{SCANNED} data[value='{7 * SLOTS}']").first.wait_for()
        assert not page.is_visible("#news")
        assert "layer=0" in page.url

        training.end()
        page.reload()
        assert page.get_attribute("#answers", "data-recording") is None
        assert slots() == str(7 * SLOTS)
        assert errors == []

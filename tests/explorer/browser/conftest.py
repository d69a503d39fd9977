"""Tests with a browser: one in each worker, for as long as its tests are those of this folder, and one tab, which is
emptied after each test. Its loop runs beneath them, and tests of other folders run loops of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

import dualform
from dualform.methods import Answers
from tests.explorer.browser.shown import address
from tests.explorer.browser.watch import Watch
from tests.explorer.chromium import launched
from tests.explorer.conftest import SECONDS
from tests.explorer.recorded import SIDE
from tests.explorer.served import Served, served
from tests.reliability import rounds, soaking

NewContext = Callable[..., BrowserContext]
expect.set_options(timeout=rounds(20_000, 600_000))


@pytest.fixture(scope="package")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as found:
        yield found


@pytest.fixture(scope="package")
def browser(playwright: Playwright) -> Iterator[Browser]:
    found = launched(playwright)
    yield found
    found.close()


@pytest.fixture(scope="package")
def browser_context_args() -> dict[str, Any]:
    return {"reduced_motion": "reduce"}


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Every test with a page ends with it."""
    found = Watch()
    yield found
    assert found.elsewhere == []
    assert found.unexpected == []


@pytest.fixture
def new_context(watch: Watch, new_context: NewContext) -> NewContext:
    def watched(**options: Any) -> BrowserContext:
        context = new_context(**options)
        context.set_default_timeout(rounds(30_000, 600_000))
        watch.over(context)
        return context

    return watched


@pytest.fixture(scope="package")
def tab(browser: Browser, browser_context_args: dict[str, Any]) -> Iterator[Page]:
    context = browser.new_context(**browser_context_args)
    context.set_default_timeout(rounds(30_000, 600_000))
    yield context.new_page()
    context.close()


EMPTIED = "() => { try { localStorage.clear(); sessionStorage.clear(); } catch { /* of a page without an origin */ } }"


@pytest.fixture
def page(tab: Page, watch: Watch) -> Iterator[Page]:
    tab.set_viewport_size({"width": 1280, "height": 720})
    watch.over(tab.context)
    yield tab
    tab.mouse.move(0, 0)
    tab.evaluate(EMPTIED)
    tab.goto("about:blank")
    watch.leave(tab.context)


@dataclass(frozen=True)
class Study:
    memory: Answers
    pages: Served
    query_set: str
    """Of the dataset that was learned first."""
    other: str
    """The dataset that was learned after it, and made the network forget."""
    layers: tuple[str, ...]
    """All recorded ones, of which the last gives the network's outputs."""
    side: int
    """Of its images, in pixels."""

    @property
    def where(self) -> str:
        """The mask that leaves the other dataset out."""
        return f"dataset <> '{self.other}'"

    def url(self, item: str, **params: str) -> str:
        return self.pages.url + address(item, self.layers[-1], **params)


STUDIES = {
    "patterns": ("folder", "shapes", "noise <b>", ("0", "2", "4"), SIDE),
    "the demo": ("demo_folder", "test-digits", "permuted-digits", ("layer-0", "layer-1", "layer-2"), 8),
    "the continual study": ("continual_folder", "test-mnist", "fashion-mnist", ("layer-0", "layer-1", "layer-2"), 28),
}
"""By name the fixture of a memory's folder, and what a `Study` says of it."""
LONG = [pytest.param(name, marks=pytest.mark.soak) for name in ("the demo", "the continual study") if soaking()]


@pytest.fixture(scope="package", params=["patterns", *LONG])
def study(request) -> Iterator[Study]:
    """A memory of images: one of our own, and in `make soak` those of `make demo` and of a study."""
    fixture, *names = STUDIES[request.param]
    folder = request.getfixturevalue(fixture)
    if request.param == "patterns":
        yield Study(request.getfixturevalue("memory"), request.getfixturevalue("pages"), *names)
        return
    with dualform.open(folder) as memory, served({"run": lambda: dualform.open(folder)}, deadline=SECONDS) as pages:
        yield Study(memory, pages, *names)

"""Tests with a browser: one in each worker, for as long as its tests are those of this folder. Its loop runs beneath
them, and tests of other folders run loops of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

import dualform
from tests.explorer.browser.study import Study
from tests.explorer.browser.watch import Watch
from tests.explorer.chromium import launched
from tests.explorer.recorded import SIDE
from tests.explorer.served import Served, served

NewContext = Callable[..., BrowserContext]
expect.set_options(timeout=20_000)


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
        watch.over(context)
        return context

    return watched


@pytest.fixture
def page(new_context: NewContext) -> Page:
    return new_context().new_page()


@pytest.fixture(scope="package")
def pages(folder) -> Iterator[Served]:
    with served({"run": lambda: dualform.open(folder)}, deadline=60.0) as found:
        yield found


@pytest.fixture(scope="package", params=["patterns", "the demo"])
def study(request) -> Iterator[Study]:
    """The acceptance tests' memories of images: one of ours, and that of `make demo`."""
    if request.param == "patterns":
        memory, pages = request.getfixturevalue("memory"), request.getfixturevalue("pages")
        yield Study(memory, pages, "shapes", "noise <b>", ("0", "2", "4"), SIDE)
        return
    folder = request.getfixturevalue("demo_folder")
    with dualform.open(folder) as memory, served({"demo": lambda: dualform.open(folder)}, deadline=60.0) as pages:
        yield Study(memory, pages, "test-digits", "permuted-digits", ("layer-0", "layer-1", "layer-2"), 8)


@pytest.fixture(scope="package")
def text_pages(text_folder) -> Iterator[Served]:
    with served({"text": lambda: dualform.open(text_folder)}, deadline=60.0) as found:
        yield found

"""The pictures of docs/explorer.md: python -m tests.explorer.screenshots RUN docs/explorer

Of the first example of the start page, as it is: in light, and in dark what each group added to it, and a map of
its layer; and on a phone without the group that added most.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, expect

import dualform
from tests.explorer.browser.shown import settle
from tests.explorer.chromium import CHROMIUM, MISSING, chromium
from tests.explorer.served import served


def take(run: Path, folder: Path) -> None:
    """Writes light.png, dark.png, map.png and phone.png."""
    if CHROMIUM is None:
        sys.exit(MISSING)
    folder.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=120_000)  # the first placebo of a long training reads it whole
    opened = {run.name: lambda: dualform.open(run)}
    with served(opened, deadline=60.0) as pages, chromium() as browser:
        page = _tab(browser, 1440, 1080)
        page.goto(pages.url)
        page.locator(".more .cards a").first.click()
        page.locator("#answers").wait_for()
        settle(page)
        example = page.url
        _picture(page, folder / "light.png")
        rows = page.locator("#waterfall tr[data-part=group]")
        added = [float(own.locator("data").get_attribute("value") or 0) for own in rows.all()]
        rows.nth(added.index(max(added))).locator(".acts a").click()
        settle(page)
        masked = page.url

        page = _tab(browser, 1440, 1080, color_scheme="dark")
        page.goto(example)
        settle(page)
        page.get_by_role("link", name="contribution").click()
        settle(page)
        page.locator("#fold-data").click()
        settle(page)
        _picture(page, folder / "dark.png")
        page.goto(example)
        page.get_by_role("link", name="map").click()
        page.locator("#map canvas").wait_for()
        page.wait_for_load_state("networkidle")
        _picture(page, folder / "map.png")

        page = _tab(browser, 390, 1100, device_scale_factor=1.5)
        page.goto(masked)
        settle(page)
        _picture(page, folder / "phone.png")


def _tab(browser: Browser, width: int, height: int, **options: Any) -> Page:
    viewport = {"width": width, "height": height}
    return browser.new_context(viewport=viewport, reduced_motion="reduce", **options).new_page()


def _picture(page: Page, file: Path) -> None:
    page.mouse.move(0, 0)
    page.screenshot(path=file)
    with Image.open(file) as shown:
        shown.convert("RGB").quantize(256).save(file, optimize=True)


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(sys.argv[2]))

"""By keyboard, by ear, in large letters and on small screens."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.explorer.browser.shown import address, corrected_card, numbers, settle

MASKED = address("shapes/3", without="label:1", k="12")
PAGES = {
    "start": "",
    "masked": MASKED + "&score=contribution&target=3-0&at=50&as=samples&verify=yes&w0=off",
    "empty mask": address("shapes/3", where="label = 99"),
    "paper": "paper" + MASKED.removeprefix("explore"),
    "faults": address("shapes/3", "9"),
}
REFUSED = "Failed to load resource: the server responded with a status of 400"
"""What a browser notes of the page that names faults."""


def reach(page: Page, selector: str, key: str = "Tab") -> None:
    """Until what is meant has the focus, as by a reader who has no pointer."""
    for _ in range(150):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press(key)
    raise AssertionError(f"{selector} is not reached with {key}")


def test_the_whole_task_is_done_by_keyboard(page, pages, memory):
    page.goto(pages.url)
    row = corrected_card(page, "shapes", "noise <b>").get_attribute("data-row")
    reach(page, f"[data-query-set='shapes'] .cards a[data-row='{row}']")
    page.keyboard.press("Enter")
    expect(page.locator("#answers")).to_be_attached()
    settle(page)
    item = page.locator("#item").input_value()
    heading = page.locator("#heading")

    page.keyboard.press("h")
    expect(heading).to_have_text(f"{item} in layer 2")
    settle(page)
    page.keyboard.press("l")
    expect(heading).to_have_text(f"{item} in layer 4")
    settle(page)
    reach(page, "#fold-data")
    page.keyboard.press("Enter")
    expect(page.locator("#title-slots")).to_contain_text("in layer 4")
    settle(page)
    assert page.evaluate("document.activeElement.id") == "fold-data"

    reach(page, "nav[aria-label='Score'] a:last-child")
    page.keyboard.press("Enter")
    settle(page)
    assert page.evaluate("document.activeElement.textContent") == "contribution"  # the focus stays

    reach(page, "#sums a[aria-label^='without noise']")
    page.keyboard.press("Enter")
    settle(page)
    expect(page.locator("#where")).to_contain_text("noise <b>")
    page.keyboard.press("u")
    expect(page.locator("#where")).to_have_count(0)
    settle(page)

    page.keyboard.press("/")
    page.keyboard.type("noise <b>")
    reach(page, "select[name='column']", "Shift+Tab")
    page.keyboard.type("dataset")
    reach(page, "#filter-value")
    page.keyboard.press("Enter")
    expect(page.locator("#flips")).to_be_visible()
    settle(page)
    masked = memory.output("4", item, "dataset <> 'noise <b>'")
    assert numbers(page.locator("#outputs .ablated data")) == masked[0].tolist()

    page.keyboard.press("Escape")
    page.keyboard.press("s")
    expect(page.locator("#by-sample")).to_have_attribute("aria-current", "true")
    settle(page)
    page.keyboard.press("j")
    expect(page.locator("#item")).not_to_have_value(item)
    settle(page)
    page.keyboard.press("k")
    expect(page.locator("#item")).to_have_value(item)
    settle(page)
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("j")  # while the keys are shown, nothing moves
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.locator("#item")).to_have_value(item)


def serious(page: Page, options: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Of each serious violation that axe finds its name, and some of the elements."""
    return [
        (own["id"], [node["html"] for node in own["nodes"]][:3])
        for own in Axe().run(page, options=options).response["violations"]
        if own["impact"] in ("serious", "critical")
    ]


def test_axe_finds_nothing_serious(pages, text_pages, new_context, watch):
    """Its script is let past the guard of the pages, in these tabs alone. In the dark the colours alone are others."""
    watch.expected.append(REFUSED)
    page = new_context(bypass_csp=True, color_scheme="light").new_page()
    options = {"resultTypes": ["violations"]}
    text = "explore?item=held/3&token=2&layer=3&by=label&without=label:2&k=12&open=data,layers,training,record"
    found = "search?q=mouse&item=held/3"
    for url in (*(pages.url + path for path in PAGES.values()), *(text_pages.url + path for path in (text, found))):
        page.goto(url)
        page.locator("details").evaluate_all("all => all.forEach(own => (own.open = true))")
        assert (url, serious(page, options)) == (url, [])
        page.emulate_media(color_scheme="dark")
        assert (url, serious(page, {**options, "runOnly": ["color-contrast", "link-in-text-block"]})) == (url, [])
        page.emulate_media(color_scheme="light")
    page.goto(pages.url + address("shapes/3"))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert serious(page, options) == []


def test_pages_reflow_without_scrolling_sideways(pages, text_pages, new_context, watch):
    """At 400 % of 1280, which is narrower than a phone."""
    watch.expected.append(REFUSED)
    width = 320
    page = new_context(viewport={"width": width, "height": 740}).new_page()
    text = "explore?item=held/0&token=0&layer=3&by=label&without=label:2&k=12&open=data,layers,training,record"
    found = "search?q=mouse&item=held/3"
    for url in (*(pages.url + path for path in PAGES.values()), *(text_pages.url + path for path in ("", text, found))):
        page.goto(url)
        page.locator("details").evaluate_all("all => all.forEach(own => (own.open = true))")
        wider = page.evaluate(
            """() => [...document.querySelectorAll('body *')].filter(own => {
                const box = own.getBoundingClientRect();
                return box.right > innerWidth + 1 && !own.closest('.wide, .scroll, .away, .skip, svg');
            }).map(own => own.outerHTML.slice(0, 120))"""
        )
        assert (url, wider) == (url, [])
        assert page.evaluate("document.documentElement.scrollWidth") <= width

"""Pages ask nobody but their server, and have nothing to complain of: every test here ends with that."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.explorer.browser.shown import address, settle
from tests.explorer.browser.watch import Watch


def test_everything_is_there_while_requests_to_other_servers_are_aborted(page, pages, text_pages, watch):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    masked = address("shapes/3", without="label:1", k="60")
    for url in (
        *(pages.url, pages.url + masked, pages.url + "paper" + masked.removeprefix("explore")),
        *(text_pages.url, text_pages.url + "explore?item=held/3&layer=3&by=label"),
    ):
        page.goto(url)
        page.wait_for_load_state("networkidle")
        expect(page.locator("[data-failure]")).to_have_count(0)
        assert page.evaluate("[...document.images].every(own => own.complete && own.naturalWidth > 0)")
        assert page.evaluate("[...document.styleSheets].length") == 1
    page.goto(pages.url + address("shapes/3"))
    page.keyboard.press("l")
    settle(page)
    assert {url for url in asked if not url.startswith(("http://127.0.0.1:", "data:"))} == set()
    assert any("static/explorer.js" in url for url in asked)


def test_a_request_to_another_server_and_a_complaint_would_be_seen(page, watch):
    page.goto("about:blank")
    page.evaluate("fetch('http://elsewhere.test/').catch(() => console.error('it was aborted'))")
    page.wait_for_timeout(300)
    assert watch.elsewhere == ["http://elsewhere.test/"]
    assert "it was aborted" in watch.complaints
    watch.elsewhere.clear()
    watch.complaints.clear()


def test_what_is_expected_is_no_complaint():
    watch = Watch(complaints=["status of 400", "other"], expected=["of 4.."])
    assert watch.unexpected == ["other"]

"""The address is the whole page: it can be copied, gone back to, put under a path and into a frame."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest
from playwright.sync_api import expect

import dualform
from dualform.methods import Answers
from dualform.questions import Inventory
from tests.explorer.browser.shown import address, panels, served_to, settle


class Slow(Answers):
    """Answers as another one does, so many seconds later: about some layers, and `before` it says what it holds."""

    def __init__(self, answers: Answers, layers: Mapping[str, float] | None = None, before: float = 0.0) -> None:
        self.answers, self.layers, self.before = answers, layers or {}, before

    def ask(self, question):
        time.sleep(self.before if isinstance(question, Inventory) else 0.0)
        time.sleep(self.layers.get(getattr(question, "layer", ""), 0.0))
        return self.answers.ask(question)

    def close(self) -> None:
        self.answers.close()


def test_a_copied_link_in_another_browser_shows_the_same(page, pages, new_context):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(pages.url + address("shapes/3"))
    page.locator("#panel-filter .chip", has_text="noise <b>").click()
    settle(page)
    page.locator("#by-sample").click()
    settle(page)
    page.locator("#first").fill("5")
    page.locator("#last").fill("25")
    page.get_by_role("button", name="keep only").click()
    settle(page)
    page.locator("#copy").click()
    expect(page.locator("#copy")).to_have_text("copied")
    link = page.evaluate("navigator.clipboard.readText()")

    other = new_context(viewport={"width": 1440, "height": 900}).new_page()
    other.goto(link)
    settle(other)
    assert other.url == page.url
    assert panels(other) == panels(page)
    assert other.title() == page.title()
    expect(other.locator("#where")).to_have_text("step BETWEEN 5 AND 25 AND dataset <> 'noise <b>'")


def test_back_and_forward_show_what_was_there(page, pages):
    page.goto(pages.url + address("shapes/3"))
    settle(page)
    seen = [(page.url, panels(page))]
    for step in ("[data-layer='0']", "#panel-filter .chip:has-text('shapes')", "#after"):
        page.locator(step).first.click()
        settle(page)
        seen.append((page.url, panels(page)))
    assert len({url for url, _ in seen}) == 4
    for way, order in ((page.go_back, seen[-2::-1]), (page.go_forward, seen[1:])):
        for url, shown in order:
            way()
            expect(page).to_have_url(url)
            settle(page)
            assert panels(page) == shown


def test_of_many_keys_pressed_before_there_is_an_answer_only_the_last_example_is_shown(page, pages, folder):
    with served_to(page, {"run": lambda: Slow(dualform.open(folder), before=1.5)}) as slow:
        page.goto(slow.url + address("shapes/3"))
        settle(page)
        seen = page.evaluate_handle(
            """() => {
                const seen = [], query = () => document.querySelector('#title-query').textContent;
                const observed = new MutationObserver(() => seen.push(query()));
                observed.observe(document.querySelector('.side'), {childList: true, subtree: true});
                return seen;
            }"""
        )
        for _ in range(9):
            page.keyboard.press("j")
        page.keyboard.press("k")
        settle(page)
        expect(page).to_have_url(slow.url + address("shapes/11"))
        shown = panels(page)
        assert set(seen.json_value()) <= {"Example shapes/3", "Example shapes/11"}  # and none between
    page.goto(pages.url + address("shapes/11"))
    settle(page)
    assert panels(page) == shown


def test_an_answer_that_comes_late_does_not_take_the_place_of_a_newer_one(page, pages, folder):
    with served_to(page, {"run": lambda: Slow(dualform.open(folder), {"0": 0.7})}) as slow:
        page.goto(slow.url + address("shapes/3"))
        settle(page)
        # In one go: between two of Playwright's calls the first answer may have replaced the link.
        page.evaluate(
            """['0', '4'].forEach(own => document.querySelector(`[data-layer='${own}']`).dispatchEvent(
                new MouseEvent("click", {bubbles: true, cancelable: true})))"""
        )
        settle(page)
        shown = panels(page)
        page.wait_for_timeout(3000)  # in which what was asked before would have come
        assert panels(page) == shown
        expect(page).to_have_url(slow.url + address("shapes/3"))
    page.goto(pages.url + address("shapes/3"))
    settle(page)
    assert panels(page) == shown


def test_a_key_that_is_pressed_before_a_click_is_answered_adds_to_it(page, folder):
    with served_to(page, {"run": lambda: Slow(dualform.open(folder), before=1.0)}) as slow:
        page.goto(slow.url + address("shapes/3"))
        settle(page)
        page.evaluate(
            """() => {
                const click = new MouseEvent("click", {bubbles: true, cancelable: true});
                document.querySelector("[data-layer='2']").dispatchEvent(click);
                const press = key => document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
                ["j", "j", "j", "k"].forEach(press);
            }"""
        )
        settle(page)
        expect(page).to_have_url(slow.url + address("shapes/5", "2"))
        page.go_back()
        settle(page)
        expect(page).to_have_url(slow.url + address("shapes/3", "2"))


@pytest.mark.parametrize("prefix", ["", "user/me/explorer/"])
def test_it_works_under_a_path_and_in_a_frame_of_another_page(page, folder, prefix):
    with served_to(page, {"run": lambda: dualform.open(folder)}, root_path="/user/me/explorer") as under:
        around = (
            f'<!doctype html><title>hub</title><iframe src="{under.url}{prefix}" width="1200" height="800"></iframe>'
        )
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.set_content(around)
        frame = page.frame_locator("iframe")
        frame.locator(".cards a").first.click()
        expect(frame.locator("#answers")).to_be_attached()
        page.frames[1].wait_for_load_state()
        frame.locator("#panel-filter .chip", has_text="noise <b>").click()
        expect(frame.locator("#where")).to_have_text("dataset <> 'noise <b>'")
        frame.locator("#fold-layers").click()
        frame.locator("#paper").click()
        expect(frame.locator("#panel-layer-2")).to_be_visible()
        own = page.frames[1]
        own.wait_for_load_state("networkidle")
        assert own.url.startswith(f"{under.url}{prefix}paper?")
        assert page.title() == "hub"
        assert any("panels?" in url for url in asked)
        assert [url for url in asked if not url.startswith((under.url + prefix, "data:"))] == []

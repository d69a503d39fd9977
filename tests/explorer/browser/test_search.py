"""A phrase typed into the bar, the lines that have it, and a filter made of them."""

from __future__ import annotations

from functools import partial

from playwright.sync_api import expect

import dualform
from tests.explorer.browser.shown import served_to, settle
from tests.explorer.recorded_text import HOSTILE, passages
from tests.explorer.test_search import Shelf


def test_a_phrase_leads_to_a_filter_of_the_page_and_back(page, text_pages):
    page.goto(text_pages.url + "explore?item=held/3&token=2&layer=3&by=label")
    settle(page)
    page.locator("#search").fill("Cheese fox")
    page.keyboard.press("Enter")
    own = [sample for sample, passage in enumerate(passages()) if "cheese fox" in passage]
    expect(page.locator(".concordance mark")).to_have_text(
        ["cheese fox"] * len([*own, *(row for row in own if row < 8)])
    )
    lines = page.locator(".concordance .line").all_text_contents()
    assert [line.strip() for line in lines[: len(own)]] == [passages()[sample] for sample in own]
    marks = page.locator(".concordance mark").evaluate_all("all => all.map(own => own.getBoundingClientRect().left)")
    assert max(marks) - min(marks) < 1.0  # they stand below each other

    page.locator("#keep-found").click()
    settle(page)
    assert "item=held/3&token=2&layer=3&by=label" in page.url
    expect(page.locator("#where")).to_contain_text(f"sample IN ({', '.join(map(str, own))})")
    page.go_back()
    expect(page.locator("#search")).to_have_value("Cheese fox")
    page.locator("#back").click()
    settle(page)
    expect(page.locator("#where")).to_have_count(0)


def test_a_script_in_a_text_that_is_found_stays_text(page, text_pages):
    page.goto(text_pages.url + "search?q=" + "%3Cscript%3E")
    expect(page.locator(".concordance mark").first).to_have_text("<script>")
    expect(page.locator(".concordance .line").first).to_have_text(HOSTILE[: len("<script>") + 60] + "…")
    expect(page.locator("main script, main b:has-text('bold')")).to_have_count(0)
    assert "run" not in page.title()


def test_a_text_from_right_to_left_is_read_so_and_turns_nothing_beside_it(page, text_folder):
    arabic = "\u202eقال الثعلب إن العنب fox حامض ثم مضى في طريقه"  # noqa: RUF001
    shelf = partial(Shelf, texts={"fables": {3: arabic, 4: "a fox here"}})
    with served_to(page, {"text": lambda: shelf(dualform.open(text_folder))}) as pages:
        page.goto(pages.url + "search?q=fox")
        boxes = page.locator(".concordance li").evaluate_all(
            """all => all.map(own => ["b", ".before span", "mark", ".after"].map(
                part => own.querySelector(part).getBoundingClientRect().left))"""
        )
        (number, before, match, after), (other, *latin) = boxes[:2]
        assert number == other < after < match < before
        assert latin == sorted(latin)
        expect(page.locator(".concordance li").first).to_contain_text("#3 fables")


def test_without_scripts_a_search_is_a_form(new_context, text_pages):
    page = new_context(java_script_enabled=False, viewport={"width": 390, "height": 800}).new_page()
    page.goto(text_pages.url)
    page.locator("#search").fill("grapes")
    page.get_by_role("button", name="search").click()
    expect(page.locator("#searched")).to_contain_text("grapes")

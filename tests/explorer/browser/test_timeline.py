"""The charts over time follow the step that is dragged, and lead to one."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.explorer.browser.shown import address, settle


def test_values_follow_the_slider_and_a_click_goes_to_its_step(page, pages, memory):
    page.goto(pages.url + address("shapes/3"))
    settle(page)
    first = page.locator("#timeline [data-values]").first
    expect(first).to_contain_text("at step 60")
    page.locator("#at").evaluate("own => { own.value = 0; own.dispatchEvent(new Event('input', {bubbles: true})); }")
    expect(first).to_contain_text("at step 0")
    expect(page).to_have_url(pages.url + address("shapes/3"))
    chart = page.locator("#timeline svg").first
    chart.click(position={"x": chart.bounding_box()["width"] / 2, "y": 20})
    settle(page)
    expect(page).to_have_url(pages.url + address("shapes/3", at="30"))
    expect(first).to_contain_text("at step 30")

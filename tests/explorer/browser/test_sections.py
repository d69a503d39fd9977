"""Sections are folded at first, and ask nothing until they are unfolded; what is late comes by itself."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import expect

import dualform
from dualform.methods import Answers
from dualform.questions import TopK
from dualform_explorer.panels import panels_in
from tests.explorer.browser.shown import served_to, settle

FOLDED = "explore?item=shapes/3&layer=4&by=dataset,label"


class Watched(Answers):
    """Remembers what it was asked, and takes so many seconds for a ranking."""

    def __init__(self, answers: Answers, seconds: float = 0.0) -> None:
        self.answers, self.seconds, self.asked = answers, seconds, []

    def ask(self, question):
        self.asked.append(question)
        time.sleep(self.seconds if isinstance(question, TopK) else 0.0)
        return self.answers.ask(question)

    def close(self) -> None:
        self.answers.close()


def test_what_is_folded_asks_nothing_and_is_unfolded_by_a_link(page, folder):
    watched = Watched(dualform.open(folder))
    with served_to(page, {"run": lambda: watched}) as pages:
        page.goto(pages.url + FOLDED)
        settle(page)
        assert not [question for question in watched.asked if isinstance(question, TopK)]
        shown = page.locator("#panel-answer").inner_text()
        page.locator("#fold-data").click()
        settle(page)
        for name in panels_in("data"):
            expect(page.locator(f"#panel-{name}")).to_be_attached()
        expect(page.locator("#slots .slot")).to_have_count(24)
        expect(page).to_have_url(f"{pages.url}{FOLDED}&open=data")
        expect(page.locator("#fold-data")).to_have_attribute("aria-expanded", "true")
        assert page.locator("#panel-answer").inner_text() == shown
        page.reload()
        expect(page.locator("#slots .slot")).to_have_count(24)
        page.locator("#fold-data").click()
        expect(page.locator("#panel-slots")).to_have_count(0)
        expect(page).to_have_url(pages.url + FOLDED)


def test_signs_before_links_are_not_read_out(page, pages):
    page.goto(pages.url + FOLDED)
    settle(page)
    page.get_by_role("link", name="Data", exact=True).click()
    settle(page)
    expect(page.get_by_role("link", name="Data", exact=True)).to_have_attribute("aria-expanded", "true")


def test_the_same_without_scripts(new_context, pages):
    page = new_context(java_script_enabled=False).new_page()
    page.goto(pages.url + FOLDED)
    expect(page.locator("#panel-slots")).to_have_count(0)
    page.locator("#fold-data").click()
    expect(page.locator("#slots .slot")).to_have_count(24)


def test_a_panel_that_is_late_appears_by_itself_and_is_asked_once(page, folder):
    watched = Watched(dualform.open(folder), seconds=2.0)
    with served_to(page, {"run": lambda: watched}, deadline=0.5) as pages:
        page.goto(f"{pages.url}{FOLDED}&open=data")
        expect(page.locator("#panel-slots")).to_have_attribute("data-failure", "late")
        expect(page.locator("#slots .slot")).to_have_count(24)
        assert len([question for question in watched.asked if isinstance(question, TopK)]) == 1


def test_a_page_that_is_late_as_a_whole_appears_by_itself(page, folder):
    watched = Watched(dualform.open(folder), seconds=1.0)
    with served_to(page, {"run": lambda: watched}, deadline=0.5) as pages:
        page.goto(f"{pages.url}compare?a.item=shapes/3&b.item=shapes/3&b.at=20")
        expect(page.locator("#panel-compare")).to_have_attribute("data-failure", "late")
        expect(page.get_by_role("link", name="Look again")).to_be_visible()
        expect(page.locator("#differences")).to_be_visible(timeout=20_000)


def test_a_layer_is_chosen_in_the_bar(page, pages):
    page.goto(pages.url + FOLDED)
    settle(page)
    page.locator("#layer").select_option("2")
    expect(page.locator("#heading")).to_have_text("shapes/3 in layer 2")
    page.keyboard.press("Escape")
    page.locator("body").press("l")
    expect(page.locator("#heading")).to_have_text("shapes/3 in layer 4")


@pytest.mark.parametrize(
    "path",
    [
        *("", FOLDED, f"{FOLDED}&open=data,layers,training,record&without=label:1", "sample?dataset=shapes&sample=5"),
        *("search?q=fox", "map?item=shapes/3"),
    ],
)
def test_on_a_phone_everything_is_large_enough_for_a_finger(page, pages, path):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(pages.url + path)
    page.wait_for_load_state("networkidle")
    small = page.evaluate(
        """() => [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, summary, textarea")]
            .filter((own) => own.offsetParent && !own.classList.contains("skip"))
            .map((own) => [own.outerHTML.slice(0, 120), own.getBoundingClientRect()])
            .filter(([, box]) => box.height < 44 || box.width < 24)
            .map(([html, box]) => `${Math.round(box.width)} x ${Math.round(box.height)}: ${html}`)"""
    )
    assert small == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_on_a_phone_a_link_keeps_the_space_between_its_words(page, pages):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(pages.url + FOLDED + "&open=data")
    settle(page)
    number, name = (page.locator("#sums a.samples").first.locator(own).bounding_box() for own in ("bdi", ".called"))
    assert name["x"] - number["x"] - number["width"] > 2

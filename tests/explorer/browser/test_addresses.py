"""The address is the whole page; answers that are late, refused or gone are told of, and the rest of it stands."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

import dualform
from dualform.methods import Answers
from dualform.questions import Inventory, TopK
from dualform_client import Client
from dualform_explorer.panels import panels_in
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.explorer import recorded
from tests.explorer.browser.shown import address, panels, served_to, settle
from tests.explorer.served import served


class Held(Answers):
    """Answers as another one does, once the gate of what is asked is open: of a layer, of rankings, or of what the
    memory holds.
    """

    def __init__(self, answers: Answers) -> None:
        self.answers, self.asked = answers, []
        self.gates = {
            "0": threading.Event(),
            "4": threading.Event(),
            TopK: threading.Event(),
            Inventory: threading.Event(),
        }
        self.open()

    def open(self, *gates: object) -> None:
        for gate in gates or self.gates:
            self.gates[gate].set()

    def shut(self, gate: object) -> None:
        self.gates[gate].clear()

    def ask(self, question):
        self.asked.append(question)
        for gate in (type(question), getattr(question, "layer", "")):
            assert gate not in self.gates or self.gates[gate].wait(60)
        return self.answers.ask(question)

    def rankings(self) -> int:
        return sum(isinstance(question, TopK) for question in self.asked)

    def close(self) -> None:
        self.answers.close()


@pytest.fixture
def held(folder) -> Iterator[Held]:
    found = Held(dualform.open(folder))
    yield found
    found.open()


def test_a_copied_link_in_another_browser_shows_the_same(page, pages, new_context):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(pages.url + address("shapes/3", open="data,training"))
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
    page.goto(pages.url + address("shapes/3", open="layers"))
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


def test_of_many_keys_pressed_before_there_is_an_answer_only_the_last_example_is_shown(page, pages, held):
    def at(item: str, layer: str = "4") -> str:
        return address(item, layer, open="layers")

    with served_to(page, {"run": lambda: held}) as late:
        page.goto(late.url + at("shapes/3"))
        settle(page)
        held.shut(Inventory)
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
        held.open(Inventory)
        settle(page)
        expect(page).to_have_url(late.url + at("shapes/11"))
        shown = panels(page)
        assert set(seen.json_value()) <= {"Example shapes/3", "Example shapes/11"}  # and none between
        page.evaluate(
            """() => {
                const click = new MouseEvent("click", {bubbles: true, cancelable: true});
                document.querySelector("[data-layer='2']").dispatchEvent(click);
                const press = key => document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
                ["j", "j", "j", "k"].forEach(press);
            }"""
        )
        settle(page)
        expect(page).to_have_url(late.url + at("shapes/13", "2"))  # what a key adds to a click
        page.go_back()
        settle(page)
        expect(page).to_have_url(late.url + at("shapes/11", "2"))
    page.goto(pages.url + at("shapes/11"))
    settle(page)
    assert panels(page) == shown


def test_an_answer_that_comes_late_does_not_take_the_place_of_a_newer_one(page, pages, held):
    here = address("shapes/3", open="layers")
    with served_to(page, {"run": lambda: held}) as late:
        held.shut("0")
        page.goto(late.url + here.replace("open=layers", "open=record"))
        settle(page)
        # In one go: between two of Playwright's calls the first answer may have replaced the link.
        with page.expect_event("requestfailed", lambda request: "layer=0" in request.url):  # it is given up
            page.evaluate(
                """there => there.forEach(own => {
                    const link = Object.assign(document.createElement("a"), {href: own});
                    document.querySelector("main").append(link);
                    link.click();
                })""",
                [address("shapes/3", layer, open="layers") for layer in ("0", "4")],
            )
        held.open("0")
        settle(page)
        expect(page).to_have_url(late.url + here)
        shown = panels(page)
    page.goto(pages.url + here)
    settle(page)
    assert panels(page) == shown


def test_it_works_under_a_path_and_in_a_frame_of_another_page(new_context, folder):
    page = new_context().new_page()  # in a tab that has shown a page of ours, a blank one has its policy
    with served_to(page, {"run": lambda: dualform.open(folder)}, root_path="/user/me/explorer") as under:
        own = f"{under.url}user/me/explorer/"
        around = f'<!doctype html><title>hub</title><iframe src="{own}" width="1200" height="800"></iframe>'
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
        page.frames[1].wait_for_load_state("networkidle")
        assert page.frames[1].url.startswith(f"{own}paper?")
        assert page.title() == "hub"
        assert any("panels?" in url for url in asked)
        assert [url for url in asked if not url.startswith((own, "data:"))] == []


FOLDED = "explore?item=shapes/3&layer=4&by=dataset,label"


def test_what_is_folded_asks_nothing_and_what_is_late_appears_by_itself_and_is_asked_once(page, held):
    with served_to(page, {"run": lambda: held}, deadline=0.5) as pages:
        page.goto(pages.url + FOLDED)
        expect(page.locator("#sentence")).to_be_visible()
        settle(page)
        assert not held.rankings()
        shown = page.locator("#panel-answer").inner_text()
        held.shut(TopK)
        page.goto(f"{pages.url}{FOLDED}&open=data")
        expect(page.locator("#panel-slots")).to_have_attribute("data-failure", "late")
        held.open(TopK)
        expect(page.locator("#slots .slot")).to_have_count(24)
        assert held.rankings() == 1
        for name in panels_in("data"):
            expect(page.locator(f"#panel-{name}")).to_be_attached()
        assert page.locator("#panel-answer").inner_text() == shown
        held.shut("4")
        page.goto(f"{pages.url}compare?a.item=shapes/3&b.item=shapes/3&b.at=20")
        expect(page.locator("#panel-compare")).to_have_attribute("data-failure", "late")
        expect(page.get_by_role("link", name="Look again")).to_be_visible()
        held.open("4")
        expect(page.locator("#differences")).to_be_visible(timeout=20_000)


def test_a_killed_explorer_says_so_and_what_was_shown_stands(page, folder, watch):
    watch.expected.append("ERR_CONNECTION_REFUSED")
    with served({"run": lambda: dualform.open(folder)}) as pages:
        page.goto(pages.url + address("shapes/3"))
        settle(page)
    page.keyboard.press("j")
    status = page.locator("#status")
    expect(status).to_contain_text("No answer from the explorer")
    expect(status).to_be_in_viewport()
    expect(page.locator("#title-query")).to_have_text("Example shapes/3")
    settle(page)


def test_a_filter_that_is_refused_is_named_once_and_the_page_stays(page, pages):
    page.goto(pages.url + address("shapes/3"))
    settle(page)

    def answers():
        every = panels(page).items()  # of which these have no filter: their answers stay, and their links lead to it
        return {name: html for name, html in every if name not in ("panel-filter", "panel-query")}

    before = answers()
    page.locator("#panel-filter summary").click()
    page.locator("#own-sql").fill("colour = 1")
    page.locator("#panel-filter").get_by_role("button", name="replace the chips").click()
    expect(page.locator("#panel-filter .failure")).to_have_text("There is no slot column 'colour'.")
    settle(page)
    expect(page.locator(".failure:visible")).to_have_count(1)
    assert answers() == before
    page.locator("#panel-filter .chips.set a").click()
    settle(page)
    expect(page.locator(".failure:visible")).to_have_count(0)
    page.locator("#filter-value").fill("99")
    page.locator("select[name='keep']").select_option("only")
    page.get_by_role("button", name="add").click()
    settle(page)
    expect(page.locator("#panel-filter .failure")).to_contain_text("matches no")
    expect(page.locator(".failure:visible")).to_have_count(1)
    page.locator("#panel-filter .chips.set a").click()
    settle(page)
    expect(page.locator(".failure:visible")).to_have_count(0)
    expect(page).to_have_url(pages.url + address("shapes/3"))
    assert answers() == before


def test_a_killed_memory_server_is_named(page, memory, watch):
    watch.expected.append("status of 502")
    server = Server(memory, ServiceConfig("127.0.0.1:0"))
    server.start()
    with served_to(page, {"run": lambda: Client(server.address, timeout=20)}) as pages:
        page.goto(pages.url + address("shapes/3"))
        settle(page)
        server.stop(grace=0)
        page.keyboard.press("j")
        expect(page.get_by_role("heading", level=1)).to_have_text("No answer from the memory")
        expect(page.locator(".failure")).to_contain_text(server.address)
        page.get_by_role("link", name="To the start page").click()
        expect(page.locator(".failure")).to_contain_text(server.address)


SCANNED = '#panel-record div:has(> dt:has-text("slots scanned")) data'


def test_newer_steps_are_offered_and_shown_when_asked_for(page, tmp_path):
    """Of a training that records, 12 slots a step."""
    training = recorded.Training(tmp_path / "run")

    def slots() -> str | None:
        return page.locator(SCANNED).first.get_attribute("value")

    with served_to(page, {"run": lambda: dualform.open(tmp_path / "run")}) as pages:
        with training.recorder:
            training.take(2, query_set=True)
            page.goto(f"{pages.url}explore?item=test/1&open=layers,record")
            settle(page)
            assert page.get_attribute("#answers", "data-recording") == "yes"
            assert not page.is_visible("#news")
            assert slots() == "24"
            before = page.inner_html("#answers")
            training.take(5)
            expect(page.locator("#news span")).to_have_text("The training has reached step 7.")
            assert page.inner_html("#answers") == before
            page.click("#panel-layers a[data-layer='0']")
            page.wait_for_selector("#panel-layers a[data-layer='0'][aria-current]")
            assert slots() == "24", "a click moved the page to another snapshot"
            page.click("#news a")
            page.locator(f"{SCANNED}[value='84']").first.wait_for()
            assert not page.is_visible("#news")
            assert "layer=0" in page.url
        page.reload()
        settle(page)
        assert page.get_attribute("#answers", "data-recording") is None
        assert slots() == "84"

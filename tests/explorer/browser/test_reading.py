"""By keyboard, by ear, in large letters and on small screens; of texts that turn the direction; and of nobody else."""

from __future__ import annotations

from typing import Any

import torch
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

import dualform
from tests.explorer.browser.shown import SECTIONS, address, corrected_card, numbers, served_to, settle
from tests.explorer.browser.test_map import READ
from tests.trainings import learn


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
        for own in Axe().run(page, options={"resultTypes": ["violations"], **options}).response["violations"]
        if own["impact"] in ("serious", "critical")
    ]


MASKED = address("shapes/3", without="label:1", k="12", open=SECTIONS)
TEXT = f"explore?item=held/3&token=2&layer=3&by=label&without=label:2&k=12&open={SECTIONS}"
PAGES = {
    "start": "",
    "masked": MASKED + "&score=contribution&target=3-0&at=50&as=samples&verify=yes&w0=off",
    "empty mask": address("shapes/3", where="label = 99", open=SECTIONS),
    "paper": "paper" + MASKED.removeprefix("explore"),
    "faults": address("shapes/3", "9"),
    "sample": "sample?dataset=shapes&sample=5",
    "map": "map?item=shapes/3",
}
TEXTS = {"start": "", "text": TEXT, "found": "search?q=mouse&item=held/3"}
ALIKE = (PAGES["empty mask"], PAGES["sample"])
"""Made of the parts of others, which axe looks at."""
REFUSED = "Failed to load resource: the server responded with a status of 400"
"""What a browser notes of the page that names faults."""
SMALL = """() => [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, summary, textarea")]
    .filter((own) => own.offsetParent && !own.classList.contains("skip") && !own.closest("#passage"))
    .map((own) => [own.outerHTML.slice(0, 120), own.getBoundingClientRect()])
    .filter(([, box]) => box.height < 44 || box.width < 24)
    .map(([html, box]) => `${Math.round(box.width)} x ${Math.round(box.height)}: ${html}`)"""
"""What is too small for a finger. Fingers have links to the token before and after."""
WIDER = """() => [...document.querySelectorAll('body *')].filter(own => {
    const box = own.getBoundingClientRect();
    return box.right > innerWidth + 1 && !own.closest('.wide, .scroll, .away, .skip, svg');
}).map(own => own.outerHTML.slice(0, 120))"""
THINNED = """() => {
    document.querySelectorAll("svg[aria-hidden] > :not(text)").forEach((own) => own.remove());
    for (const list of document.querySelectorAll("tbody, ul, ol, dl, nav, datalist, #passage")) {
        const seen = new Map();
        for (const own of [...list.children]) {
            const kinds = [own, ...own.querySelectorAll("*")].map((one) => one.tagName + one.getAttribute("class"));
            const kind = [...new Set(kinds.map((one) => one.replace(/ ?h[0-9]/, "")))].sort().join();
            seen.set(kind, (seen.get(kind) ?? 0) + 1);
            if (seen.get(kind) > 2) own.remove();
        }
    }
}"""
"""Leaves two of each kind of a list's items and a table's rows: of one kind are those of the same elements and classes.
axe looks at each element of what is left."""
DISTINCT = """() => {
    const seen = new Set();
    for (const own of document.querySelectorAll("body *")) {
        const texts = [...own.childNodes].filter((one) => one.nodeType === Node.TEXT_NODE && one.data.trim());
        const above = [own, own.parentElement, own.parentElement.parentElement];
        const style = getComputedStyle(own);
        let behind = own;
        while (behind.parentElement && getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)")
            behind = behind.parentElement;
        const look = [style.color, style.fontSize, style.fontWeight, getComputedStyle(behind).backgroundColor];
        const kind = above.map((one) => `${one?.tagName} ${one?.getAttribute("class")} ${one?.ariaCurrent}`);
        const said = [...kind, ...look].join().replace(/ h[0-9]/g, "");
        if (seen.has(said)) texts.forEach((one) => one.remove());
        else if (texts.length) seen.add(said);
    }
    return seen.size;
}"""
"""Leaves one text of each look, whose contrast axe measures: the same colours, size, elements and classes."""
COLOURS = ["color-contrast", "link-in-text-block"]
"""The rules of axe that depend on colours."""


def test_pages_are_accessible_and_fit_small_screens(pages, text_pages, new_context, watch):
    """axe is let past the guard of the pages, in this tab alone. In the dark only the colours are others. The least
    width is that of 1280 at 400 %, which is narrower than a phone.
    """
    watch.expected += [REFUSED, READ]
    page = new_context(bypass_csp=True, color_scheme="light").new_page()
    for url in (*(pages.url + path for path in PAGES.values()), *(text_pages.url + path for path in TEXTS.values())):
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(url)
        if "map?" in url:
            page.locator("#scatter[data-view]").wait_for()
        if "layer=9" not in url:
            assert (url, page.evaluate(SMALL)) == (url, [])
        page.locator("details").evaluate_all("all => all.forEach(own => (own.open = true))")
        page.set_viewport_size({"width": 320, "height": 740})
        assert (url, page.evaluate(WIDER)) == (url, [])
        assert (url, page.evaluate("document.documentElement.scrollWidth")) <= (url, 320)
        if url.endswith(ALIKE):
            continue
        page.set_viewport_size({"width": 1280, "height": 800})
        page.evaluate(THINNED)
        assert (url, serious(page, {"rules": {own: {"enabled": False} for own in COLOURS}})) == (url, [])
        assert page.evaluate(DISTINCT) > 5
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            assert (url, scheme, serious(page, {"runOnly": COLOURS})) == (url, scheme, [])
    page.goto(pages.url + address("shapes/3", open=""))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert serious(page, {}) == []


TURNED = "from right to left: \u202e"


PLACES = """(selector) => [...document.querySelectorAll(selector)].map(own => {
    const walker = document.createTreeWalker(own, NodeFilter.SHOW_TEXT);
    const found = [];
    for (let node = walker.nextNode(); node; node = walker.nextNode())
        for (let place = 0; place < node.length; place++)
            if (/[0-9]/.test(node.data[place])) {
                const range = document.createRange();
                range.setStart(node, place);
                range.setEnd(node, place + 1);
                const box = range.getBoundingClientRect();
                if (box.width) found.push([box.left, node.data[place]]);
            }
    const said = found.map(own => own[1]).join("");
    const seen = [...found].sort((one, other) => one[0] - other[0]).map(own => own[1]).join("");
    return [said, seen];
})"""
"""Of each element its digits, as they are said and from left to right as they are seen."""


def test_numbers_beside_a_text_that_turns_the_direction_are_seen_as_they_are(page, tmp_path):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = {TURNED: ["none \u202e", "one \u202e"]}
    with dualform.Recorder(model, optimizer, tmp_path / "run", label_names=names, quiet=True) as recorder:
        for _ in range(15):
            with recorder.step(dataset=TURNED, label=[0, 1], note=TURNED, size=1234):
                learn(optimizer, torch.nn.functional.cross_entropy(model(torch.eye(2)), torch.tensor([0, 1])))
        recorder.query_set("test", torch.eye(2), label=[0, 1])
    with served_to(page, {"run": lambda: dualform.open(tmp_path / "run")}) as pages:
        page.goto(
            f"{pages.url}explore?item=test/1&by=note,size&without=note:other;size:1234&without=size:567&open=data"
        )
        settle(page)
        for selector in (
            "#slots .said > *",
            "#sums tbody th",
            "#terms tbody th",
            ".chip",
            ".verdict > *",
            "#outputs tbody th",
        ):
            places = page.evaluate(PLACES, selector)
            assert any(said for said, _ in places), selector
            assert [seen for _, seen in places] == [said for said, _ in places], selector


def test_everything_is_there_while_requests_to_other_servers_are_aborted(page, pages, text_pages, watch):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    masked = address("shapes/3", without="label:1", k="60", open=SECTIONS)
    for url in (
        *(pages.url, pages.url + masked, pages.url + "paper" + masked.removeprefix("explore")),
        text_pages.url + "explore?item=held/3&layer=3&by=label",
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


def test_a_request_to_another_server_and_a_complaint_would_be_seen(new_context, watch):
    page = new_context().new_page()
    page.evaluate(
        "fetch('http://elsewhere.test/').catch(() => { console.error('it was aborted'); window.told = true; })"
    )
    page.wait_for_function("window.told")
    assert watch.elsewhere == ["http://elsewhere.test/"]
    assert "it was aborted" in watch.complaints
    watch.elsewhere.clear()
    watch.complaints.clear()

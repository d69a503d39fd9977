"""The widget in a browser, with a small host in the place of Jupyter: what is clicked is asked of the kernel."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path

import pytest

import dualform
import dualform_notebook.explorer as room
from dualform_explorer.glossary import meaning
from dualform_explorer.panels import data as slots
from dualform_explorer.previews import NOTHING, ShownPreview, ShownPreviews
from tests.explorer.chromium import chromium, needs_chromium
from tests.notebook.conftest import UNSAFE
from tests.notebook.previews import record_images, record_passages

STATIC = Path(room.__file__).parent


pytestmark = needs_chromium


PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)
"""One grey pixel."""


HOST = """
async ({ source, css, state }) => {
  const style = document.createElement("style");
  style.textContent = css;
  document.head.append(style);
  const listeners = new Map();
  const model = {
    get: (name) => state[name],
    set: (name, value) => { state[name] = value; model.changed[name] = value; },
    changed: {},
    on: (event, act) => listeners.set(event, act),
    off: (event) => listeners.delete(event),
    save_changes: async () => {
      const changed = model.changed;
      model.changed = {};
      state = await window.kernel(JSON.stringify(changed));
      listeners.get("change:view")?.();
      listeners.get("change:placebo")?.();
    },
  };
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const { default: widget } = await import(url);
  window.taken = widget.render({ model, el: document.body });
}
"""


class Page:
    """A browser page with the widget in it."""

    def __init__(self, browser, explorer):
        self.explorer, self.said, self.asked = explorer, [], []
        self.page = browser.new_context(viewport={"width": 1200, "height": 900}).new_page()
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.expose_function("kernel", self._kernel)
        self.page.set_content('<!doctype html><html lang="en"><title>widget</title><body></body>')
        given = {"source": (STATIC / "explorer.js").read_text(), "css": (STATIC / "explorer.css").read_text()}
        self.page.evaluate(HOST, {**given, "state": self._state()})

    def _state(self):
        names = (*room._ASKED, "view", "placebo")
        return json.loads(json.dumps({name: getattr(self.explorer, name) for name in names}))

    def _kernel(self, changed):
        self.explorer.set_state(json.loads(changed))
        return self._state()

    def table(self, name):
        """What stands in the numbers of a table, in full."""
        return [
            float(cell.get_attribute("data-value")) for cell in self.page.locator(f"table.{name} td[data-value]").all()
        ]

    def settled(self):
        self.page.locator(".dualform:not([aria-busy])").wait_for()


@pytest.fixture(scope="module")
def opened():
    with chromium() as browser:
        yield browser


@pytest.fixture
def shown(opened, memory):
    pages = []

    def show(**asked):
        pages.append(Page(opened, memory.explorer("test/3", **asked)))
        return pages[-1]

    yield show
    for own in pages:
        assert {url.partition(":")[0] for url in own.asked} <= {"about", "blob", "data"}, "nothing is fetched"
        assert own.said == []
        own.page.context.close()


def test_numbers_are_the_apis_and_a_click_masks(shown, memory):
    own = shown(layer="2", by="label", k=6)
    page = own.page
    assert own.table("groups") == memory.group_sum("2", "test/3", by="label").sums[0].tolist()
    assert own.table("slots") == memory.topk("2", "test/3", k=6).scores[0].tolist()
    assert page.get_by_text("test/3, label 3, predicted ").is_visible()

    page.get_by_role("button", name="without label 3").click()
    own.settled()
    page.get_by_role("button", name="without label 3 ✕").wait_for()
    masked = memory.topk("2", "test/3", k=6, where="label IS DISTINCT FROM 3")
    assert own.table("slots") == masked.scores[0].tolist()
    left_out = page.locator("table.groups tr.gone")
    assert left_out.inner_text().split() == ["label", "3", "removed"]
    assert left_out.locator(".was").count() == 1
    assert page.get_by_text("it is not a retraining without them").is_visible()
    verdict = page.locator(".placebo strong")
    assert verdict.inner_text() == own.explorer.placebo["verdict"]
    assert page.locator("thead abbr", has_text="slots").get_attribute("title") == meaning("slots")
    page.set_viewport_size({"width": 380, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.get_by_role("button", name="without label 3 ✕").click()
    own.settled()
    assert own.table("slots") == memory.topk("2", "test/3", k=6).scores[0].tolist()


def test_a_slot_has_its_picture_or_its_passage_with_one_token_marked(shown, monkeypatch):
    previews = [
        ShownPreview(image=PICTURE),
        ShownPreview(passage=("a ", "<b>fox</b>", " and")),
        ShownPreview(row={"age": 39}),
        NOTHING,
    ]
    monkeypatch.setattr(slots, "shown_of_slots", lambda *asked: ShownPreviews(previews, "The others are lost."))
    own = shown(k=4)
    cells = own.page.locator("table.slots td:nth-child(4)")
    assert own.page.locator("table.slots thead th").nth(3).inner_text() == "preview"
    picture = cells.nth(0).locator("img")
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
    assert cells.nth(1).locator("mark").inner_text() == "<b>fox</b>"
    assert cells.nth(1).inner_text() == "a <b>fox</b> and"
    assert cells.nth(2).inner_text() == "age 39"
    assert cells.nth(3).inner_text() == ""
    assert "The others are lost." in own.page.locator("p").last.inner_text()


def test_layer_example_groups_score_and_target_are_chosen(shown, memory):
    own = shown(k=4)
    page = own.page
    for field, chosen in (("layer", "0"), ("groups by", "dataset"), ("score", "absolute")):
        page.get_by_label(field).select_option(chosen)
        own.settled()
    page.get_by_role("button", name="next example").click()
    own.settled()
    assert own.explorer.query == "test/4"
    assert own.table("slots") == memory.topk("0", "test/4", k=4, score="abs").scores[0].tolist()
    wanted = memory.group_sum("0", "test/4", by="dataset", score="abs")
    assert own.table("groups") == wanted.sums[0].tolist()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "next example", "keys go on from there"
    page.keyboard.press("Enter")
    own.settled()
    assert own.explorer.query == "test/5"

    for field, chosen in (("layer", "2"), ("score", "contribution")):
        page.get_by_label(field).select_option(chosen)
        own.settled()
    target = page.get_by_label("target")
    assert target.input_value() == own.explorer.view["target"] != ""
    target.fill("1-0")
    target.press("Enter")
    page.get_by_text("Sums of contribution to output 1 less 0 by dataset").wait_for()
    sums = memory.group_sum("2", "test/5", by="dataset", score="contribution", target="1-0")
    assert own.table("groups") == sums.sums[0].tolist()
    target = page.get_by_label("target")
    target.fill("9")
    target.press("Enter")
    page.get_by_role("alert").get_by_text("target is '9'").wait_for()


def test_errors_have_their_hint_and_the_way_back_and_a_text_of_the_training_stays_text(shown):
    own = shown(by="text")
    page = own.page
    page.get_by_text(UNSAFE).first.wait_for()
    assert page.locator("img").count() == 0
    page.get_by_role("button", name=f"without text {UNSAFE}").click()
    own.settled()
    assert page.title() == "widget"
    page.get_by_label("filter, SQL").fill("labl = 3")
    page.get_by_label("filter, SQL").press("Enter")
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert "no slot column 'labl'." in alert.inner_text()
    assert "Columns: " in alert.inner_text()
    assert page.locator("table").count() == 0
    page.get_by_role("button", name="clear the filter").click()
    page.locator("table.slots").wait_for()


def test_the_example_has_its_picture_and_a_token_is_chosen(opened, tmp_path):
    with dualform.open(record_images(tmp_path / "images")) as memory:
        page = Page(opened, memory.explorer("test/2")).page
        (example,) = memory.previews([2], query_set="test")
        picture = page.locator(".example img")
        assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") == 2
        assert b64decode(picture.get_attribute("src").partition("base64,")[2]) == example.image
        page.context.close()
    with dualform.open(record_passages(tmp_path / "run")) as memory:
        own = Page(opened, memory.explorer("test/2", token=0, by="label", k=4))
        own.page.get_by_text("test/2, token 0 of 3, label 2").wait_for()
        own.page.get_by_role("button", name="next token").click()
        own.settled()
        assert own.page.locator(".example mark").inner_text() == "bb"
        assert own.table("slots") == memory.topk("0", "test/2:1", k=4).scores[0].tolist()
        own.page.get_by_role("button", name="next example").click()
        own.settled()
        assert own.page.get_by_text("test/3, token 2 of 3, label 0").is_visible()
        own.page.context.close()

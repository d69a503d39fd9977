"""An exported file in Chromium, opened from disk, with every request aborted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page

import dualform
from dualform_explorer.export import choose, exported_page
from dualform_explorer.view import Snapshot
from tests.trainings import learn

WILD = "</p></script><script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\"> </style>"


@pytest.fixture(scope="module")
def file(exported, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("export") / "page.html"
    path.write_text(exported.html, encoding="utf-8")
    return path


class Opened:
    """A page, and what it asked for and complained of."""

    def __init__(self, browser: Browser, path: Path, scripts: bool = True, part: str = "") -> None:
        self.context = browser.new_context(java_script_enabled=scripts)
        self.requests: list[str] = []
        self.said: list[str] = []
        page: Page = self.context.new_page()
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        own = path.as_uri()
        page.route("**/*", lambda route: route.continue_() if route.request.url == own else route.abort())
        page.goto(own + part)
        self.page, self.own = page, own

    @property
    def shown(self) -> list[str]:
        return self.page.eval_on_selector_all(
            ".view", "views => views.filter(own => own.checkVisibility()).map(own => own.id)"
        )

    @property
    def asked_elsewhere(self) -> list[str]:
        return [url for url in self.requests if url.partition("#")[0] != self.own and not url.startswith("data:")]


@pytest.fixture
def opened(browser, file):
    made = []

    def open_file(path: Path = file, **options) -> Opened:
        made.append(Opened(browser, path, **options))
        return made[-1]

    yield open_file
    for own in made:
        own.context.close()


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without scripts"])
def test_links_switch_what_is_shown_and_nothing_is_asked_for(opened, scripts):
    own = opened(scripts=scripts)
    if scripts:
        assert own.shown == ["p1"]
    own.page.click("#p1 .filters a >> nth=1")
    assert own.page.is_visible("#p1-m1")
    assert not own.page.is_visible("#p1")
    assert own.page.inner_text("#p1-m1 .sql").strip() == "dataset <> 'noise <b>'"
    own.page.click("#p1-m1 [rel=next]")
    assert own.page.is_visible("#p2-m1")
    own.page.click('.items a[data-view="p3"]')
    assert own.page.is_visible("#p3")
    own.page.go_back()
    assert own.page.is_visible("#p2-m1")
    assert own.asked_elsewhere == []
    assert own.said == []


def test_an_address_of_a_part_shows_that_part_and_keys_go_through_predictions_and_masks(opened):
    own = opened(part="#p2-m2")
    assert own.shown == ["p2-m2"]
    assert own.page.get_attribute(".items a[aria-current]", "data-view") == "p2"
    own.page.goto(f"{own.own}#p1")
    seen = []
    for key in ("m", "j", "m", "m", "k", "u"):
        own.page.keyboard.press(key)
        (now,) = own.shown
        seen.append(now)
    assert seen == ["p1-m1", "p2-m1", "p2-m2", "p2", "p1", "p1"]
    own.page.emulate_media(color_scheme="light")
    paper = [own.page.evaluate("getComputedStyle(document.body).backgroundColor")]
    for _ in range(2):
        own.page.click("#tools button")
        paper.append(own.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert paper[0] == paper[1] != paper[2]
    for width in (1400, 360):
        own.page.set_viewport_size({"width": width, "height": 800})
        assert own.page.evaluate("document.documentElement.scrollWidth") <= width
    own.page.set_viewport_size({"width": 700, "height": 400})
    own.page.evaluate("document.querySelector('#p1 .filters').scrollIntoView()")
    before = own.page.evaluate("scrollY")
    assert before > 0
    own.page.click("#p1 .filters a >> nth=2")
    own.page.wait_for_function("document.getElementById('p1-m2').checkVisibility()")
    assert own.page.evaluate("scrollY") == before, "a mask is switched where the reader stands"
    assert own.said == []


def test_a_script_in_a_text_stays_text(opened, tmp_path):
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
    preview_set = dualform.PreviewSet.texts([f"{WILD} {number}" for number in range(6)])
    with dualform.Recorder(model, optimizer, tmp_path / "run", label_names={WILD: [WILD, "b", "c"]}, quiet=True) as own:
        own.previews(WILD, preview_set)
        for _ in range(3):
            with own.step(dataset=WILD, label=labels, sample=torch.arange(6), said=[WILD] * 6):
                learn(optimizer, torch.nn.functional.cross_entropy(model(inputs), labels))
        own.query_set("test", inputs, label=labels, previews=preview_set)
    with dualform.open(tmp_path / "run") as memory:
        page = exported_page(
            Snapshot(memory, memory.info()), WILD, choose(Snapshot(memory, memory.info()), ("test/1",), ())
        )
    path = tmp_path / "page.html"
    path.write_text(page.html, encoding="utf-8")
    assert page.failed == 0
    read = opened(path)
    assert read.page.title() == f"{WILD} · dualform"
    assert WILD in read.page.inner_text("#p1 figure.query")
    assert read.page.eval_on_selector_all("script", "all => all.length") == 1
    assert read.page.eval_on_selector_all("img", "all => all.length") == 0
    assert read.asked_elsewhere == []
    assert read.said == []

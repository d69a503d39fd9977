"""The map as a reader uses it: what is under the pointer, and a lasso that becomes a filter."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import dualform
from dualform_explorer.filter import samples_filter
from tests.explorer.browser.shown import settle
from tests.explorer.recorded_text import HOSTILE
from tests.explorer.served import served

ADDRESS = "map?item=shapes/3&layer=4&by=dataset,label"


def shown(page: Page) -> None:
    """Waits until the points are drawn and the picture stands still."""
    page.locator("#scatter[data-view]").wait_for()
    page.wait_for_timeout(250)


def places(page: Page, data: dict[str, Any]) -> np.ndarray:
    """float64[m, 2]: where points are on the canvas, in its pixels."""
    x, y, scale = map(float, str(page.locator("#scatter").get_attribute("data-view")).split(","))
    box = page.locator("#scatter").bounding_box()
    assert box is not None
    points = np.stack([data["x"], data["y"]], axis=1)
    return (points - [x, y]) * [scale, -scale] + [box["width"] / 2 - 1, box["height"] / 2 - 1]


def on_page(page: Page, place: np.ndarray) -> tuple[float, float]:
    """Of a place of the canvas, within its border."""
    box = page.locator("#scatter").bounding_box()
    assert box is not None
    return box["x"] + 1 + float(place[0]), box["y"] + 1 + float(place[1])


def lone(found: np.ndarray) -> int:
    """The point that is farthest from all others."""
    away = np.hypot(*(found[:, None] - found[None]).transpose(2, 0, 1))
    np.fill_diagonal(away, np.inf)
    return int(away.min(axis=1).argmax())


@pytest.fixture
def data(pages) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pages.get("/" + ADDRESS.replace("map?", "points?")).text)
    return found


READ = "Canvas2D: Multiple readback"
"""What a browser notes of a test that reads colours from a canvas."""


def colours(page: Page, found: np.ndarray) -> list[list[int]]:
    """RGBA of the canvas at some of its places."""
    picked: list[list[int]] = page.evaluate(
        """places => { const canvas = document.getElementById('scatter');
            return places.map(([x, y]) => [...canvas.getContext('2d').getImageData(
                x * devicePixelRatio, y * devicePixelRatio, 1, 1).data]); }""",
        found.tolist(),
    )
    return picked


def lasso(page: Page, corners: np.ndarray) -> None:
    """Draws around some places of the canvas."""
    page.locator("#lasso").click()
    page.mouse.move(*on_page(page, corners[0]))
    page.mouse.down()
    for corner in corners[1:]:
        page.mouse.move(*on_page(page, corner), steps=8)
    page.mouse.up()


def box_of(found: np.ndarray, chosen: np.ndarray, edge: float = 6.0) -> np.ndarray:
    """The corners around some points."""
    (left, top), (right, bottom) = found[chosen].min(axis=0) - edge, found[chosen].max(axis=0) + edge
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]])


def test_points_are_drawn_where_they_are_and_stay_there_when_the_map_moves(page, pages, data, watch):
    watch.expected.append(READ)
    page.goto(pages.url + ADDRESS)
    shown(page)
    assert all(alpha > 100 for *_, alpha in colours(page, places(page, data)))
    corner = np.array([[5.0, 5.0]])
    assert colours(page, corner)[0][3] == 0
    before = places(page, data)
    x, y = on_page(page, before[0])
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 30, y - 20, steps=6)
    page.mouse.up()
    shown(page)
    assert np.allclose(places(page, data), before + np.array([30, -20]), atol=4)
    page.mouse.wheel(0, -200)
    shown(page)
    after = places(page, data)
    spread = (after.max(axis=0) - after.min(axis=0)) / (before.max(axis=0) - before.min(axis=0))
    assert np.allclose(spread, np.exp(200 / 400))
    assert np.allclose(after[0], before[0] + np.array([30, -20]), atol=6)  # what is under the pointer stays there
    page.locator("#whole").click()
    shown(page)
    assert np.allclose(places(page, data), before, atol=0.01)
    page.locator("#scatter").focus()
    for key, moved in (("ArrowRight", False), ("+", False)):
        seen = page.locator("#scatter").get_attribute("data-view")
        page.keyboard.press(key)
        shown(page)
        assert (page.locator("#scatter").get_attribute("data-view") == seen) == moved, key


def test_the_pointer_shows_a_slot_and_how_its_sample_looked(page, pages, data, memory):
    page.goto(pages.url + ADDRESS)
    shown(page)
    found = places(page, data)
    at = lone(found)
    page.mouse.move(*on_page(page, found[at] + [2, 1]))
    tip = page.locator("#tip")
    dataset, sample = data["datasets"][data["dataset"][at]]["value"], data["sample"][at]
    label = data["labels"][data["label"][at]]["value"]
    facts = [dataset, str(label), str(sample), str(data["step"][at]), str(data["slot"][at])]
    assert tip.locator("dd").all_text_contents()[:5] == facts
    (preview,) = memory.previews([sample], dataset)
    expect(tip.locator("img")).to_have_attribute("src", "data:image/png;base64," + b64encode(preview.image).decode())
    link = tip.get_by_role("link", name="open the sample").get_attribute("href")
    assert link == f"sample?dataset={dataset.replace(' ', '+').replace('<', '%3C').replace('>', '%3E')}&sample={sample}"
    page.mouse.move(*on_page(page, np.array([4.0, 4.0])))
    expect(tip).to_be_hidden()
    page.mouse.click(*on_page(page, found[at]))
    page.mouse.move(*on_page(page, np.array([4.0, 4.0])))
    expect(tip).to_be_visible()  # a click keeps it open, so that its link can be reached
    tip.get_by_role("link").hover()
    page.mouse.click(*on_page(page, np.array([4.0, 4.0])))
    expect(tip).to_be_hidden()


def test_a_lasso_becomes_a_filter_of_whole_samples(page, pages, memory):
    where = "label <> 1"
    more = f"{ADDRESS}&where={quote(where)}"
    data = json.loads(pages.get("/" + more.replace("map?", "points?")).text)
    page.goto(pages.url + more)
    shown(page)
    found = places(page, data)
    corners = box_of(found, found[:, 1].argsort()[:9])
    (left, top), (right, bottom) = corners[0], corners[2]
    inside = (found[:, 0] > left) & (found[:, 0] < right) & (found[:, 1] > top) & (found[:, 1] < bottom)
    lasso(page, corners)
    samples = list(
        dict.fromkeys(
            (data["datasets"][data["dataset"][at]]["value"], data["sample"][at]) for at in np.flatnonzero(inside)
        )
    )
    chosen = page.locator("#chosen")
    noun = "sample" if len(samples) == 1 else "samples"
    expect(chosen).to_contain_text(f"{inside.sum()} slots of {len(samples)} {noun} chosen.")
    expect(chosen).to_contain_text("whole samples")

    rows = memory.slots(np.arange(720), "sample").records()
    for only, link in ((True, "#keep-chosen"), (False, "#remove-chosen")):
        page.locator(link).click()
        settle(page)
        condition = samples_filter(samples, only)
        kept = [((row["dataset"], row["sample"]) in samples) == only and row["label"] != 1 for row in rows]
        matching = memory.group_sum("4", "shapes/3", "label", f"({where}) AND ({condition})").scan.slots_matching
        assert matching == sum(kept)
        expect(page.locator("#where")).to_contain_text(condition)
        expect(page.locator("#panel-filter")).to_contain_text(f"{sum(kept)} of 720 slots stay.")
        page.go_back()
        shown(page)
        lasso(page, corners)
    page.locator("#back").click()
    expect(page.locator("#answers")).to_be_attached()


def test_too_many_samples_are_refused_and_none_do_nothing(page, pages, data):
    page.goto(pages.url + ADDRESS)
    shown(page)
    page.evaluate("document.getElementById('map').dataset.longest = '60'")
    found = places(page, data)
    lasso(page, box_of(found, np.arange(len(found)), 12.0))
    expect(page.locator("#chosen")).to_contain_text("720 slots of")
    expect(page.locator("#chosen")).to_contain_text("Choose fewer: an address holds 60 letters")
    expect(page.locator("#chosen a")).to_have_count(0)
    page.get_by_role("button", name="clear").click()
    expect(page.locator("#chosen")).to_be_empty()
    lasso(page, np.array([[2.0, 2.0], [9.0, 2.0], [9.0, 9.0]]))
    expect(page.locator("#chosen")).to_contain_text("0 slots of 0 samples chosen.")
    expect(page.locator("#chosen a")).to_have_count(0)


def test_colours_stand_in_the_address_and_follow_the_theme(page, pages, data, watch):
    watch.expected.append(READ)
    page.goto(pages.url + ADDRESS)
    shown(page)
    label = page.locator("#legend span")
    counts = sorted((own["value"], own["count"]) for own in data["labels"])
    assert label.all_text_contents() == [f"{value} ({count})" for value, count in counts]
    seen = {}
    for colour in ("dataset", "step", "score"):
        page.locator("#colour").select_option(colour)
        assert page.url.endswith(f"&colour={colour}")
        seen[colour] = colours(page, places(page, data)[:40])
    assert len({str(own) for own in seen.values()}) == 3
    highest = max(map(abs, data["score"]))
    expect(page.locator("#legend")).to_contain_text(f"{float(f'{highest:.4g}'):g}")
    page.reload()
    shown(page)
    assert colours(page, places(page, data)[:40]) == seen["score"]
    page.locator("#theme").click()
    page.locator("#theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert colours(page, places(page, data)[:40]) != seen["score"]


def test_a_text_under_the_pointer_stays_text(page, text_pages):
    address = "item=held/0&token=2&layer=3&by=label&where=sample%20%3D%200"
    data = json.loads(text_pages.get(f"/points?{address}").text)
    page.goto(text_pages.url + f"map?{address}")
    shown(page)
    found = places(page, data)
    page.mouse.move(*on_page(page, found[lone(found)]))
    expect(page.locator("#tip .passage")).to_have_text(HOSTILE)
    expect(page.locator("#tip mark")).to_have_count(1)
    expect(page.locator("#tip script, #tip b")).to_have_count(0)


def test_a_filter_that_cannot_be_is_told_of_and_the_map_is_drawn_after_a_token_was_given(page, folder, pages, watch):
    watch.expected.append("the server responded with a status of 40[01]")
    page.goto(pages.url + "map?item=shapes/3&where=label%20%3D%2099")
    expect(page.locator("#map-said")).to_contain_text("matches none of 720 slots")
    expect(page.locator("#map")).to_be_hidden()
    with served({"run": lambda: dualform.open(folder)}, token="sesame-sesame-sesame") as closed:
        page.goto(closed.url + ADDRESS)
        page.locator("#token").fill("sesame-sesame-sesame")
        page.keyboard.press("Enter")
        shown(page)
        expect(page.locator("#about")).to_contain_text("All 720 slots are drawn.")
        page.goto("about:blank")

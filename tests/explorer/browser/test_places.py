"""A convolution's places: a click on the map asks about one, which is boxed in the example and in results."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import expect

import dualform
from tests.explorer.browser.shown import served_to, settle
from tests.explorer.recorded_cnn import HEIGHT, WIDTH, record


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return record(tmp_path_factory.mktemp("cnn") / "run")


def frame(svg, picture):
    """Of a drawn box: left, top, right and bottom in the picture's own pixels, as both lie on the screen."""
    drawn, shown = svg.locator("rect.frame").last.bounding_box(), picture.bounding_box()
    scale = min(shown["width"] / WIDTH, shown["height"] / HEIGHT)
    left = shown["x"] + (shown["width"] - scale * WIDTH) / 2
    top = shown["y"] + (shown["height"] - scale * HEIGHT) / 2
    x, y = (drawn["x"] - left) / scale, (drawn["y"] - top) / scale
    return x, y, x + drawn["width"] / scale, y + drawn["height"] / scale


def test_a_place_is_picked_on_the_map(page, path):
    with dualform.open(path) as memory:
        (layer,) = (own for own in memory.info().layers if own.name == "0")
        sums = memory.group_sum("0", "test/2", by="label").sums.sum(axis=1)
    with served_to(page, {"run": lambda: dualform.open(path)}) as pages:
        page.goto(f"{pages.url}explore?item=test/2&layer=0&by=label&open=data,layers")
        settle(page)
        cells = page.locator("#places rect.heat")
        expect(cells).to_have_count(20)
        colours = cells.evaluate_all("all => all.map(own => getComputedStyle(own).fillOpacity)")
        assert np.argmax([float(own) for own in colours]) in np.flatnonzero(sums > 0.9 * sums.max())
        for place in (int(np.argmax(sums)), 7):
            if place == 7:
                page.locator('#places a[href*="token=7&"]').click()
                settle(page)
                expect(page).to_have_url(re.compile("token=7&"))
            (top, bottom), (left, right) = layer.patches.spans(place)
            query = page.locator("figure.query .boxed")
            found = frame(query.locator("svg"), query.locator("img"))
            assert found == pytest.approx((left, top, right, bottom), abs=0.4)
        for slot in page.locator("#slots .slot").all()[:4]:
            (top, bottom), (left, right) = layer.patches.spans(int(slot.get_attribute("data-position")))
            found = frame(slot.locator("svg.over"), slot.locator("img"))
            assert found == pytest.approx((left, top, right, bottom), abs=0.4)

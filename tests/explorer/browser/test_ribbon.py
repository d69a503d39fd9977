"""The ribbon of layers: as wide as its numbers, on a phone, too; its layers are links, and it can be taken along."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.explorer.browser.shown import numbers, settle

ADDRESS = "explore?item=shapes/3&layer=4&by=label&open=layers"
SVG = "{http://www.w3.org/2000/svg}"
WIDTHS = "all => all.map(own => own.getBoundingClientRect().width)"


@pytest.mark.parametrize("width", [1440, 390])
def test_its_parts_are_as_wide_as_their_shares(page, pages, memory, width):
    page.set_viewport_size({"width": width, "height": 1000})
    page.goto(pages.url + ADDRESS)
    settle(page)
    sums = {layer: memory.group_sum(layer, "shapes/3", by="label").sums[0] for layer in ("0", "2", "4")}
    shares = {layer: own / np.abs(own).sum() for layer, own in sums.items()}
    across = max(own.clip(min=0).sum() for own in shares.values()) - min(
        own.clip(max=0).sum() for own in shares.values()
    )
    whole = page.locator(".ribbon").bounding_box()["width"]
    for layer, own in shares.items():
        drawn = page.locator(f".ribbon [data-layer='{layer}'] rect:not(.frame)").evaluate_all(WIDTHS)
        assert drawn == pytest.approx(np.abs(own) * whole / across, abs=2)  # with the line around it
    expect(page.locator(".ribbon path")).to_have_count(2 * 4)
    page.locator("#panel-layers summary").first.click()
    assert numbers(page.locator("#flow tbody data")) == np.concatenate([*shares.values()]).tolist()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_part_leads_to_its_layer_and_all_is_taken_along(page, pages):
    page.goto(pages.url + ADDRESS)
    settle(page)
    expect(page.locator(".ribbon [aria-current]")).to_have_attribute("data-layer", "4")
    page.locator(".ribbon [data-layer='2'] rect").first.click()
    expect(page.locator(".ribbon [aria-current]")).to_have_attribute("data-layer", "2")
    expect(page).to_have_url(pages.url + ADDRESS.replace("layer=4", "layer=2"))
    settle(page)
    page.locator("#panel-layers").get_by_text("Export").click()
    with page.expect_download() as saved:
        page.locator("#panel-layers button", has_text="SVG").click()
    drawn = ElementTree.parse(Path(saved.value.path())).getroot()
    assert len([*drawn.iter(f"{SVG}path")]) == 8
    said = [own.text for own in drawn.iter(f"{SVG}text")]
    assert {"layer 0, 36 → 16", "0", "1", "2", "3"} <= {*said}

"""A figure that is saved stands by itself: its colours, its legend and its question are in the file."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from tests.explorer.browser.shown import address, settle

SVG = "{http://www.w3.org/2000/svg}"


def test_a_saved_figure_has_its_colours_and_a_caption(page, pages):
    page.goto(pages.url + address("shapes/22"))
    settle(page)
    page.locator("#panel-timeline details.publish summary").click()
    with page.expect_download() as saved:
        page.locator("#panel-timeline button", has_text="SVG 1").click()
    drawn = ElementTree.parse(Path(saved.value.path())).getroot()
    lines = [own.get("stroke") for own in drawn.iter(f"{SVG}polyline")]
    assert len(set(lines)) == len(lines) >= 2
    swatches = [own.get("fill") for own in drawn.iter(f"{SVG}rect")]
    assert swatches == lines
    said = " ".join(own.text for own in drawn.iter(f"{SVG}text"))
    assert "memory.output(layer='4', queries='shapes/22')" in said
    assert "step 0 … " in said

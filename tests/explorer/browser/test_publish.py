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
        page.locator("#panel-timeline button", has_text="SVG").click()
    drawn = ElementTree.parse(Path(saved.value.path())).getroot()
    lines = [own.get("stroke") for own in drawn.iter(f"{SVG}polyline")]
    assert len(set(lines)) == len(lines) >= 2
    swatches = [own.get("fill") for own in drawn.iter(f"{SVG}rect")]
    assert swatches == lines
    said = " ".join(own.text for own in drawn.iter(f"{SVG}text"))
    assert "memory.output(layer='4', queries='shapes/22')" in said
    assert "step 0 … " in said


def test_the_answers_table_with_bars_is_a_figure_too(page, pages):
    page.goto(pages.url + address("shapes/22"))
    settle(page)
    page.get_by_role("region", name="Answer").get_by_text("Export").click()
    with page.expect_download() as saved:
        page.locator("#panel-answer button", has_text="SVG").click()
    drawn = ElementTree.parse(Path(saved.value.path())).getroot()
    said = [own.text for own in drawn.iter(f"{SVG}text")]
    rows = page.locator("#waterfall tbody tr")
    for row in rows.all():
        name, _, value, *_ = row.locator("th, td").all_inner_texts()
        assert {" ".join(name.split()), value.strip()} <= set(said)
    assert "without" not in " ".join(said[: 2 * rows.count() + 3])
    bars = [own for own in drawn.iter(f"{SVG}rect") if own.get("fill", "none") != "none"]
    assert len(bars) >= rows.count()
    dots = [own.get("fill") for own in drawn.iter(f"{SVG}circle")]
    assert len(dots) == page.locator("#waterfall .dot").count() > 0
    assert "memory.contributions(" in " ".join(said)
    assert "NaN" not in ElementTree.tostring(drawn, encoding="unicode")


def test_a_part_alone_has_an_address_for_elsewhere_and_prints_on_one_page(page, pages):
    page.goto(pages.url + address("shapes/22"))
    settle(page)
    page.get_by_role("region", name="Answer").get_by_text("Export").click()
    _, alone, *_ = page.locator("#panel-answer [data-frame]").inner_text().split('"')
    assert alone.startswith(f"{pages.url}panel?panel=answer&item=shapes/22")
    page.goto(alone)
    page.locator("#waterfall tbody tr").first.wait_for()
    assert "memory.contributions(" in page.locator(".caption").inner_text()
    assert not page.locator("details.publish").count()
    assert page.pdf().count(b"/Type /Page\n") == 1

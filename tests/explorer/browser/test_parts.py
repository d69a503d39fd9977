"""Parts of a page as a reader uses them: unfolded, drilled into, dragged, searched and taken along."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import dualform
from tests.explorer.browser.shown import address, numbers, served_to, settle
from tests.explorer.recorded_text import HOSTILE, passages
from tests.explorer.test_search import Shelf

SVG = "{http://www.w3.org/2000/svg}"


def saved_figure(page: Page, panel: str) -> ElementTree.Element:
    """What the button of a panel that is unfolded saves."""
    with page.expect_download() as saved:
        page.locator(f"#panel-{panel} button", has_text="SVG").click()
    return ElementTree.parse(Path(saved.value.path())).getroot()


def texts_of(drawn: ElementTree.Element) -> list[str]:
    return [own.text or "" for own in drawn.iter(f"{SVG}text")]


FOLDED = "explore?item=shapes/3&layer=4&by=dataset,label"


def test_a_section_is_unfolded_by_a_link_and_a_layer_chosen_in_the_bar(page, pages):
    page.goto(pages.url + FOLDED)
    settle(page)
    page.get_by_role("link", name="Data", exact=True).click()  # signs before links are not read out
    settle(page)
    expect(page.locator("#slots .slot")).to_have_count(24)
    expect(page).to_have_url(f"{pages.url}{FOLDED}&open=data")
    expect(page.get_by_role("link", name="Data", exact=True)).to_have_attribute("aria-expanded", "true")
    page.reload()
    expect(page.locator("#slots .slot")).to_have_count(24)
    page.set_viewport_size({"width": 390, "height": 844})
    number, name = (page.locator("#sums a.samples").first.locator(own).bounding_box() for own in ("bdi", ".called"))
    assert name["x"] - number["x"] - number["width"] > 2  # a link keeps the space between its words
    page.locator("#fold-data").click()
    expect(page.locator("#panel-slots")).to_have_count(0)
    expect(page).to_have_url(pages.url + FOLDED)
    page.locator("#layer").select_option("2")
    expect(page.locator("#heading")).to_have_text("shapes/3 in layer 2")
    page.keyboard.press("Escape")
    page.locator("body").press("l")
    expect(page.locator("#heading")).to_have_text("shapes/3 in layer 4")


def test_without_scripts_sections_unfold_and_a_search_is_a_form(new_context, pages, text_pages):
    page = new_context(java_script_enabled=False, viewport={"width": 390, "height": 800}).new_page()
    page.goto(pages.url + FOLDED)
    expect(page.locator("#panel-slots")).to_have_count(0)
    page.locator("#fold-data").click()
    expect(page.locator("#slots .slot")).to_have_count(24)
    page.goto(text_pages.url)
    page.locator("#search").fill("grapes")
    page.get_by_role("button", name="search").click()
    expect(page.locator("#searched")).to_contain_text("grapes")


def test_a_group_opens_to_its_samples_and_a_bar_shows_them_under_the_pointer(page: Page, adamw, adamw_pages):
    """Under AdamW."""
    asked = {"score": "contribution", "k": 24}
    page.goto(f"{adamw_pages.url}{FOLDED}&score=contribution&target=1-2&open=data")
    settle(page)
    expect(page.locator(".panel.failed, #within")).to_have_count(0)
    bar = page.locator("#sums tr[data-group='shapes/1']")
    bar.locator("th a").click()
    settle(page)
    where = "dataset = 'shapes' AND label = 1"
    sums = adamw.group_sum("4", "shapes/3", ("dataset", "sample"), where, target="1-2", **asked)
    own = numbers(page.locator("#within tr[data-sample] .sum data"))
    assert own == [value for _, value, _ in sums.ranked()]
    expect(page.locator("#within tr[data-sample] img")).to_have_count(len(own))
    (total,) = numbers(page.locator("#within tr.total .sum data"))
    assert [total] == pytest.approx(numbers(bar.locator(".sum data")), rel=1e-9)
    rest = numbers(page.locator("#within tr.rest .sum data"))
    assert sum(own + rest) == pytest.approx(total, rel=1e-9)
    expect(page.locator("#outputs .ablated")).to_have_count(0)  # nothing is left out
    page.get_by_role("link", name="close").click()
    settle(page)
    expect(page.locator("#within")).to_have_count(0)
    page.go_back()
    settle(page)
    expect(page.locator("#within")).to_have_count(1)

    row = page.locator("#waterfall tr[data-part=group]").first
    row.locator("td.right").hover()
    shown = page.locator("#peek > *")
    expect(shown).to_have_count(6)
    target = "-".join(page.locator("#sentence b").all_inner_texts()[:2])
    dataset = row.locator("th").inner_text().strip()
    sums = adamw.group_sum("4", "shapes/3", ("dataset", "sample"), f"dataset = '{dataset}'", target=target, **asked)
    assert numbers(shown.locator("data")) == [value for _, value, _ in sums.ranked()][:6]
    page.mouse.move(0, 0)
    expect(page.locator("#peek")).to_have_count(0)
    row.locator("td.draw a").click()
    settle(page)
    expect(page.locator("#where")).to_have_text(f"dataset <> '{dataset}'")


def test_the_ribbon_is_as_wide_as_its_shares_and_its_layers_are_links(page, pages, memory):
    page.goto(f"{pages.url}explore?item=shapes/3&layer=4&by=label&open=layers")
    settle(page)
    sums = {layer: memory.group_sum(layer, "shapes/3", by="label").sums[0] for layer in ("0", "2", "4")}
    shares = {layer: own / np.abs(own).sum() for layer, own in sums.items()}
    across = max(own.clip(min=0).sum() for own in shares.values()) - min(
        own.clip(max=0).sum() for own in shares.values()
    )
    page.locator("#panel-layers summary").first.click()
    assert numbers(page.locator("#flow tbody data")) == np.concatenate([*shares.values()]).tolist()
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 1000})
        whole = page.locator(".ribbon").bounding_box()["width"]
        for layer, own in shares.items():
            drawn = page.locator(f".ribbon [data-layer='{layer}'] rect:not(.frame)").evaluate_all(
                "all => all.map(own => own.getBoundingClientRect().width)"
            )
            assert drawn == pytest.approx(np.abs(own) * whole / across, abs=2)  # with the line around it
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    expect(page.locator(".ribbon path")).to_have_count(2 * 4)
    expect(page.locator(".ribbon [aria-current]")).to_have_attribute("data-layer", "4")
    page.locator(".ribbon [data-layer='2'] rect").first.click()
    expect(page.locator(".ribbon [aria-current]")).to_have_attribute("data-layer", "2")
    expect(page).to_have_url(f"{pages.url}explore?item=shapes/3&layer=2&by=label&open=layers")
    settle(page)
    page.locator("#panel-layers").get_by_text("Export").click()
    drawn = saved_figure(page, "layers")
    assert len([*drawn.iter(f"{SVG}path")]) == 8
    assert {"layer 0, 36 → 16", "0", "1", "2", "3"} <= {*texts_of(drawn)}


def test_charts_over_time_follow_the_slider_and_figures_are_saved_with_their_question(page, pages):
    page.goto(pages.url + address("shapes/22", open="training"))
    settle(page)
    page.locator("#panel-timeline details.publish summary").click()
    drawn = saved_figure(page, "timeline")
    lines = [own.get("stroke") for own in drawn.iter(f"{SVG}polyline")]
    assert len(set(lines)) == len(lines) >= 2
    assert [own.get("fill") for own in drawn.iter(f"{SVG}rect")] == lines, "the legend"
    said = " ".join(texts_of(drawn))
    assert "memory.output(layer='4', queries='shapes/22')" in said
    assert "step 0 … " in said

    first = page.locator("#timeline [data-values]").first
    expect(first).to_contain_text("at step 60")
    page.locator("#at").evaluate("own => { own.value = 0; own.dispatchEvent(new Event('input', {bubbles: true})); }")
    expect(first).to_contain_text("at step 0")
    expect(page).to_have_url(pages.url + address("shapes/22", open="training"))
    chart = page.locator("#timeline svg").first
    chart.click(position={"x": chart.bounding_box()["width"] / 2, "y": 20})
    settle(page)
    expect(page).to_have_url(pages.url + address("shapes/22", at="30", open="training"))
    expect(first).to_contain_text("at step 30")


def test_the_answers_table_is_a_figure_and_a_part_alone_that_prints_on_one_page(page, pages):
    page.goto(pages.url + address("shapes/22", open=""))
    settle(page)
    page.get_by_role("region", name="Answer").get_by_text("Export").click()
    drawn = saved_figure(page, "answer")
    said = texts_of(drawn)
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
    _, alone, *_ = page.locator("#panel-answer [data-frame]").inner_text().split('"')
    assert alone.startswith(f"{pages.url}panel?panel=answer&item=shapes/22")
    page.goto(alone)
    page.locator("#waterfall tbody tr").first.wait_for()
    assert "memory.contributions(" in page.locator(".caption").inner_text()
    assert not page.locator("details.publish").count()
    assert page.pdf().count(b"/Type /Page\n") == 1


def test_a_phrase_leads_to_a_filter_of_the_page_and_back(page, text_pages):
    page.goto(text_pages.url + "explore?item=held/3&token=2&layer=3&by=label")
    settle(page)
    page.locator("#search").fill("Cheese fox")
    page.keyboard.press("Enter")
    own = [sample for sample, passage in enumerate(passages()) if "cheese fox" in passage]
    expect(page.locator(".concordance mark")).to_have_text(
        ["cheese fox"] * len([*own, *(row for row in own if row < 8)])
    )
    lines = page.locator(".concordance .line").all_text_contents()
    assert [line.strip() for line in lines[: len(own)]] == [passages()[sample] for sample in own]
    marks = page.locator(".concordance mark").evaluate_all("all => all.map(own => own.getBoundingClientRect().left)")
    assert max(marks) - min(marks) < 1.0  # they stand below each other

    page.locator("#keep-found").click()
    settle(page)
    assert "item=held/3&token=2&layer=3&by=label" in page.url
    expect(page.locator("#where")).to_contain_text(f"sample IN ({', '.join(map(str, own))})")
    page.go_back()
    expect(page.locator("#search")).to_have_value("Cheese fox")
    page.locator("#back").click()
    settle(page)
    expect(page.locator("#where")).to_have_count(0)
    page.goto(text_pages.url + "search?q=" + "%3Cscript%3E")  # a script that is found stays text
    expect(page.locator(".concordance mark").first).to_have_text("<script>")
    expect(page.locator(".concordance .line").first).to_have_text(HOSTILE[: len("<script>") + 60] + "…")
    expect(page.locator("main script, main b:has-text('bold')")).to_have_count(0)
    assert "run" not in page.title()


def test_a_text_from_right_to_left_is_read_so_and_turns_nothing_beside_it(page, text_folder):
    arabic = "\u202eقال الثعلب إن العنب fox حامض ثم مضى في طريقه"  # noqa: RUF001
    shelf = partial(Shelf, texts={"fables": {3: arabic, 4: "a fox here"}})
    with served_to(page, {"text": lambda: shelf(dualform.open(text_folder))}) as pages:
        page.goto(pages.url + "search?q=fox")
        boxes = page.locator(".concordance li").evaluate_all(
            """all => all.map(own => ["b", ".before span", "mark", ".after"].map(
                part => own.querySelector(part).getBoundingClientRect().left))"""
        )
        (number, before, match, after), (other, *latin) = boxes[:2]
        assert number == other < after < match < before
        assert latin == sorted(latin)
        expect(page.locator(".concordance li").first).to_contain_text("#3 fables")
